"""What an ingest tells while it runs, and what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class FileReport:
    """How one file went.

    Attributes:
        path: The file as the user named it.
        status: ``ok``, ``warning``, ``skipped``, ``failed``, ``unchanged`` or ``removed``.
        reason: Why, for a person; "" when there is nothing to say.
        passages: Passages that the collection has of it now.
    """

    path: str
    status: str
    reason: str
    passages: int


@dataclass(frozen=True)
class IngestReport:
    """What an ingest or a sync did; ``documents`` and ``passages`` count the whole collection afterwards.

    Attributes:
        collection: Path of the collection.
        generation: Name of the state that the collection has now.
        documents: Documents in it.
        passages: Passages in it.
        added: Passages that were encoded, or whose vectors were taken over; those that the encoder has read before,
            wherever they stood, have theirs already.
        files: One report per file, in the order of reading; those that were removed last.
        seconds: Wall time.
        notes: What a person should know about the whole.
    """

    collection: str
    generation: str
    documents: int
    passages: int
    added: int
    files: tuple[FileReport, ...]
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class IngestProgress:
    """Where an ingest is.

    Attributes:
        stage: ``read`` (the unit is files), ``encode`` (the unit is passages) or ``index`` (passages).
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
