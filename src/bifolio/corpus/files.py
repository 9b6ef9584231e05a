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


def skipped_links(paths: Iterable[str | Path]) -> list[tuple[str, str]]:
    """The symbolic links that ``find_files`` meets and does not follow: those out of their folder, and dangling ones.

    A link to a file that is read anyway, under another of the paths, is none of them.

    Args:
        paths: As for ``find_files``.

    Returns:
        Pairs of the name to show and the reason, in sorted order for each path.

    Raises:
        MissingPathError: A folder cannot be listed.
    """
    given = list(map(Path, paths))
    read: set[Path] = set()
    left_out: dict[Path, Path | None] = {}
    for path in given:
        read.update([resolved for resolved, _ in _walk(path, left_out)] if path.is_dir() else [path.resolve()])
    folders = [path.resolve() for path in given if path.is_dir()]
    return [
        (_source_name(link), f"a link out of the folder, to {_source_name(target)}" if target else "a dangling link")
        for link, target in left_out.items()
        if target is None or (target not in read and target not in folders)
    ]


def _walk(root: Path, left_out: dict[Path, Path | None] | None = None) -> list[tuple[Path, Path]]:
    """All files under ``root``, real entries first, so that a file has its own name rather than a link's.

    ``left_out`` takes the links that are not followed, each with its target (None if it has none).
    """
    home = root.resolve()
    outside: dict[Path, Path | None] = {}
    found: dict[Path, Path] = {}
    entered: set[Path] = set()
    links: list[Path] = []
    folders = [root]
    while folders or links:
        if not folders:
            link = links.pop()
            target = _target(link)
            if target is None or not target.is_relative_to(home):
                outside[link] = target
            elif target.is_dir():
                folders.append(link)
            elif target.is_file():
                found.setdefault(target, link)
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
    if left_out is not None:
        left_out.update(sorted(outside.items(), key=lambda pair: pair[0].parts))
    return sorted(found.items(), key=lambda pair: pair[1].parts)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:  # going on would make a later sync delete what is only unreadable today
        raise MissingPathError(f"cannot list folder {folder}: {error.strerror}") from error


def _target(link: Path) -> Path | None:
    """What a link leads to; None if it is dangling, or leads to itself (RuntimeError before Python 3.13)."""
    try:
        return link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None


def _source_name(path: Path) -> str:
    """The user's name of a path; bytes that are no text in the file system's charset become U+FFFD."""
    return path.as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "replace")
