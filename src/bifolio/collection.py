"""The collection: the non-parametric memory, a folder of catalogue, vectors and index.

::

    manuals/
      catalogue.sqlite    files, documents, passages, spans, and the encoder's fingerprint: the single truth
      vectors/*.f32       one file per ingest, written once, named by the catalogue with its checksum
      index/*             the dense index where it is more than the vectors; derived, rebuilt when missing
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from bifolio.catalogue import Catalogue, FileRow, Segment
from bifolio.corpus.splitting import SplitOptions
from bifolio.errors import (
    CollectionDamagedError,
    CollectionExistsError,
    EncoderMismatchError,
    NotFoundError,
    UsageError,
)
from bifolio.ingest import IngestReport, OnProgress, find_sources, ingest
from bifolio.loading import load_encoder
from bifolio.models import DEFAULT_ENCODER
from bifolio.protocols import DenseIndex, Encoder
from bifolio.registry import resolve
from bifolio.retriever import Retriever
from bifolio.staging import beside, check_free
from bifolio.types import Hit, Passage
from bifolio.vector_files import live_blocks

_LOG = logging.getLogger("bifolio")
_CATALOGUE = "catalogue.sqlite"


def _silent(_: object) -> None:
    """No progress."""


def _checked(catalogue: Catalogue) -> dict[str, Any]:
    """The collection's own facts, those that everything else stands on being there."""
    meta = catalogue.meta()
    try:
        encoder = meta["encoder"]
        numbers = (encoder["dimension"], meta["generation"], meta["next_row"])
        names = (encoder["model"], encoder["fingerprint"], meta["index"])
    except (KeyError, TypeError) as error:
        raise CollectionDamagedError(f"{catalogue.path} lacks {error}: restore it from a backup") from error
    if not all(isinstance(n, int) for n in numbers) or not all(isinstance(n, str) for n in names):
        raise CollectionDamagedError(f"{catalogue.path} has facts of a wrong kind: restore it from a backup")
    return meta


