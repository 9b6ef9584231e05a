"""Passages with vectors, as the ``datasets`` library stores them: Arrow files and Parquet files, read batch by batch.

``Dataset.save_to_disk`` writes a folder with ``state.json``, which names the ``.arrow`` files that belong to it (others
beside them are its cache); ``DatasetDict.save_to_disk`` a folder of such folders. The hub keeps ``.parquet`` files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from bifolio.corpus.cleaning import clean
from bifolio.corpus.files import find_files
from bifolio.errors import DocumentError, MissingExtraError, MissingPathError, SkippedDocument
from bifolio.types import Document, Mark

_SUFFIXES = (".arrow", ".parquet")
_ROWS = 1000  # that are taken at once
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream; without it the file may have been cut between two batches
# How files begin; _FILE is Arrow's other format, with an index at its end.
_STREAM, _FILE, _PARQUET = b"\xff\xff\xff\xff", b"ARROW1", b"PAR1"


def find_shards(paths: Iterable[str | Path]) -> list[tuple[Path, str]]:
    """The files of data sets, as ``find_files`` gives them.

    Args:
        paths: Files, folders that ``save_to_disk`` wrote, and folders of Parquet files.

    Raises:
        MissingPathError: A path does not exist, there is no data set, or a file of one is missing.
    """
    given = list(map(Path, paths))
    named = {path.resolve() for path in given if not path.is_dir()}
    found: list[tuple[Path, str]] = []
    folders: dict[Path, set[str] | None] = {}
    for path, source in find_files(given):
        if path in named:
            found.append((path, source))
        elif path.suffix in _SUFFIXES:
            if path.parent not in folders:
                folders[path.parent] = _listed(path.parent)
            listed = folders[path.parent]
            if listed is None or path.name in listed:
                found.append((path, source))
    for path in given:
        for state in sorted(path.glob("**/state.json")) if path.is_dir() else ():
            for name in _listed(state.parent) or ():
                if (state.parent / name).resolve() not in dict(found):
                    raise MissingPathError(f"{state} names {name}, which is not there: the data set is incomplete")
    if not found:
        shown = ", ".join(map(str, given)) or "no path at all"
        raise MissingPathError(f"no data set in {shown}: expected what save_to_disk writes, or .parquet files")
    return found


def _listed(folder: Path) -> set[str] | None:
    """The data files that a folder's ``state.json`` names; None where there is none."""
    state = folder / "state.json"
    if not state.is_file():
        return None
    try:
        facts = json.loads(state.read_text(encoding="utf-8"))
        names = [str(file["filename"]) for file in facts["_data_files"]]
        chosen = facts.get("_indices_data_files")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MissingPathError(f"{state} cannot be read ({type(error).__name__}: {error})") from error
    if chosen:
        raise MissingPathError(f"{state} is a selection of rows: save it after flatten_indices(), as its rows alone")
    if any(Path(name).name != name for name in names):
        raise MissingPathError(f"{state} names files outside of its folder: {', '.join(names[:3])}")
    return set(names)


def read_vectors(path: Path, column: str) -> Iterator[tuple[list[Document], Float32[np.ndarray, "n D"]]]:
    """Read the columns ``id``, ``title``, ``text`` and that of the vectors; other plain columns become metadata.

    ``id`` and ``title`` may be missing. Rows are counted from 1, as lines are.

    Args:
        path: An Arrow or Parquet file.
        column: Name of the column of vectors: lists of floats, all of one length.

    Yields:
        Up to a thousand passages and their vectors, one each.

    Raises:
        SkippedDocument: The file is neither.
        DocumentError: The file is damaged, or a column is missing, of a wrong type or has a gap; the message says
            which, and where.
        MissingExtraError: pyarrow is not installed.
    """
    arrow = _pyarrow()
    row, length = 0, None
    try:
        for batch in _batches(path):
            batch.validate(full=True)  # whoever wrote the offsets may have meant harm
            for start in range(0, batch.num_rows, _ROWS):
                part = batch.slice(start, _ROWS)
                vectors = _vectors(part, column, row, length)
                length = vectors.shape[1]
                yield _documents(part, column, row), vectors
                row += part.num_rows
    except (arrow.ArrowException, MemoryError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # the disk's fault, not the file's
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DocumentError(f"damaged or cut short after row {row} ({reason}): fetch it again") from error


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "datasets", "reading a data set with vectors") from None
    return pyarrow


def _batches(path: Path) -> Iterator[Any]:
    """Record batches, each read when it is asked for: one is in memory at a time."""
    arrow = _pyarrow()
    with path.open("rb") as file:
        start = file.read(len(_FILE))
        size = file.seek(0, 2)
        file.seek(max(0, size - len(_END)))
        end = file.read()
    # The name may be a hash, as in the hub's own cache.
    if start.startswith(_PARQUET) or path.suffix == ".parquet":
        with arrow.parquet.ParquetFile(path, pre_buffer=False) as table:
            yield from table.iter_batches(batch_size=_ROWS)
        return
    if not (start == _FILE or start.startswith(_STREAM) or path.suffix == ".arrow"):
        raise SkippedDocument("not a data set file: expected .arrow or .parquet")
    with arrow.OSFile(str(path), "rb") as file:
        if start == _FILE:
            with arrow.ipc.open_file(file) as table:
                yield from (table.get_batch(number) for number in range(table.num_record_batches))
            return
        if end != _END:
            raise DocumentError("cut short, or not Arrow: it does not end as an Arrow stream does; fetch it again")
        with arrow.ipc.open_stream(file) as stream:
            yield from stream


