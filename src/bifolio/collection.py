"""The collection: the non-parametric memory, a folder of catalogue, vectors and indexes.

::

    manuals/
      catalogue.sqlite    files, documents, passages, generations, and the encoders' fingerprints: the single truth
      vectors/*           appended to and never changed, named by the catalogue block by block with checksums
      index/*             lexical and dense indexes; derived, made again when missing
      writer.lock         held by who writes

This is the one facade over all of that, so that the file is a little over 400 lines.
"""

from __future__ import annotations

import threading
from collections.abc import Collection as Some
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bifolio import history, upkeep
from bifolio.building import CATALOGUE, Plan, alike, build, is_made, passage_fingerprint, run
from bifolio.catalogue import Catalogue, FileRow
from bifolio.corpus.splitting import SplitOptions
from bifolio.deriving import Loaded
from bifolio.draft import Draft, settings
from bifolio.errors import (
    EncoderMismatchError,
    UsageError,
)
from bifolio.following import Follower
from bifolio.history import Difference, Generation
from bifolio.ingest_options import IngestOptions
from bifolio.ingest_report import IngestReport, OnProgress
from bifolio.loading import load_encoder
from bifolio.models import DEFAULT_ENCODER
from bifolio.protocols import Encoder
from bifolio.reencoding import reencode
from bifolio.retriever import Retriever
from bifolio.snapshot import Snapshot
from bifolio.sources import find_sources
from bifolio.taking import key_of
from bifolio.types import Hit, Passage
from bifolio.vector_files import Precision
from bifolio.vector_sources import from_column, from_faiss
from bifolio.write_lock import write_lock


def _silent(_: object) -> None:
    """No progress."""


