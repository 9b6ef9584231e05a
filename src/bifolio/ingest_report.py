"""What an ingest tells while it runs, and what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class FileReport:
    """How one file went.

    Attributes:
        path: The file as the user named it.
        status: ``ok``, ``warning``, ``skipped``, ``failed`` or ``unchanged``.
        reason: Why, for a person; "" when there is nothing to say.
        passages: Passages that the collection has of it now.
    """

    path: str
    status: str
    reason: str
    passages: int


@dataclass(frozen=True)
class IngestReport:
    """What an ingest did; ``documents`` and ``passages`` count the whole collection afterwards.

    Attributes:
        collection: Path of the collection.
        generation: Name of the state that the collection has now.
        documents: Documents in it.
        passages: Passages in it.
        added: Passages that this ingest encoded, or whose vectors it took over; those that were only moved have theirs
            already.
        files: One report per file, in the order of reading.
        seconds: Wall time.
    """

    collection: str
    generation: str
    documents: int
    passages: int
    added: int
    files: tuple[FileReport, ...]
    seconds: float


@dataclass(frozen=True)
class IngestProgress:
    """Where an ingest is.

    Attributes:
        stage: ``read`` (the unit is files) or ``encode`` (the unit is passages).
        done: Units done.
        total: Units in all.
        current: What is being worked on.
        passages: How many of the file's passages are done so far, where it has many.
    """

    stage: str
    done: int
    total: int
    current: str = ""
    passages: int = 0


OnProgress = Callable[[IngestProgress], None]