class Collection:
    """Passages with their vectors, opened at one generation. Safe to use from many threads."""

    def __init__(
        self, path: Path, catalogue: Catalogue, encoder: Encoder | None, *, device: str = "auto", dtype: str = "auto"
    ) -> None:
        """Use :meth:`build` or :meth:`open`."""
        self.path = path
        self._folder = path.absolute()  # also after a change of the current folder
        self._catalogue = catalogue
        self._meta = _checked(catalogue)
        self._device, self._dtype = device, dtype
        self._encoder: Encoder | None = None
        self._index: DenseIndex | None = None
        self._lock = threading.RLock()
        self.report: IngestReport | None = None
        """What the latest ``build`` or ``ingest`` through this object did."""
        if encoder is not None:
            self._encoder = self._same(encoder)

    # ---- making and opening ----

    @classmethod
    def build(
        cls,
        paths: Sequence[str | Path],
        path: str | Path,
        *,
        encoder: str | Encoder = DEFAULT_ENCODER,
        device: str = "auto",
        dtype: str = "auto",
        index: str = "exact",
        as_passages: bool = False,
        split: SplitOptions | None = None,
        on_progress: OnProgress = _silent,
    ) -> Collection:
        """Make a new collection of files and folders; nothing appears at ``path`` before all of it is there.

        Args:
            paths: Files and folders (read recursively).
            path: Folder of the new collection.
            encoder: A model id, or an encoder.
            device: Where an encoder given by its id runs: ``auto``, ``cpu``, ``cuda`` ...
            dtype: What it computes in: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
            index: ``exact``, ``faiss:flat`` or ``faiss:hnsw``.
            as_passages: Every record of a .jsonl or .tsv file is a passage of its own, with its own id.
            split: How documents are split; about 100 words at sentence ends when left out.
            on_progress: Told of every file and every batch.

        Raises:
            CollectionExistsError: something is at ``path`` already.
            UsageError: the index is unknown, or a folder at ``path`` cannot be replaced.
            MissingPathError: a path does not exist, or there is nothing readable.
            ModelMissingError: the encoder is not in the cache.
        """
        if isinstance(paths, str | Path):
            raise UsageError(f"paths is {paths!r}: expected a list of paths, such as [{str(paths)!r}]")
        if cls.exists(path):
            raise CollectionExistsError(f"{path} is a collection already; add to it with ingest instead")
        target = check_free(Path(path))
        # What is wrong with the arguments is told before anything is loaded.
        sources = find_sources(paths, target)
        index_class, argument = resolve("index", index)
        index_class(1, argument)
        loaded = load_encoder(encoder, device=device, dtype=dtype) if isinstance(encoder, str) else encoder
        with beside(target) as folder:
            catalogue = Catalogue.create(folder / _CATALOGUE)
            try:
                catalogue.set_meta({"encoder": asdict(loaded.spec), "index": index, "generation": 0, "next_row": 0})
                report = cls(folder, catalogue, loaded)._ingest(
                    sources, as_passages=as_passages, split=split, on_progress=on_progress
                )
            finally:
                catalogue.close()  # folds the write-ahead log into the file
        opened = cls.open(path, encoder=loaded)
        opened.report = replace(report, collection=str(path))
        return opened

    @classmethod
    def open(
        cls, path: str | Path, *, encoder: Encoder | None = None, device: str = "auto", dtype: str = "auto"
    ) -> Collection:
        """Open a collection at its newest generation, and stay there until the next ``ingest`` through this object.

        The encoder is loaded when it is first needed: looking at passages needs no model.

        Raises:
            CollectionMissingError: there is none at ``path``.
            CollectionDamagedError: bytes are missing or wrong.
            CollectionVersionError: written by a newer bifolio.
            EncoderMismatchError: ``encoder`` is not the one that it was built with.
        """
        folder = Path(path)
        catalogue = Catalogue.open(folder.absolute() / _CATALOGUE)
        try:
            return cls(folder, catalogue, encoder, device=device, dtype=dtype)
        except BaseException:
            catalogue.close()
            raise

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Whether there is a collection at ``path``, in whatever state."""
        return (Path(path) / _CATALOGUE).exists()

    def require(self, *, encoder: str | None = None, index: str | None = None) -> None:
        """Raise ``UsageError`` if this collection has another encoder or index than the ones asked for."""
        for name, asked, has in (
            ("encoder", encoder, self._meta["encoder"]["model"]),
            ("index", index, self._meta["index"]),
        ):
            if asked is not None and asked != has:
                raise UsageError(f"{self.path} has {name} {has}, not {asked}: leave it out, or make a new collection")

    def close(self) -> None:
        """Close the catalogue; the object cannot be used afterwards."""
        self._catalogue.close()

    def __enter__(self) -> Collection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ingest(
        self,
        paths: Sequence[str | Path],
        *,
        as_passages: bool = False,
        split: SplitOptions | None = None,
        on_progress: OnProgress = _silent,
    ) -> IngestReport:
        """Add new files and update changed ones, all in one transaction; nothing is deleted.

        Raises:
            MissingPathError: a path does not exist, or there is nothing readable.
            CollectionBusyError: another process is writing.
        """
        if isinstance(paths, str | Path):
            raise UsageError(f"paths is {paths!r}: expected a list of paths, such as [{str(paths)!r}]")
        sources = find_sources(paths, self.path)
        return self._ingest(sources, as_passages=as_passages, split=split, on_progress=on_progress)

    def _ingest(
        self,
        sources: Sequence[tuple[Path, str]],
        *,
        as_passages: bool,
        split: SplitOptions | None,
        on_progress: OnProgress,
    ) -> IngestReport:
        with self._lock:
            try:
                report = ingest(
                    self._catalogue,
                    self.encoder,
                    sources,
                    as_passages=as_passages,
                    options=split or SplitOptions(),
                    on_progress=on_progress,
                    index=self._update_index,
                )
            finally:  # also after a failure this object reads the newest generation, perhaps another writer's
                self._meta = _checked(self._catalogue)
                self._index = None
            self.report = replace(report, collection=str(self.path))
            return self.report

    # ---- reading ----

    @property
    def generation(self) -> str:
        """Name of the state that this object reads."""
        return str(self._meta["generation"])

    @property
    def encoder(self) -> Encoder:
        """The encoder that the vectors were made with, loaded on first use.

        Raises:
            ModelMissingError: it is not in the cache.
            EncoderMismatchError: the model of that name is another one by now.
        """
        with self._lock:
            if self._encoder is None:
                model = self._meta["encoder"]["model"]
                self._encoder = self._same(load_encoder(model, device=self._device, dtype=self._dtype))
            return self._encoder

    def _same(self, encoder: Encoder) -> Encoder:
        mine, given = self._meta["encoder"]["fingerprint"], encoder.spec.fingerprint
        if mine != given:
            raise EncoderMismatchError(
                f"{self.path} was built with encoder {mine} ({self._meta['encoder']['model']}), and this is {given} "
                f"({encoder.spec.model}): their vectors cannot be compared. Use the first, or build a new collection"
            )
        return encoder

    def retrieve(self, question: str, k: int = 5) -> tuple[Hit, ...]:
        """The best passages for a question, best first; see :meth:`bifolio.Retriever.retrieve`."""
        return Retriever(self).retrieve(question, k)

    def nearest(self, query: Float32[np.ndarray, " D"], k: int) -> list[tuple[Passage, float]]:
        """The min(k, size) passages with the largest inner product with ``query``, best first, with it."""
        scores, rows = self._dense_index().search(query[None], k)
        passages = self._catalogue.by_rows(rows[0].tolist())
        if missing := [row for row in rows[0].tolist() if row not in passages]:
            raise CollectionDamagedError(f"{self.path}: the index names rows {missing} that have no passage")
        return [(passages[row], score) for row, score in zip(rows[0].tolist(), scores[0].tolist(), strict=True)]

    def passage(self, passage_id: str) -> Passage:
        """A passage by its id.

        Raises:
            NotFoundError: there is none.
        """
        found = self._catalogue.by_id(passage_id)
        if found is None:
            raise NotFoundError(f"no passage {passage_id!r} in {self.path}; ids are in the output of search and ask")
        return found

    def passages(self) -> Iterator[Passage]:
        """All passages, in the order in which they came in."""
        return self._catalogue.passages_between(0, int(self._meta["next_row"]))

    def context(self, passage_id: str, characters: int = 400) -> tuple[str, str]:
        """What stands before and after a passage in its document, up to ``characters`` each."""
        start, end = self.passage(passage_id).span
        text = self._catalogue.document_text(passage_id)
        return text[max(0, start - characters) : start], text[end : end + characters]

    def files(self) -> list[FileRow]:
        """The files of the collection, by name."""
        return self._catalogue.files()

    def counts(self) -> tuple[int, int]:
        """Documents and passages."""
        return self._catalogue.counts()

    def __len__(self) -> int:
        """How many passages there are."""
        return self.counts()[1]

    # ---- the dense index: derived from the vectors, never the truth ----

    @property
    def _dimension(self) -> int:
        return int(self._meta["encoder"]["dimension"])

    def _dense_index(self) -> DenseIndex:
        with self._lock:
            if self._index is None:
                saved = self._load_index()
                self._index = saved if saved is not None and len(saved) == len(self) else self._build_index()
            return self._index

    def _load_index(self) -> DenseIndex | None:
        """The saved index of the generation that the catalogue reads; None if there is none that can be used."""
        name = self._catalogue.meta().get("index_file")
        if not name:
            return None
        index_class, _ = resolve("index", self._meta["index"])
        try:
            index: DenseIndex = index_class.load(self._folder / "index" / name)
        except (CollectionDamagedError, FileNotFoundError) as error:
            _LOG.warning("the saved index cannot be used and is built anew from the vectors: %s", error)
            return None
        return index

    def _build_index(self) -> DenseIndex:
        index_class, argument = resolve("index", self._meta["index"])
        index: DenseIndex = index_class(self._dimension, argument)
        live = np.array(self._catalogue.live_rows(), dtype=np.int64)
        self._add(index, self._catalogue.segments(), live)
        return index

    def _add(self, index: DenseIndex, segments: Sequence[Segment], rows: Int64[np.ndarray, " N"]) -> None:
        for vectors, ids in live_blocks(self._folder / "vectors", segments, self._dimension, rows):
            try:
                index.add(vectors, ids)
            except UsageError as error:  # the vectors were in order when they were written
                raise CollectionDamagedError(
                    f"{self.path / 'vectors'}: {error}. Restore it from a backup or ingest again"
                ) from error

    def _update_index(self, segment: Segment | None, removed: bool) -> None:
        """Inside an ingest's transaction: save the index that belongs to the generation about to be committed."""
        if self._meta["index"] == "exact":  # the vectors are the index
            return
        index = None if removed else self._load_index()
        if index is not None and segment is not None:
            rows = np.arange(segment.first_row, segment.first_row + segment.rows, dtype=np.int64)
            self._add(index, [segment], rows)
        if index is None or len(index) != len(self):
            index = self._build_index()
        (self._folder / "index").mkdir(exist_ok=True)
        name = f"{self._catalogue.meta()['generation']}-{secrets.token_hex(4)}.index"
        index.save(self._folder / "index" / name)
        self._catalogue.set_meta({"index_file": name})