def _column(batch: Any, name: str) -> Any:
    """A column; a name that two columns have is no name."""
    if batch.schema.names.count(name) != 1:
        there = ", ".join(batch.schema.names[:20])
        what = "no column" if name not in batch.schema.names else "several columns"
        raise DocumentError(f"{what} {name!r}: its columns are {there}")
    return batch.column(batch.schema.get_field_index(name))


def _texts(batch: Any, name: str, row: int, *, integers: bool = False, gaps: bool = False) -> list[str]:
    """A column of texts; ``integers`` and ``gaps`` (as "") only where they are allowed."""
    arrow = _pyarrow()
    column, types = _column(batch, name), arrow.types
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if not (types.is_string(kind) or types.is_large_string(kind) or (integers and types.is_integer(kind))):
        raise DocumentError(f"column {name!r} is of type {kind}; expected string{' or integers' if integers else ''}")
    values = column.to_pylist()
    if not gaps and None in values:
        raise DocumentError(f"row {row + values.index(None) + 1}: column {name!r} has no value there")
    return ["" if value is None else str(value) for value in values]


def _documents(batch: Any, column: str, row: int) -> list[Document]:
    """The rows of a batch, the first of which is the file's ``row + 1``."""
    types, names = _pyarrow().types, batch.schema.names
    texts = _texts(batch, "text", row)
    titles = _texts(batch, "title", row, gaps=True) if "title" in names else [""] * len(texts)
    ids = _texts(batch, "id", row, integers=True) if "id" in names else [""] * len(texts)
    other: dict[str, list[Any]] = {}
    for field in batch.schema:
        if field.name in {"id", "title", "text", column}:
            continue
        if _is_plain_type(types, field.type) or (
            _is_list(types, field.type) and _is_text(types, field.type.value_type)
        ):
            other[clean(field.name)] = _column(batch, field.name).to_pylist()
        elif field.name == "access":
            raise DocumentError(f"column 'access' is of type {field.type}; expected labels: texts or lists of texts")
    if "access" in other:  # nobody may see a row by mistake
        for at, value in enumerate(other["access"]):
            if not value or (isinstance(value, list) and not all(value)):
                raise DocumentError(f"row {row + at + 1}: access is {value!r}; expected a label, or a list of labels")
    return [
        Document(
            text=clean(text),
            title=clean(title).strip(),
            member=clean(ids[at]).strip(),
            media_type="application/vnd.apache.arrow",
            marks=(Mark(0, line=row + at + 1),),
            metadata={name: _plain(values[at]) for name, values in other.items() if _is_plain(values[at])},
            whole=True,
        )
        for at, (text, title) in enumerate(zip(texts, titles, strict=True))
    ]


def _is_text(types: Any, kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _is_plain_type(types: Any, kind: Any) -> bool:
    numbers = types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind)
    return bool(numbers or _is_text(types, kind))


def _is_plain(value: Any) -> bool:
    """Neither a gap nor what JSON has no word for."""
    if isinstance(value, list):
        return bool(value) and all(one is not None for one in value)
    return value is not None and not (isinstance(value, float) and not np.isfinite(value))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(clean(one) for one in value)
    return clean(value) if isinstance(value, str) else value


def _vectors(batch: Any, name: str, row: int, length: int | None) -> Float32[np.ndarray, "n D"]:
    """The vectors of a batch; ``length`` is that of those before, if there are any."""
    arrow = _pyarrow()
    column, types = _column(batch, name), arrow.types
    kind = column.type
    lists = _is_list(types, kind) or types.is_fixed_size_list(kind)
    if not lists or not types.is_floating(kind.value_type):
        raise DocumentError(f"column {name!r} is of type {kind}; expected a list of floats in every row")
    gaps = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
    if len(gaps):
        raise DocumentError(f"row {row + int(gaps[0]) + 1}: column {name!r} has no value there")
    lengths = arrow.compute.list_value_length(column).to_numpy(zero_copy_only=False)
    length = int(lengths[0]) if length is None else length
    odd = np.flatnonzero(lengths != length)
    if len(odd):
        raise DocumentError(
            f"row {row + int(odd[0]) + 1}: column {name!r} has {lengths[odd[0]]} values, {length} in the rows above"
        )
    values = column.flatten()
    if values.null_count:
        at = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]) // length
        raise DocumentError(f"row {row + at + 1}: column {name!r} has a gap among its values")
    with np.errstate(over="ignore"):  # becomes infinity, which whoever checks the values reports
        flat = values.to_numpy(zero_copy_only=False).astype(np.float32)
    vectors: Float32[np.ndarray, "n D"] = flat.reshape(len(lengths), length)
    return vectors
