"""Waiting for files to change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bifolio.errors import MissingExtraError

_QUIET_MS = 500  # without another change before something is done: an editor writes a file in several steps
_LONGEST_MS = 5000  # that changes may go on before something is done all the same
_LOOK_SECONDS = 60.0  # not every disk tells of its changes, one that is in the network for one


def changes(
    paths: Sequence[str | Path], collection: str | Path, *, tick_ms: int = 5000, look: float = _LOOK_SECONDS
) -> Iterator[bool]:
    """Yield True whenever something below the paths may have changed, for ever, until interrupted.

    That is when a change was told and all is quiet again, once soon after the beginning, for what changed before it,
    and every ``look`` seconds. False is yielded every ``tick_ms`` milliseconds in between, so that what failed can be
    tried again. Changes in the collection itself do not count.

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
    told = watch(
        *folders,
        debounce=_LONGEST_MS,
        step=_QUIET_MS,
        rust_timeout=tick_ms,
        yield_on_timeout=True,
        raise_interrupt=True,
    )
    due = time.monotonic()
    for found in told:
        now = time.monotonic()
        changed = now >= due or any(not Path(path).is_relative_to(home) for _, path in found)
        if changed:
            due = now + look
        yield changed
