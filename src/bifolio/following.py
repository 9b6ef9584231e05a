"""Moving on to new generations while questions are answered."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from bifolio.errors import BifolioError

_LOG = logging.getLogger("bifolio")
INTERVAL = 0.2
"""Seconds between two looks."""


class Movable(Protocol):
    """What follows."""

    def refresh(self) -> bool:
        """Move on to the live generation; False if nothing has changed."""
        ...


class Follower:
    """A thread that lets a collection move on to the live generation as soon as it is another one.

    The new generation is opened and its indexes are loaded beside the old one, which answers until then: no question
    waits and none fails. The thread ends with :meth:`stop`, or when nobody holds the collection any more.
    """

    def __init__(self, collection: Movable, interval: float = INTERVAL) -> None:
        """Look every ``interval`` seconds."""
        self._stopped = threading.Event()
        follow = _follow(weakref.ref(collection), self._stopped, interval)
        self._thread = threading.Thread(target=follow, name="bifolio-follower", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; stopping twice is fine."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


def _follow(collection: Callable[[], Movable | None], stopped: threading.Event, interval: float) -> Callable[[], None]:
    def loop() -> None:
        told = ""
        while not stopped.wait(interval):
            movable = collection()
            if movable is None:
                return
            try:
                movable.refresh()
                told = ""
            except BifolioError as error:  # the generation that is open stays; whoever writes may still mend it
                if str(error) != told:
                    _LOG.warning("the newest generation cannot be opened, the one before is still read: %s", error)
                told = str(error)
            except Exception:
                if not stopped.is_set():
                    _LOG.exception("the newest generation cannot be opened, the one before is still read")
            del movable

    return loop
