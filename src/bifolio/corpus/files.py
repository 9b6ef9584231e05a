"""Which files the user means by the paths given."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from bifolio.errors import MissingPathError


def find_files(paths: Iterable[str | Path]) -> list[tuple[Path, str]]:
    """Expand files and folders into the files to read.

    Folders are walked in sorted order. Hidden entries, symbolic links that leave the folder and entries that are not
    regular files are left out. A file reached twice is listed once, under the name met first (its own name before that
    of a link to it).

    Args:
        paths: Files and folders as the user named them.

    Returns:
        Pairs of the absolute, resolved path and the name to show, which is the user's name with ``/`` separators.

    Raises:
        MissingPathError: A path does not exist, is neither file nor folder, cannot be listed, or holds no file.
    """
    found: dict[Path, str] = {}
    for given in map(Path, paths):
        if given.is_dir():
            pairs = _walk(given)
            if not pairs:
                raise MissingPathError(f"no file in folder: {given} (hidden files and links out of it are not read)")
        elif given.is_file():
            pairs = [(given.resolve(), given)]
        elif os.path.lexists(given):
            raise MissingPathError(f"neither a file nor a folder: {given}")
        else:
            raise MissingPathError(f"no such file or folder: {given}")
        for resolved, named in pairs:
            found.setdefault(resolved, _source_name(named))
    return list(found.items())


def _walk(root: Path) -> list[tuple[Path, Path]]:
    """All files under ``root``, real entries first, so that a file has its own name rather than a link's."""
    home = root.resolve()
    found: dict[Path, Path] = {}
    entered: set[Path] = set()
    links: list[Path] = []
    folders = [root]
    while folders or links:
        if not folders:
            _follow(links.pop(), home, found, folders)
            continue
        folder = folders.pop()
        if folder.resolve() in entered:  # a cycle of links
            continue
        entered.add(folder.resolve())
        for entry in _entries(folder):
            if entry.is_symlink():
                links.append(Path(entry.path))
            elif entry.is_dir():
                folders.append(Path(entry.path))
            elif entry.is_file():
                found.setdefault(Path(entry.path).resolve(), Path(entry.path))
    return sorted(found.items(), key=lambda pair: pair[1].parts)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:  # going on would make a later sync delete what is only unreadable today
        raise MissingPathError(f"cannot list folder {folder}: {error.strerror}") from error


def _follow(link: Path, home: Path, found: dict[Path, Path], folders: list[Path]) -> None:
    """Take a link's target in, if it stays within ``home``."""
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):  # dangling, or a link to itself (RuntimeError before Python 3.13)
        return
    if not target.is_relative_to(home):
        return
    if target.is_dir():
        folders.append(link)
    elif target.is_file():
        found.setdefault(target, link)


def _source_name(path: Path) -> str:
    """The user's name of a path; bytes that are no text in the file system's charset become U+FFFD."""
    return path.as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "replace")
