"""Where passages come with their vectors: a column of a data set, or a FAISS index beside a file of passages."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bifolio.corpus.readers import read
from bifolio.corpus.readers.arrow import find_shards, read_vectors
from bifolio.errors import DocumentError
from bifolio.imported import Batches, VectorSource
from bifolio.types import Document

_LOT = 1000


def from_column(column: str) -> VectorSource:
    """The vectors of a data set's column; files are what ``save_to_disk`` writes, or Parquet."""
    return VectorSource(f"column {column!r}", column, partial(read_vectors, column=column), find_shards)


def from_faiss(index_file: str | Path) -> VectorSource:
    """The vectors of a FAISS index; files are .jsonl or .tsv, with the index's passages in the same order."""
    from bifolio.indexes.faiss_file import FaissFile

    path = Path(index_file)
    index, digest = FaissFile(path), hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)

    def batches(passages: Path) -> Batches:
        at = 0
        for lot in _lots(read(passages, as_passages=True)):
            for document in lot:
                if not document.text.strip():
                    line = document.marks[0].line
                    raise DocumentError(f"line {line}: no text, so which vector is whose cannot be told from the order")
            if at + len(lot) > len(index):
                raise DocumentError(f"it has more passages than {path} has vectors, {len(index)}")
            yield lot, index.read(at, len(lot))
            at += len(lot)
        if at != len(index):
            raise DocumentError(f"it has {at} passages, and {path} {len(index)} vectors; expected one each, in order")

    return VectorSource(str(path), f"faiss {digest.hexdigest()}", batches)


def _lots(documents: Iterator[Document]) -> Iterator[list[Document]]:
    while lot := list(itertools.islice(documents, _LOT)):
        yield lot
