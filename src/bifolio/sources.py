"""Which files an ingest or a sync is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bifolio.corpus.files import Found, look
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
    sync: Callable[[Path], bool] | None = None,
) -> Sources:
    """The files to read; a collection does not read itself.

    Args:
        paths: Files and folders.
        collection: Where the collection is or will be.
        options: Which of the files are meant.
        vectors: Where they have their vectors, if they have some.
        sync: Given where what is gone below the paths is to be removed; says whether the collection has a file of a
            path. A path that does not exist is no error if it was a file, and the folder that it was in is there.

    Raises:
        UsageError: ``paths`` is one path and not a list of them, or a glob is none.
        MissingPathError: a path does not exist, or there is no file.
    """
    if isinstance(paths, str | Path):
        raise UsageError(f"paths is {paths!r}: expected a list of paths, such as [{str(paths)!r}]")
    home = collection.resolve()
    gone = [path for path in map(Path, paths) if sync is not None and _is_gone(path, sync)]
    there = [path for path in paths if Path(path) not in gone]
    all_of = look(there) if there else Found([], [], [])
    named = vectors.find(there) if vectors and there else all_of.files
    found = [(path, source) for path, source in named if not path.is_relative_to(home)]
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
    if not files and not all_of.unlisted and not (gone and not there):
        left = f"; {len(found)} are left out by globs or .gitignore" if found else ""
        raise MissingPathError(f"no file to read in {', '.join(map(str, paths)) or 'no path at all'}{left}")
    reports = [FileReport(name, "skipped", reason, 0) for name, reason in all_of.links]
    reports += [FileReport(name, "failed", reason, 0) for _, name, reason in all_of.unlisted]
    ends = () if sync is None else (*roots, *(path.resolve() for path in gone))
    return Sources(files, reports, ends, tuple(path for path, _, _ in all_of.unlisted))


def _is_gone(path: Path, known: Callable[[Path], bool]) -> bool:
    """Whether a path is that of a file that is gone; a folder that is gone may be a disk that is not mounted."""
    return not path.exists() and path.absolute().parent.is_dir() and known(path.resolve())
