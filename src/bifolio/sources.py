"""Which files an ingest or a sync is about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bifolio.corpus.files import find_files, skipped_links
from bifolio.errors import MissingPathError, UsageError
from bifolio.imported import VectorSource
from bifolio.ingest import Sources
from bifolio.ingest_options import IngestOptions
from bifolio.ingest_report import FileReport


def find_sources(
    paths: Sequence[str | Path],
    collection: Path,
    options: IngestOptions,
    vectors: VectorSource | None = None,
    *,
    sync: bool = False,
) -> Sources:
    """The files to read; a collection does not read itself.

    Args:
        paths: Files and folders.
        collection: Where the collection is or will be.
        options: Which of the files are meant.
        vectors: Where they have their vectors, if they have some.
        sync: Whether what is gone below the paths is to be removed. Then a path that does not exist is no error if its
            folder does: it is a file that is gone.

    Raises:
        UsageError: ``paths`` is one path and not a list of them.
        MissingPathError: a path does not exist, or there is no file.
    """
    if isinstance(paths, str | Path):
        raise UsageError(f"paths is {paths!r}: expected a list of paths, such as [{str(paths)!r}]")
    home = collection.resolve()
    find = vectors.find if vectors else find_files
    found = [(path, source) for path, source in find(paths) if not path.is_relative_to(home)]
    if not found:
        raise MissingPathError(f"no file to read in {', '.join(map(str, paths)) or 'no path at all'}")
    skipped = [FileReport(name, "skipped", reason, 0) for name, reason in skipped_links(paths)]
    roots = tuple(Path(path).resolve() for path in paths)
    return Sources([(path, source, roots[0]) for path, source in found], skipped, roots if sync else ())
