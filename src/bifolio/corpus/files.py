"""Which files the user means by the paths given."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bifolio.errors import MissingPathError


@dataclass(frozen=True)
class Found:
    """What there is at the paths that the user gave.

    Attributes:
        files: The absolute, resolved path of each file, and the name to show, which is the user's name with ``/``
            separators.
        links: Symbolic links that are not followed, those out of their folder and dangling ones: name and reason, in
            sorted order for each path. A link to a file that is read anyway, under another of the paths, is none.
        unlisted: Folders below a path that cannot be listed: the absolute path, name and reason.
    """

    files: list[tuple[Path, str]]
    links: list[tuple[str, str]]
    unlisted: list[tuple[Path, str, str]]


def look(paths: Iterable[str | Path]) -> Found:
    """Expand files and folders into the files to read.

    Folders are walked in sorted order. Hidden entries, symbolic links that leave the folder and entries that are not
    regular files are left out. A file reached twice is listed once, under the name met first (its own name before that
    of a link to it).

    Args:
        paths: Files and folders as the user named them.

    Raises:
        MissingPathError: A path does not exist, is neither file nor folder, cannot be listed, or holds no file.
    """
    given = list(map(Path, paths))
    found: dict[Path, str] = {}
    left_out: dict[Path, Path | None] = {}
    unlisted: dict[Path, str] = {}
    for one in given:
        if one.is_dir():
            before = len(unlisted)
            pairs = _walk(one, left_out, unlisted)
            if one in unlisted:
                raise MissingPathError(f"cannot list folder {one}: {unlisted[one]}")
            if not pairs and len(unlisted) == before:
                raise MissingPathError(f"no file in folder: {one} (hidden files and links out of it are not read)")
        elif one.is_file():
            pairs = [(one.resolve(), one)]
        elif os.path.lexists(one):
            raise MissingPathError(f"neither a file nor a folder: {one}")
        else:
            raise MissingPathError(f"no such file or folder: {one}")
        for resolved, named in pairs:
            found.setdefault(resolved, _source_name(named))
    folders = [path.resolve() for path in given if path.is_dir()]
    links = [
        (_source_name(link), f"a link out of the folder, to {_source_name(target)}" if target else "a dangling link")
        for link, target in left_out.items()
        if target is None or (target not in found and target not in folders)
    ]
    shut = [(folder.resolve(), _source_name(folder), f"cannot be listed: {why}") for folder, why in unlisted.items()]
    return Found(list(found.items()), links, shut)


def find_files(paths: Iterable[str | Path]) -> list[tuple[Path, str]]:
    """The files that :func:`look` finds, where all of them are needed.

    Raises:
        MissingPathError: as :func:`look`; or a folder below a path cannot be listed.
    """
    found = look(paths)
    for _, name, reason in found.unlisted:
        raise MissingPathError(f"folder {name} {reason}")
    return found.files


def _walk(root: Path, left_out: dict[Path, Path | None], unlisted: dict[Path, str]) -> list[tuple[Path, Path]]:
    """All files under ``root``, real entries first, so that a file has its own name rather than a link's.

    ``left_out`` takes the links that are not followed, each with its target (None if it has none); ``unlisted`` the
    folders that cannot be looked into, each with the reason.
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
        real = folder.resolve()
        if real in entered:  # a cycle of links
            continue
        entered.add(real)
        try:
            entries = _entries(folder)
        except OSError as error:
            unlisted[folder] = error.strerror or type(error).__name__
            continue
        for entry in entries:
            if entry.is_symlink():
                links.append(Path(entry.path))
            elif entry.is_dir():
                folders.append(Path(entry.path))
            elif entry.is_file():
                found.setdefault(real / entry.name, Path(entry.path))
    left_out.update(sorted(outside.items(), key=lambda pair: pair[0].parts))
    return sorted(found.items(), key=lambda pair: pair[1].parts)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _target(link: Path) -> Path | None:
    """What a link leads to; None if it is dangling, or leads to itself (RuntimeError before Python 3.13)."""
    try:
        return link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None


def _source_name(path: Path) -> str:
    """The user's name of a path; bytes that are no text in the file system's charset become U+FFFD."""
    return path.as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "replace")
