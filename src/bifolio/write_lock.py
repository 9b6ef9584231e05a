"""One writer at a time, in any number of processes; who waits is told for whom.

The operating system gives the lock back when its holder ends, however it ends.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from bifolio.errors import CollectionBusyError, CollectionError
from bifolio.history import now

WAIT_SECONDS = 5.0
"""How long a writer waits for another one before it gives up."""
_NAME = "writer.lock"
_HOLDER = "writer.json"


@contextmanager
def write_lock(folder: Path, action: str, *, wait: float | None = None) -> Iterator[None]:
    """Hold the write lock of the collection in a folder.

    Args:
        folder: Of the collection.
        action: What it is held for, shown to others.
        wait: Seconds to wait for another writer; :data:`WAIT_SECONDS` when left out.

    Raises:
        CollectionBusyError: another writer holds it for longer than that.
        CollectionError: the folder cannot be written to.
    """
    lock = FileLock(folder / _NAME, thread_local=False)
    try:
        lock.acquire(timeout=WAIT_SECONDS if wait is None else wait)
    except Timeout as error:
        raise CollectionBusyError(
            f"{folder}: another process is writing to this collection{_holder(folder)}; try again later"
        ) from error
    except (OSError, NotImplementedError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise CollectionError(f"{folder} cannot be written: {what}; it is as it was") from error
    holder = folder / _HOLDER
    try:
        with suppress(OSError):  # only a courtesy
            facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": now(), "action": action}
            holder.write_text(json.dumps(facts), encoding="utf-8")
        yield
    finally:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def _holder(folder: Path) -> str:
    """Who holds the lock, as far as is known."""
    try:
        facts = json.loads((folder / _HOLDER).read_text(encoding="utf-8"))
        where = "" if facts["host"] == socket.gethostname() else f" on {facts['host']}"
        return f" ({facts['action']}, process {facts['pid']}{where}, since {facts['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
