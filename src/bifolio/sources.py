"""Which files an ingest or a sync is about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bifolio.corpus.files import find_files, skipped_links
from bifolio.corpus.ignoring import Ignoring
from bifolio.corpus.metadata import is_sidecar
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
        sync: Whether what is gone below the paths is to be removed. Then a path that does not exist is no error if the
            folder that it was in does: it is a file that is gone.

    Raises:
        UsageError: ``paths`` is one path and not a list of them, or a glob is none.
        MissingPathError: a path does not exist, or there is no file.
    """
    if isinstance(paths, str | Path):
        raise UsageError(f"paths is {paths!r}: expected a list of paths, such as [{str(paths)!r}]")
    home = collection.resolve()
    gone = [path for path in map(Path, paths) if sync and not path.exists() and path.absolute().parent.is_dir()]
    there = [path for path in paths if Path(path) not in gone]
    find = vectors.find if vectors else find_files
    found = [(path, source) for path, source in find(there) if not path.is_relative_to(home)] if there else []
    roots = {Path(path).resolve() for path in there}
    known: dict[Path, Ignoring | None] = {}
    files = []
    for path, source in found:
        root = next((folder for folder in (path, *path.parents) if folder in roots), path)
        if root not in known:
            chosen = {"include": options.include, "exclude": options.exclude, "gitignore": options.gitignore}
            known[root] = Ignoring(root, **chosen) if root.is_dir() and vectors is None else None  # type: ignore[arg-type]
        ignoring = known[root]
        if (ignoring is None or not ignoring.leaves_out(path)) and not is_sidecar(path):
            files.append((path, source, root if root != path else path.parent))
    if not files and not (gone and not there):
        left = f"; {len(found)} are left out by globs or .gitignore" if found else ""
        raise MissingPathError(f"no file to read in {', '.join(map(str, paths)) or 'no path at all'}{left}")
    skipped = [FileReport(name, "skipped", reason, 0) for name, reason in skipped_links(there)]
    ends = (*roots, *(path.absolute() for path in gone)) if sync else ()
    return Sources(files, skipped, ends)
