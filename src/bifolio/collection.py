"""The collection: the non-parametric memory, a folder of catalogue, vectors and index.

::

    manuals/
      catalogue.sqlite    files, documents, passages, spans, and the encoder's fingerprint: the single truth
      vectors/*.f32       one file per ingest, written once, named by the catalogue with its checksum
      index/*             the dense index where it is more than the vectors; derived, rebuilt when missing
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bifolio.catalogue import Catalogue, FileRow
from bifolio.corpus.splitting import SplitOptions
from bifolio.errors import CollectionExistsError, EncoderMismatchError, UsageError
from bifolio.imported import VectorSource
from bifolio.ingest import Sources, find_sources, ingest
from bifolio.ingest_report import IngestReport, OnProgress
from bifolio.loading import load_encoder
from bifolio.models import DEFAULT_ENCODER
from bifolio.protocols import Encoder
from bifolio.registry import resolve
from bifolio.retriever import Retriever
from bifolio.snapshot import Snapshot
from bifolio.staging import beside, check_free
from bifolio.types import Hit, Passage
from bifolio.vector_sources import from_column, from_faiss

_CATALOGUE = "catalogue.sqlite"


def _silent(_: object) -> None:
    """No progress."""


def _passage_fingerprint(encoder: Encoder) -> str:
    """What the vectors of passages depend on; "" for an encoder that does not tell it from the questions' side."""
    return str(getattr(encoder, "passage_fingerprint", ""))


