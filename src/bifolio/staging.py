"""A folder that appears all at once: built beside its place, renamed into it, and never left behind for ever.

A build that is killed cannot clean up after itself. The next build of the same name does: it deletes the folders that
nobody holds a lock on. The operating system gives a lock back when its process ends, however it ends; a process id
would not tell, for ids are used again and a disk may be shared between machines.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bifolio.errors import CollectionError, CollectionExistsError, UsageError

_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}  # the last one: by a file


def check_free(path: Path) -> Path:
    """Where the folder will be, links followed: nothing or an empty folder is there now.

    Raises:
        CollectionExistsError: something is there.
        UsageError: an empty folder is there that cannot be replaced, or the name is no UTF-8.
    """
    target = path.resolve()
    try:
        str(target).encode()
    except UnicodeEncodeError as error:  # the lexical index takes its folder as a text
        shown = os.fsencode(target).decode("utf-8", "replace")
        raise UsageError(f"{shown} is no UTF-8: choose another name for the collection") from error
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise CollectionExistsError(f"{path} exists already and will not be overwritten: choose another name")
    if target.exists() and (target.is_mount() or target == Path.cwd()):
        what = "a mount point" if target.is_mount() else "the current folder"
        raise UsageError(f"{path} is {what}, which cannot be replaced: name a new folder, such as {path / 'new'}")
    return target


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """An empty folder beside ``target`` that takes its place when the block ends, and is deleted if it raises.

    Raises:
        CollectionExistsError: something has appeared at ``target`` in the meantime.
        CollectionError: the folder cannot be renamed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{_cut(target.name)}.building-"
    _remove_leftovers(target.parent, prefix)
    folder, lock = _make(target.parent, prefix)
    try:
        yield folder
        for inside in (folder, *folder.rglob("*")):
            if inside.is_dir():
                sync_folder(inside)  # the names in it are on the disk before its own is
        try:
            os.rename(folder, target)
        except OSError as error:
            if error.errno in _TAKEN:
                raise CollectionExistsError(f"{target} appeared while it was being built: {error.strerror}") from error
            raise CollectionError(f"{target} was built and cannot be put there: {error.strerror}") from error
        sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        _unlock(lock)


def _cut(name: str) -> str:
    """The beginning of a name that leaves room for more: a name has 255 bytes at most, whatever its letters."""
    return os.fsencode(name)[:200].decode("utf-8", "ignore")


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where the system can do that."""
    if sys.platform != "win32":
        with suppress(OSError):  # some network file systems cannot
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _make(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """A new folder with a lock on it."""
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(6)}"
        folder.mkdir()
        lock = _lock(folder)
        if lock is None or _is_at(lock, folder):
            return folder, lock
        _unlock(lock)  # another build took the new folder for a leftover: it was not locked yet


def _remove_leftovers(parent: Path, prefix: str) -> None:
    try:
        entries = list(parent.iterdir())
    except PermissionError:  # a folder that one may write into and not list
        return
    for entry in entries:
        if entry.name.startswith(prefix) and entry.is_dir() and not entry.is_symlink():
            lock = _lock(entry)
            if lock is not None and lock >= 0:
                shutil.rmtree(entry, ignore_errors=True)
                _unlock(lock)


if sys.platform == "win32":

    def _lock(folder: Path) -> int | None:
        """There is no lock on a folder: leftovers stay."""
        return None

else:
    import fcntl

    def _lock(folder: Path) -> int | None:
        """A lock on a folder: a handle that holds it, -1 if somebody else does, None where folders have no locks."""
        handle = -1
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, FileNotFoundError):
            _unlock(handle)
            return -1
        except OSError:  # a file system without locks
            _unlock(handle)
            return None
        return handle


def _is_at(lock: int, folder: Path) -> bool:
    """Whether the locked folder is still the one of that name."""
    try:
        return lock >= 0 and os.path.samestat(os.fstat(lock), folder.stat())
    except FileNotFoundError:
        return False


def _unlock(lock: int | None) -> None:
    if lock is not None and lock >= 0:
        os.close(lock)
