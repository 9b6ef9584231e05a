"""How files are found and read by ``build``, ``ingest`` and ``sync``, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from bifolio.corpus.splitting import SplitOptions
from bifolio.errors import UsageError
from bifolio.types import Document


@dataclass(frozen=True)
class IngestOptions:
    """How files are found and read.

    Attributes:
        as_passages: Every record of a .jsonl or .tsv file, also in gzip, is a passage of its own, with its own id.
        vectors: The paths are data sets as the ``datasets`` library saves them, or .parquet files, and the vectors are
            those of this column: nothing is encoded but a sample, which is compared with them.
        split: How documents are split; as before when left out, and in a new collection about 100 words at sentence
            ends.
        metadata: Metadata of documents from where they lie, such as ``{product}/{year}/*`` below the path given, or a
            function of path and document that returns them; beside front matter and ``NAME.meta.json`` files.
        include: Only files whose path below the one given matches one of these globs.
        exclude: No files whose path matches one of these.
        gitignore: Whether .gitignore files are heeded.
        checksum: Read every file, also where size and time of change are as they were.
        wait: Seconds to wait for another writer.

    Raises:
        UsageError: a value is of a wrong kind.
    """

    as_passages: bool = False
    vectors: str | None = None
    split: SplitOptions | None = None
    metadata: str | Callable[[Path, Document], Mapping[str, Any]] | None = None
    include: Annotated[tuple[str, ...], "Only files that match one of these globs."] = ()
    exclude: Annotated[tuple[str, ...], "No files that match one of these globs."] = ()
    gitignore: bool = True
    checksum: Annotated[bool, "Read every file, also one whose size and time of change are as they were."] = False
    wait: Annotated[float, "Seconds to wait for another writer."] = 5.0

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            globs = getattr(self, name)
            if isinstance(globs, str) or not all(isinstance(glob, str) for glob in globs):
                raise UsageError(f"{name} is {globs!r}: expected a list of globs, such as ['*.md']")
            object.__setattr__(self, name, tuple(globs))
        if isinstance(self.wait, bool) or not isinstance(self.wait, int | float) or not 0 <= self.wait < 1e9:
            raise UsageError(f"wait {self.wait!r}: expected seconds from 0 on")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> IngestOptions:
        """From keyword arguments.

        Raises:
            UsageError: one is unknown.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise UsageError(f"unknown option {name!r}: expected one of {', '.join(known)}")
        return cls(**options)