class Collection:
    """Passages with their vectors, opened at one generation. Safe to use from many threads.

    An ``ingest`` writes through a connection of its own: readers are neither blocked nor see a part of it, and move on
    to what it has made when it is done.
    """

    def __init__(
        self, path: Path, catalogue: Catalogue, encoder: Encoder | None, *, device: str = "auto", dtype: str = "auto"
    ) -> None:
        """Use :meth:`build` or :meth:`open`."""
        self.path = path
        self._now = Snapshot(path, catalogue)  # replaced as a whole, never changed: whoever reads takes it once
        self._file = catalogue.path  # absolute: also after a change of the current folder
        self._device, self._dtype = device, dtype
        self._encoder: Encoder | None = None
        self._loading = threading.Lock()
        self._writing = threading.RLock()  # one ingest after the other
        self.report: IngestReport | None = None
        """What the latest ``build`` or ``ingest`` through this object did."""
        if encoder is not None:
            self._encoder = self._same(encoder, questions_may_differ=True)

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
        vectors: str | None = None,
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
            as_passages: Every record of a .jsonl or .tsv file, also in gzip, is a passage of its own, with its own id.
            vectors: The paths are data sets as the ``datasets`` library saves them, or .parquet files, and the vectors
                are those of this column: nothing is encoded but a sample, which is compared with them.
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
        source = None if vectors is None else from_column(vectors)
        return cls._make(paths, path, source, encoder, device, dtype, index, as_passages, split, on_progress)

    @classmethod
    def from_faiss(
        cls,
        index_file: str | Path,
        passages: str | Path,
        path: str | Path,
        *,
        encoder: str | Encoder = DEFAULT_ENCODER,
        device: str = "auto",
        dtype: str = "auto",
        index: str = "exact",
        on_progress: OnProgress = _silent,
    ) -> Collection:
        """Make a new collection with the vectors of a FAISS index that was made elsewhere.

        Args:
            index_file: A flat or HNSW index; it is read into memory.
            passages: A .jsonl or .tsv file, also in gzip, with the index's passages in the order of its vectors.
            path: Folder of the new collection.
            encoder: The encoder that made the vectors: a sample of them is compared with its own.
            device: As for :meth:`build`.
            dtype: As for :meth:`build`.
            index: As for :meth:`build`; the collection makes its own.
            on_progress: Told of the file and of every lot of passages.

        Raises:
            DocumentError: the index cannot be read, or does not keep its vectors.
            MissingPathError: a file does not exist, or they do not belong together; the message says why.
            CollectionExistsError: something is at ``path`` already.
            ModelMissingError: the encoder is not in the cache.
        """
        source = from_faiss(index_file)
        return cls._make([passages], path, source, encoder, device, dtype, index, True, None, on_progress)

    @classmethod
    def _make(
        cls,
        paths: Sequence[str | Path],
        path: str | Path,
        vectors: VectorSource | None,
        encoder: str | Encoder,
        device: str,
        dtype: str,
        index: str,
        as_passages: bool,
        split: SplitOptions | None,
        on_progress: OnProgress,
    ) -> Collection:
        """As :meth:`build`, wherever the vectors come from."""
        if cls.exists(path):
            raise CollectionExistsError(f"{path} is a collection already; add to it with ingest instead")
        target = check_free(Path(path))
        # What is wrong with the arguments is told before anything is loaded.
        sources = find_sources(paths, target, vectors)
        index_class, argument = resolve("index", index)
        index_class(1, argument)
        loaded = load_encoder(encoder, device=device, dtype=dtype) if isinstance(encoder, str) else encoder
        with beside(target) as folder:
            catalogue = Catalogue.create(folder / _CATALOGUE)
            try:
                facts = {"encoder": asdict(loaded.spec), "passage_encoder": _passage_fingerprint(loaded)}
                catalogue.set_meta({**facts, "index": index, "generation": 0, "next_row": 0})
            finally:
                catalogue.close()
            with cls.open(folder, encoder=loaded) as made:  # its end folds the write-ahead log into the file
                report = made._ingest(sources, vectors, as_passages=as_passages, split=split, on_progress=on_progress)
        opened = cls.open(path, encoder=loaded)
        opened.report = replace(report, collection=str(path))
        return opened

    @classmethod
    def open(
        cls, path: str | Path, *, encoder: Encoder | None = None, device: str = "auto", dtype: str = "auto"
    ) -> Collection:
        """Open a collection at its newest generation, and stay there until the next ``ingest`` through this object.

        The encoder is loaded when it is first needed: looking at passages needs no model.

        Args:
            path: Folder of the collection.
            encoder: The one that it was built with, or, of a pair, another question encoder with the passage encoder
                that it was built with: what is stored depends on that one alone.
            device: Where the encoder runs.
            dtype: What it computes in.

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
            ("encoder", encoder, self._now.meta["encoder"]["model"]),
            ("index", index, self._now.meta["index"]),
        ):
            if asked is not None and asked != has:
                raise UsageError(f"{self.path} has {name} {has}, not {asked}: leave it out, or make a new collection")

    def close(self) -> None:
        """Close the catalogue; the object cannot be used afterwards."""
        self._now.catalogue.close()

    def __enter__(self) -> Collection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ingest(
        self,
        paths: Sequence[str | Path],
        *,
        as_passages: bool = False,
        vectors: str | None = None,
        split: SplitOptions | None = None,
        on_progress: OnProgress = _silent,
    ) -> IngestReport:
        """Add new files and update changed ones, all in one transaction; what is not named or not there stays.

        The arguments are those of :meth:`build`.

        A file without any text now has no passages. A file that stood elsewhere and is no longer there, under this
        name or with this content, is the same file.

        Raises:
            MissingPathError: a path does not exist, or there is nothing readable.
            CollectionBusyError: another process is writing.
        """
        if isinstance(paths, str | Path):
            raise UsageError(f"paths is {paths!r}: expected a list of paths, such as [{str(paths)!r}]")
        source = None if vectors is None else from_column(vectors)
        sources = find_sources(paths, self.path, source)
        return self._ingest(sources, source, as_passages=as_passages, split=split, on_progress=on_progress)

    def _ingest(
        self,
        sources: Sources,
        vectors: VectorSource | None,
        *,
        as_passages: bool,
        split: SplitOptions | None,
        on_progress: OnProgress,
    ) -> IngestReport:
        with self._writing:
            writer = Catalogue.open(self._file)
            try:
                report = ingest(
                    writer,
                    lambda: self.encoder,
                    sources,
                    as_passages=as_passages or vectors is not None,
                    vectors=vectors,
                    options=split or SplitOptions(),
                    on_progress=on_progress,
                    index=Snapshot(self.path, writer).save_index,
                )
            finally:  # also after a failure this object reads the newest generation, perhaps another writer's
                self._now = Snapshot(self.path, writer)
            self.report = replace(report, collection=str(self.path))
            return self.report

    # ---- reading ----

    def snapshot(self) -> Snapshot:
        """The generation that this object reads now: what is asked of it is answered from that one generation."""
        return self._now

    @property
    def generation(self) -> str:
        """Name of the state that this object reads."""
        return self._now.generation

    @property
    def encoder(self) -> Encoder:
        """The encoder that the vectors were made with, loaded on first use.

        Raises:
            ModelMissingError: it is not in the cache.
            EncoderMismatchError: the model of that name is another one by now.
        """
        with self._loading:
            if self._encoder is None:
                model = self._now.meta["encoder"]["model"]
                self._encoder = self._same(load_encoder(model, device=self._device, dtype=self._dtype))
            return self._encoder

    def _same(self, encoder: Encoder, *, questions_may_differ: bool = False) -> Encoder:
        spec = self._now.meta["encoder"]
        mine, given = spec["fingerprint"], encoder.spec.fingerprint
        passages = self._now.meta.get("passage_encoder")
        alike = questions_may_differ and passages and passages == _passage_fingerprint(encoder)
        if mine != given and not alike:
            raise EncoderMismatchError(
                f"{self.path} was built with encoder {mine} ({spec['model']}), and this is {given} "
                f"({encoder.spec.model}): their vectors cannot be compared. Use the first, or build a new collection"
            )
        return encoder

    def retrieve(self, question: str, k: int = 5) -> tuple[Hit, ...]:
        """The best passages for a question, best first; see :meth:`bifolio.Retriever.retrieve`."""
        return Retriever(self).retrieve(question, k)

    def passage(self, passage_id: str) -> Passage:
        """A passage by its id.

        Raises:
            NotFoundError: there is none.
        """
        return self._now.passage(passage_id)

    def passages(self) -> Iterator[Passage]:
        """All passages, in the order in which they came in; an ingest in between does not change them."""
        return self._now.passages()

    def context(self, passage_id: str, characters: int = 400) -> tuple[str, str]:
        """What stands before and after a passage in its document, up to ``characters`` each."""
        return self._now.context(passage_id, characters)

    def files(self) -> list[FileRow]:
        """The files of the collection, by name."""
        return self._now.catalogue.files()

    def counts(self) -> tuple[int, int]:
        """Documents and passages."""
        return self._now.catalogue.counts()

    def __len__(self) -> int:
        """How many passages there are."""
        return len(self._now)
