"""Which of the files below a folder are meant: globs of the user's, and .gitignore files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pathspec

from bifolio.errors import UsageError

_NAME = ".gitignore"
_LARGEST = 1 << 20  # bytes of a .gitignore file


class Ignoring:
    """Says of files below one folder whether they are meant."""

    def __init__(
        self, root: Path, *, include: Sequence[str] = (), exclude: Sequence[str] = (), gitignore: bool = True
    ) -> None:
        """Globs are those of .gitignore, relative to ``root``: ``*.md``, ``old/``, ``docs/**/draft-*``.

        Raises:
            UsageError: one is no glob.
        """
        self._root = root
        self._include = _spec(include) if include else None
        self._exclude = _spec(exclude)
        self._gitignore = gitignore
        self._known: dict[Path, pathspec.GitIgnoreSpec | None] = {}
        self._shut: dict[Path, bool] = {root: False}

    def leaves_out(self, path: Path) -> bool:
        """Whether a file below the folder is not meant."""
        below = path.relative_to(self._root).as_posix()
        if self._include is not None and not self._include.match_file(below):
            return True
        if self._exclude.match_file(below):
            return True
        return self._gitignore and (self._folder_is_shut(path.parent) or self._ignored(path, ""))

    def _folder_is_shut(self, folder: Path) -> bool:
        """Whether a folder or one above it is ignored: git looks at nothing in it then."""
        if folder not in self._shut:
            self._shut[folder] = self._folder_is_shut(folder.parent) or self._ignored(folder, "/")
        return self._shut[folder]

    def _ignored(self, path: Path, end: str) -> bool:
        """What the nearest .gitignore file that says something says."""
        folder = path.parent
        while True:
            spec = self._spec_of(folder)
            if spec is not None:
                said = spec.check_file(path.relative_to(folder).as_posix() + end).include
                if said is not None:
                    return bool(said)
            if folder == self._root:
                return False
            folder = folder.parent

    def _spec_of(self, folder: Path) -> pathspec.GitIgnoreSpec | None:
        if folder not in self._known:
            spec = None
            try:
                file = folder / _NAME
                if file.is_file() and file.stat().st_size <= _LARGEST:
                    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
                    spec = pathspec.GitIgnoreSpec.from_lines(lines)
            except (OSError, ValueError):  # git says nothing either
                spec = None
            self._known[folder] = spec
        return self._known[folder]


def _spec(globs: Sequence[str]) -> pathspec.GitIgnoreSpec:
    try:
        return pathspec.GitIgnoreSpec.from_lines(globs)
    except ValueError as error:
        raise UsageError(f"globs {list(globs)!r}: {error}") from error
