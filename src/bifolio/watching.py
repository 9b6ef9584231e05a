"""Waiting for files to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bifolio.errors import MissingExtraError

_QUIET_MS = 1600  # without another change before something is done: an editor writes a file in several steps


def changes(paths: Sequence[str | Path], collection: str | Path) -> Iterator[None]:
    """Yield whenever something below the paths has changed and is quiet again; for ever, until interrupted.

    Changes in the collection itself do not count.

    Raises:
        MissingExtraError: watchfiles is not installed.
    """
    try:
        from watchfiles import watch
    except ImportError as error:
        raise MissingExtraError("watchfiles", "watch", "--watch") from error
    home = str(Path(collection).resolve())
    # Folders are watched, not files: an editor puts a new file in the place of the old one.
    folders = {path if path.is_dir() else path.parent for path in (Path(path).resolve() for path in paths)}
    for found in watch(*folders, debounce=_QUIET_MS, raise_interrupt=True):
        if any(not Path(path).is_relative_to(home) for _, path in found):
            yield
