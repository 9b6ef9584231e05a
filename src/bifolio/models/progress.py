"""How a pull tells what it is doing; showing it is the command line's business."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

INTERVAL = 0.3


@dataclass(frozen=True)
class Progress:
    """One report of a pull.

    Attributes:
        stage: What is going on.
        done: Bytes so far.
        total: Bytes in all; None when unknown.
        message: A sentence for a person; "" when there is nothing to add to the numbers.
    """

    stage: Literal["download", "verify", "convert"]
    done: int
    total: int | None
    message: str = ""


OnProgress = Callable[[Progress], None]


def silent(report: Progress) -> None:
    """The callback of those who do not want to know."""
    del report


def bytes_below(folder: Path) -> int:
    """Bytes of all files below a folder that may be changing meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # a temporary file that was renamed between the listing and the look at it
                continue
    return total


def growth(folder: Path, total: int | None) -> Progress:
    """A report of a download into a folder; a file that is being moved may be seen twice, so no more than the total."""
    done = bytes_below(folder)
    return Progress("download", done if total is None else min(done, total), total)


class Watch:
    """While entered, reports the growth of a folder from a thread of its own: the download cannot be asked for it."""

    def __init__(self, folder: Path, total: int | None, on_progress: OnProgress) -> None:
        """Watch ``folder``, which will have ``total`` bytes."""
        self._folder, self._total, self._on_progress = folder, total, on_progress
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        """Report until told to stop; what the callback raises is kept for the thread that entered."""
        try:
            while not self._stop.wait(INTERVAL):
                self._on_progress(growth(self._folder, self._total))
        except BaseException as error:  # re-raised in __exit__
            self._error = error

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error