class Collection:
    """Passages with their vectors, opened at one generation. Safe to use from many threads.

    What writes does so through a connection of its own: readers are neither blocked nor see a part of it, and this
    object moves on to what it has made when it is done. ``follow`` moves on to what others have made as well.
    """

    def __init__(
        self,
        path: Path,
        catalogue: Catalogue,
        encoder: Encoder | None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        generation: str | int | None = None,
        labels: Some[str] | None = None,
    ) -> None:
        """Use :meth:`build` or :meth:`open`."""
        self.path = path
        self._loaded = Loaded()
        self._labels = None if labels is None else frozenset(labels)
        number = None if generation is None else history.resolve(catalogue, generation)
        self._now = self._snapshot(catalogue, number)  # replaced as a whole, never changed: who reads takes it once
        self._file = catalogue.path  # absolute: also after a change of the current folder
        self._device, self._dtype = device, dtype
        self._encoder: Encoder | None = None
        self._loading = threading.RLock()
        self._moving = threading.Lock()
        self._watched: Catalogue | None = None
        self._writing = threading.RLock()  # one change after the other
        self._follower: Follower | None = None
        self.report: IngestReport | None = None
        """What the latest ``build``, ``ingest`` or ``sync`` through this object did."""
        if encoder is not None:
            self._encoder = self._same(encoder, self._now, questions_may_differ=True)

    def _snapshot(self, catalogue: Catalogue, generation: int | None = None) -> Snapshot:
        return Snapshot(
            self.path, catalogue, generation, labels=self._labels, loaded=self._loaded, encoder=self._encoder_of
        )

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
        index: str = "auto",
        precision: Precision = "float32",
        on_progress: OnProgress = _silent,
        **options: Any,
    ) -> Collection:
        """Make a new collection of files and folders. It can be opened when all of it is there.

        A build that fails leaves nothing at ``path``. One that is interrupted or killed leaves its work there, and the
        same build goes on with it.

        Args:
            paths: Files and folders (read recursively).
            path: Folder of the new collection.
            encoder: A model id, or an encoder.
            device: Where an encoder given by its id runs: ``auto``, ``cpu``, ``cuda`` ...
            dtype: What it computes in: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
            index: ``exact``, ``faiss:flat``, ``faiss:hnsw`` or ``faiss:ivfpq``; ``auto`` chooses by size.
            precision: What vectors are stored in, ``float32`` or ``float16``.
            on_progress: Told of every file and every batch.
            **options: Those of :class:`IngestOptions`.

        Raises:
            CollectionExistsError: something is at ``path`` already.
            UsageError: the index or an option is unknown, or a folder at ``path`` cannot be replaced.
            MissingPathError: a path does not exist, or there is nothing readable.
            ModelMissingError: the encoder is not in the cache.
        """
        chosen = IngestOptions.of(options)
        source = None if chosen.vectors is None else from_column(chosen.vectors)
        plan = Plan(paths, Path(path), source, index, precision, chosen)
        return cls._build(plan, encoder, device, dtype, on_progress)

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
        index: str = "auto",
        precision: Precision = "float32",
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
            precision: As for :meth:`build`.
            on_progress: Told of the file and of every lot of passages.

        Raises:
            DocumentError: the index cannot be read, or does not keep its vectors.
            MissingPathError: a file does not exist, or they do not belong together; the message says why.
            CollectionExistsError: something is at ``path`` already.
            ModelMissingError: the encoder is not in the cache.
        """
        chosen = IngestOptions(as_passages=True)
        plan = Plan([passages], Path(path), from_faiss(index_file), index, precision, chosen)
        return cls._build(plan, encoder, device, dtype, on_progress)

    @classmethod
    def _build(cls, plan: Plan, encoder: str | Encoder, device: str, dtype: str, on_progress: OnProgress) -> Collection:
        def load() -> Encoder:
            return load_encoder(encoder, device=device, dtype=dtype) if isinstance(encoder, str) else encoder

        loaded, report = build(plan, load, on_progress)
        opened = cls.open(plan.path, encoder=loaded)
        opened.report = replace(report, collection=str(plan.path))
        return opened

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        device: str = "auto",
        dtype: str = "auto",
        generation: str | int | None = None,
        labels: Some[str] | None = None,
        follow: bool = False,
    ) -> Collection:
        """Open a collection at its live generation, and stay there until the next change through this object.

        The encoder is loaded when it is first needed: looking at passages needs no model.

        Args:
            path: Folder of the collection.
            encoder: The one that it was built with, or, of a pair, another question encoder with the passage encoder
                that it was built with: what is stored depends on that one alone.
            device: Where the encoder runs.
            dtype: What it computes in.
            generation: Another generation, by its number or tag.
            labels: What may be seen: documents without access labels, and those that have one of these. Nothing else
                can be retrieved, counted, shown or cited. Everything when left out.
            follow: Move on to whatever becomes live, in the background and within a second.

        Raises:
            CollectionMissingError: there is none at ``path``.
            CollectionDamagedError: bytes are missing or wrong.
            CollectionVersionError: written by a newer bifolio.
            EncoderMismatchError: ``encoder`` is not the one that it was built with.
            NotFoundError: there is no such generation.
        """
        if isinstance(labels, str):
            raise UsageError(f"labels is {labels!r}: expected a list of labels, such as [{labels!r}]")
        if follow and generation is not None:
            raise UsageError(f"generation {generation!r} stays as it is and follow moves on: leave one of them out")
        folder = Path(path)
        catalogue = Catalogue.open(folder.absolute() / CATALOGUE)
        try:
            opened = cls(folder, catalogue, encoder, device=device, dtype=dtype, generation=generation, labels=labels)
        except BaseException:
            catalogue.close()
            raise
        if follow:
            opened._follower = Follower(opened)
        return opened

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Whether there is a collection at ``path``, in whatever state; one that was only begun is none."""
        return is_made(Path(path))

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
        if self._follower is not None:
            self._follower.stop()
        if self._watched is not None:
            self._watched.close()
        self._now.catalogue.close()

    def __enter__(self) -> Collection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- changing ----

    def ingest(self, paths: Sequence[str | Path], *, on_progress: OnProgress = _silent, **options: Any) -> IngestReport:
        """Add new files and update changed ones as one new generation; what is not named or not there stays.

        A file without any text now has no passages. A file that stood elsewhere and is no longer there, under this
        name or with this content, is the same file.

        Args:
            paths: Files and folders.
            on_progress: Told of every file and every batch.
            **options: Those of :class:`IngestOptions`.

        Raises:
            MissingPathError: a path does not exist, or there is nothing readable.
            CollectionBusyError: another process is writing.
        """
        return self._change(paths, options, "ingest", on_progress)

    def sync(self, paths: Sequence[str | Path], *, on_progress: OnProgress = _silent, **options: Any) -> IngestReport:
        """As :meth:`ingest`, and remove what was below these paths and is no longer there.

        A folder that cannot be listed is reported, and what is known under it stays. A path that does not exist, unless
        it was that of a file, or a folder without any file, is an error and not the end of what it had: a disk may not
        be mounted.
        """
        return self._change(paths, options, "sync", on_progress)

    def _change(
        self, paths: Sequence[str | Path], options: dict[str, Any], action: str, on_progress: OnProgress
    ) -> IngestReport:
        chosen = IngestOptions.of(options)
        source = None if chosen.vectors is None else from_column(chosen.vectors)
        with self._changing(action, chosen.wait) as writer:
            now = self._snapshot(writer)
            draft = Draft(writer)
            known = (lambda path: draft.of_path(key_of(path)) is not None) if action == "sync" else None
            sources = find_sources(paths, self.path, chosen, source, sync=known)
            report = run(writer, lambda: now.encoder, sources, source, chosen, action, on_progress)
        self.report = replace(report, collection=str(self.path))
        return self.report

    def remove(self, sources: Sequence[str], *, wait: float = 5.0) -> IngestReport:
        """Remove files by their source, exactly or as a glob such as ``old/*``, as one new generation.

        Raises:
            NotFoundError: nothing in the collection goes by such a name; then nothing is removed.
        """
        if isinstance(sources, str):
            raise UsageError(f"sources is {sources!r}: expected a list of them, such as [{sources!r}]")
        with self._changing("rm", wait) as writer:
            report = upkeep.remove(writer, Draft(writer), sources)
        return replace(report, collection=str(self.path))

    def reencode(self, encoder: str | Encoder, *, on_progress: OnProgress = _silent, wait: float = 5.0) -> IngestReport:
        """The live generation with the vectors of another encoder, as a new generation beside it.

        It becomes live when it has been checked: every passage has a vector, and passages of a sample find themselves.
        A run that is killed goes on where it was.

        Raises:
            CollectionDamagedError: the check failed; what was live stays so.
        """
        loaded = load_encoder(encoder, device=self._device, dtype=self._dtype) if isinstance(encoder, str) else encoder
        with self._changing("reencode", wait) as writer:
            report = reencode(writer, loaded, passage_fingerprint(loaded), on_progress)
            with self._loading:
                self._encoder = loaded
        return replace(report, collection=str(self.path))

    def swap(self, generation: str | int) -> str:
        """Let every reader read another generation, by number or tag; returns its number.

        Nothing is copied or made: readers that follow are there within a second, without a failed request.

        Raises:
            NotFoundError: there is no such generation.
        """
        with self._changing(None) as writer, writer.writing():
            number = history.resolve(writer, generation)
            history.swap(writer, number)
        return str(number)

    def tag(self, name: str, generation: str | int | None = None) -> str:
        """Name a generation, the live one when left out; returns its number. ``compact`` keeps what has a name."""
        with self._changing(None) as writer, writer.writing():
            number = history.live(writer) if generation is None else history.resolve(writer, generation)
            history.tag(writer, name, number)
        return str(number)

    def untag(self, name: str) -> None:
        """Take the name of a generation away."""
        with self._changing(None) as writer, writer.writing():
            history.untag(writer, name)

    def compact(self, keep: int = 1, *, on_progress: OnProgress = _silent, wait: float = 5.0) -> upkeep.Compaction:
        """Drop old generations, with what only they had, and give the space back.

        The live generation, those with a tag and the ``keep`` newest ones stay.
        """
        with self._changing("compact", wait) as writer:
            done = upkeep.compact(writer, keep, on_progress)
        self._now.catalogue.shrink()  # what this object read before is let go now
        return replace(done, after=upkeep.size_of(self._file.parent))

    @contextmanager
    def _changing(self, action: str | None, wait: float = 5.0) -> Iterator[Catalogue]:
        """A connection that writes; afterwards, also after a failure, this object reads the live generation.

        ``action`` None: so short that SQLite's own lock is enough.
        """
        if self._labels is not None:
            raise UsageError(f"{self.path} is open with access labels, which is for reading: open it without labels")
        with self._writing, ExitStack() as held:
            if action is not None:
                held.enter_context(write_lock(self._file.parent, action, wait=wait))
            writer = Catalogue.open(self._file)
            try:
                yield writer
            finally:
                self._now = self._snapshot(writer)

    # ---- moving on ----

    def refresh(self) -> bool:
        """Move on to the live generation, with its encoder and indexes in memory; False if it is open already.

        Whoever asks meanwhile is answered from the generation that was open before.
        """
        with self._moving:
            if self._watched is None:
                self._watched = Catalogue.open(self._file)
                self._watched.release()
            if history.state(self._watched) == history.state(self._now.catalogue, self._now.number):
                return False
            catalogue = Catalogue.open(self._file)
            new = self._snapshot(catalogue)
            if self._encoder is not None:  # else nobody has searched yet
                new.encoder  # noqa: B018  loaded before it is needed
                new.warm()
            self._now = new
            return True

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
        return self._now.encoder

    def _encoder_of(self, snapshot: Snapshot) -> Encoder:
        """The encoder of a generation: the one that is loaded, if its vectors can be compared."""
        with self._loading:
            if self._encoder is None or not alike(self._encoder, snapshot.meta):
                model = snapshot.meta["encoder"]["model"]
                loaded = load_encoder(model, device=self._device, dtype=self._dtype)
                self._encoder = self._same(loaded, snapshot)
            return self._encoder

    def _same(self, encoder: Encoder, snapshot: Snapshot, *, questions_may_differ: bool = False) -> Encoder:
        spec = snapshot.meta["encoder"]
        mine, given = spec["fingerprint"], encoder.spec.fingerprint
        if mine != given and not (questions_may_differ and alike(encoder, snapshot.meta)):
            raise EncoderMismatchError(
                f"{self.path} was built with encoder {mine} ({spec['model']}), and this is {given} "
                f"({encoder.spec.model}): their vectors cannot be compared. Use the first, or build a new collection"
            )
        return encoder

    def retrieve(self, question: str, k: int = 5, **options: Any) -> tuple[Hit, ...]:
        """The best passages for a question, best first; see :meth:`bifolio.Retriever.retrieve`."""
        return Retriever(self).retrieve(question, k, **options)

    def passage(self, passage_id: str) -> Passage:
        """A passage by its id.

        Raises:
            NotFoundError: there is none.
        """
        return self._now.passage(passage_id)

    def passages(self) -> Iterator[Passage]:
        """All passages, in the order in which they came in; a change in between does not change them."""
        return self._now.passages()

    def context(self, passage_id: str, characters: int = 400) -> tuple[str, str]:
        """What stands before and after a passage in its document, up to ``characters`` each."""
        return self._now.context(passage_id, characters)

    def files(self) -> list[FileRow]:
        """The files of the collection, by name."""
        return self._now.files()

    def counts(self) -> tuple[int, int]:
        """Documents and passages."""
        return self._now.counts()

    def __len__(self) -> int:
        """How many passages there are."""
        return len(self._now)

    # ---- looking after it ----

    def log(self) -> list[Generation]:
        """All generations, the newest first."""
        return history.generations(self._everything())

    def diff(self, first: str | int, second: str | int | None = None) -> Difference:
        """What changed from one generation to another, the live one when left out."""
        catalogue = self._everything()
        end = history.live(catalogue) if second is None else history.resolve(catalogue, second)
        return history.difference(catalogue, history.resolve(catalogue, first), end)

    def stats(self) -> dict[str, Any]:
        """Sizes, counts, indexes with their recall, and what a compaction would give back, as JSON values."""
        return upkeep.stats(self._everything(), self._now)

    def verify(self, *, on_progress: OnProgress = _silent) -> list[str]:
        """Compare everything with its checksums; what is damaged, a sentence each. Reads all of it."""
        return upkeep.verify(self._everything(), on_progress)

    def export(self, target: str | Path, *, on_progress: OnProgress = _silent) -> Path:
        """Write the live generation, and those with a tag, to one file; :func:`bifolio.backup.restore` reads it.

        Raises:
            CollectionExistsError: something is at ``target``.
            CollectionDamagedError: a byte is not as it was written.
        """
        from bifolio.backup import export

        return export(self._everything(), Path(target), on_progress)

    def split(self, words: int | None = None, mode: str | None = None) -> SplitOptions:
        """How this collection splits documents, with what is given in place of it."""
        has = settings(self._now.catalogue)["split"]
        return SplitOptions(words=words or has["words"], mode=mode or has["mode"])  # type: ignore[arg-type]

    def _everything(self) -> Catalogue:
        """The catalogue as it is now, for those who may see everything."""
        if self._labels is not None:
            raise UsageError(f"{self.path} is open with access labels, and this tells of everything: open it without")
        return self._now.catalogue
