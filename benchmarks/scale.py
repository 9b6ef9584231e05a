"""A collection of a million passages beside raw FAISS and raw tantivy over the same vectors and texts.

    python benchmarks/scale.py --work DIR [--passages 1000000] [--json]

Vectors lie in 2,000 clusters half hidden by noise; texts are 60 words of a vocabulary in which words are as frequent as
in a language (Zipf). No model is involved: the encoder computes a vector from the passage's number. Builds run in
processes of their own, and what each found is kept in DIR, so that a run that was stopped goes on where it was.
Searches alternate, question by question, between ours and the raw library. Ratios are ours over raw.

DIR takes about 12 kB a passage, and is left there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import Meter, provenance, say

from bifolio import Collection, Retriever
from bifolio.indexes.exact import ExactIndex
from bifolio.indexes.faiss import FaissIndex
from bifolio.protocols import EncoderSpec

DIMENSION, CLUSTERS, WORDS, FILES, K = 384, 2000, 60, 20, 10
VOCABULARY, QUESTIONS, CHANGED = 200_000, 200, 1000
STAGES = (
    "data", "build", "raw-tantivy", "raw-hnsw", "ivfpq", "raw-ivfpq",
    "open", "open-raw", "search-exact", "search-hnsw", "search-ivfpq", "search-words", "retrieve",
    "change", "raw-change",
)  # fmt: skip


# ---- the passages ----


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


class Vectors:
    """The vector of passage n, computed."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.centres = unit(random.standard_normal((CLUSTERS, DIMENSION)))
        self.noise = unit(random.standard_normal((65_536, DIMENSION)))

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """Vectors of passages by number, (n, 384), of length 1."""
        numbers = np.asarray(numbers, dtype=np.int64)
        first, second = numbers * 2_654_435_761 % 65_536, (numbers * 40_503 + 7) % 65_521
        noise = (self.noise[first] + self.noise[second]) * 0.7
        return unit(self.centres[numbers * 7919 % CLUSTERS] + noise)

    def near(self, numbers: np.ndarray) -> np.ndarray:
        """Questions: those vectors, moved a little."""
        return unit(self.of(numbers) + 0.5 * self.noise[(numbers * 31 + 5) % 65_536])


def vocabulary() -> list[str]:
    random = np.random.default_rng(1)
    starts, ends = "b d f g k l m n p r s t v st tr pl".split(), "a e i o u an er in ol us".split()
    syllables = [start + end for start in starts for end in ends]
    words: dict[str, None] = {}
    while len(words) < VOCABULARY:
        words["".join(random.choice(syllables, size=random.integers(1, 5)))] = None
    return list(words)


def texts(first: int, count: int, known: Sequence[str]) -> Iterator[str]:
    """Passages from number ``first`` on."""
    weights = 1 / (np.arange(len(known)) + 2.7) ** 1.05
    random = np.random.default_rng([2, first])
    drawn = np.searchsorted(np.cumsum(weights / weights.sum()), random.random((count, WORDS)))
    for row in np.minimum(drawn, len(known) - 1).tolist():
        words = [known[at] for at in row]
        for at in range(0, WORDS, 12):
            words[at] = words[at].capitalize()
            words[min(at + 11, WORDS - 1)] += "."
        yield " ".join(words)


class Computed:
    """An encoder without a model."""

    def __init__(self) -> None:
        self.spec = EncoderSpec("computed", "computed:1", DIMENSION, 20.0, None, 512)
        self.vectors = Vectors()
        self.questions: dict[str, np.ndarray] = {}

    def encode_passages(self, passages: Sequence[Any], on_batch: Callable[[int], None] | None = None) -> np.ndarray:
        """As an encoder does."""
        found = self.vectors.of(np.array([int(passage.id[1:]) for passage in passages]))
        if on_batch:
            on_batch(len(passages))
        return found

    def encode_questions(self, questions: Sequence[str]) -> np.ndarray:
        """As an encoder does, for questions that were told."""
        return np.stack([self.questions[question] for question in questions])

    def passage_lengths(self, passages: Sequence[Any]) -> np.ndarray:
        """As an encoder does."""
        return np.full(len(passages), 80, dtype=np.int64)


def questions(work: Path, total: int) -> tuple[list[str], np.ndarray]:
    """Texts and vectors of questions: a few words of a passage, and a vector near its own."""
    numbers = np.linspace(0, total - 1, QUESTIONS).astype(np.int64)
    per_file, random, asked = -(-total // FILES), np.random.default_rng(3), []
    for number in numbers.tolist():
        with (work / "data" / f"{number // per_file:02}.jsonl").open() as file:
            line = next(line for at, line in enumerate(file) if at == number % per_file)
        words = json.loads(line)["text"].replace(".", "").lower().split()
        asked.append(" ".join(random.choice(words, size=8, replace=False)))
    return asked, Vectors().near(numbers)


# ---- measuring ----


def anonymous_mb() -> float:
    """Memory of this process that no file stands behind."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return round(sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024, 1)


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def timed(ways: dict[str, Callable[[int], Any]], count: int, truth: np.ndarray | None = None) -> dict[str, Any]:
    """Milliseconds of each way, question by question in turn, and what share of the truth it finds."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        for at in range(5):
            way(at)
    for at in range(count):
        for name in sorted(ways, reverse=bool(at % 2)):
            began = time.perf_counter()
            ids = ways[name](at)
            seconds[name].append(time.perf_counter() - began)
            if truth is not None:
                found[name].append(len(set(np.asarray(ids).ravel().tolist()) & set(truth[at].tolist())) / K)
    line: dict[str, Any] = {}
    for name, values in seconds.items():
        line[name] = {"p50_ms": ms(np.median(values)), "p95_ms": ms(np.quantile(values, 0.95))}
        if truth is not None:
            line[name]["recall"] = round(statistics.mean(found[name]), 4)
    if {"ours", "raw"} <= set(ways):
        pairs = zip(seconds["ours"], seconds["raw"], strict=True)
        line["ratio"] = round(statistics.median(a / b for a, b in pairs), 3)
    return line


def ms(seconds: float) -> float:
    return round(1000 * float(seconds), 3)


# ---- stages ----


class Stages:
    """What is measured; each returns a line."""

    def __init__(self, work: Path, total: int) -> None:
        self.work, self.total = work, total
        self.collection = work / "collection"

    def lots(self) -> Iterator[np.ndarray]:
        """Numbers of the passages, 50,000 at a time."""
        for start in range(0, self.total, 50_000):
            yield np.arange(start, min(start + 50_000, self.total))

    def parts(self) -> list[Path]:
        """The files of passages."""
        return sorted((self.work / "data").glob("*.jsonl"))

    def texts(self) -> Iterator[str]:
        """All texts in order."""
        for path in self.parts():
            with path.open() as file:
                for line in file:
                    yield json.loads(line)["text"]

    def truth(self) -> np.ndarray:
        """Numbers of the exact best for each question, from stage search-exact."""
        return np.load(self.work / "truth.npy")

    def data(self) -> dict[str, Any]:
        """Write the passages."""
        (self.work / "data").mkdir(exist_ok=True)
        known, per_file = vocabulary(), -(-self.total // FILES)
        for number in range(FILES):
            first = number * per_file
            with (self.work / "data" / f"{number:02}.jsonl").open("w") as file:
                for at, text in enumerate(texts(first, min(per_file, self.total - first), known), first):
                    file.write(json.dumps({"id": f"p{at}", "text": text}) + "\n")
        return {"bytes_per_passage": round(size(self.work / "data") / self.total)}

    def build(self) -> dict[str, Any]:
        """Ours, whole: read, checked, encoded, indexed both ways."""
        phases: dict[str, list[float]] = {}

        def told(progress: Any) -> None:
            phases.setdefault(progress.stage, [time.perf_counter(), 0])[1] = time.perf_counter()

        meter = Meter()
        with meter.running():
            made = Collection.build(
                [self.work / "data"], self.collection, encoder=Computed(), as_passages=True, on_progress=told
            )
        stats = made.stats()
        made.close()
        return {
            **meter.figures(),
            "phases_s": {name: round(end - began, 1) for name, (began, end) in phases.items()},
            "index": stats["index"]["index"],
            "recall_at_build": stats["index"]["recall"],
            "bytes_per_passage": {
                name: round(stats["bytes"][name] / self.total) for name in ("catalogue", "vectors", "index", "all")
            },
        }

    def raw_tantivy(self) -> dict[str, Any]:
        """The texts alone, with tantivy's own English words."""
        import tantivy

        schema = tantivy.SchemaBuilder()
        schema.add_unsigned_field("row", indexed=True, fast=True)
        schema.add_text_field("text", tokenizer_name="en_stem", index_option="position")
        folder = self.work / "raw-tantivy"
        folder.mkdir(exist_ok=True)
        meter = Meter()
        with meter.running():
            index = tantivy.Index(schema.build(), path=str(folder))
            writer = index.writer(heap_size=64 << 20, num_threads=1)
            for row, text in enumerate(self.texts()):
                document = tantivy.Document()
                document.add_unsigned("row", row)
                document.add_text("text", text)
                writer.add_document(document)
            writer.commit()
            writer.wait_merging_threads()
        return {**meter.figures(), "bytes_per_passage": round(size(folder) / self.total)}

    def raw_hnsw(self) -> dict[str, Any]:
        """The vectors alone, with our parameters."""
        import faiss

        vectors, meter = Vectors(), Meter()
        index = faiss.IndexHNSWFlat(DIMENSION, 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 200
        for numbers in self.lots():
            lot = vectors.of(numbers)
            with meter.running():
                index.add(lot)
        with meter.running():
            faiss.write_index(index, str(self.work / "raw-hnsw.index"))
        return {**meter.figures(), "bytes_per_passage": round(size(self.work / "raw-hnsw.index") / self.total)}

    def ivfpq(self) -> dict[str, Any]:
        """Our index alone; a collection of this size takes a graph."""
        vectors, meter = Vectors(), Meter()
        everything = np.concatenate([vectors.of(numbers) for numbers in self.lots()])
        index = FaissIndex(DIMENSION, "ivfpq")
        with meter.running():
            index.add(everything, np.arange(self.total))
            index.save(self.work / "ivfpq.index")
        return {**meter.figures(), "bytes_per_passage": round(size(self.work / "ivfpq.index") / self.total)}

    def raw_ivfpq(self) -> dict[str, Any]:
        """The vectors alone, with our parameters."""
        import faiss

        vectors, meter = Vectors(), Meter()
        everything = np.concatenate([vectors.of(numbers) for numbers in self.lots()])
        lists = 2 * int(self.total**0.5)
        index = faiss.index_factory(DIMENSION, f"IVF{lists},PQ48,RFlat", faiss.METRIC_INNER_PRODUCT)
        with meter.running():
            index.train(everything[np.random.default_rng(0).permutation(self.total)[: 40 * lists]])
            index.add(everything)
            faiss.write_index(index, str(self.work / "raw-ivfpq.index"))
        return {**meter.figures(), "bytes_per_passage": round(size(self.work / "raw-ivfpq.index") / self.total)}

    def opened(self) -> tuple[Collection, Computed, list[str], np.ndarray]:
        """The collection, its encoder, and questions as texts and vectors."""
        encoder = Computed()
        asked, vectors = questions(self.work, self.total)
        encoder.questions = dict(zip(asked, vectors, strict=True))
        return Collection.open(self.collection, encoder=encoder), encoder, asked, vectors

    def open(self) -> dict[str, Any]:
        """Ours from nothing to the first answers."""
        encoder = Computed()
        asked, vectors = questions(self.work, self.total)
        encoder.questions = dict(zip(asked, vectors, strict=True))
        before, began = anonymous_mb(), time.perf_counter()
        collection = Collection.open(self.collection, encoder=encoder)
        line: dict[str, Any] = {"open_s": round(time.perf_counter() - began, 3)}
        for mode in ("dense", "lexical", "hybrid"):
            began = time.perf_counter()
            collection.retrieve(asked[0], K, mode=mode)
            line[f"first_{mode}_s"] = round(time.perf_counter() - began, 3)
        for question in asked:
            collection.retrieve(question, K, mode="hybrid")
        return {**line, "anonymous_mb": round(anonymous_mb() - before, 1)}

    def open_raw(self) -> dict[str, Any]:
        """Both raw indexes, likewise; without texts, ids or generations."""
        import faiss
        import tantivy

        asked, vectors = questions(self.work, self.total)
        before, began = anonymous_mb(), time.perf_counter()
        index = faiss.read_index(str(self.work / "raw-hnsw.index"))
        faiss_s = time.perf_counter() - began
        index.hnsw.efSearch = 256
        index.search(vectors[:1], K)
        began = time.perf_counter()
        texts = tantivy.Index.open(str(self.work / "raw-tantivy"))
        tantivy_s = time.perf_counter() - began
        for question, vector in zip(asked, vectors, strict=True):
            index.search(vector[None], K)
            texts.searcher().search(texts.parse_query(question, ["text"]), K)
        return {
            "faiss_s": round(faiss_s, 3),
            "tantivy_s": round(tantivy_s, 3),
            "anonymous_mb": round(anonymous_mb() - before, 1),
        }

    def search_exact(self) -> dict[str, Any]:
        """Every vector looked at, on one thread."""
        import faiss

        faiss.omp_set_num_threads(1)
        vectors, flat, ours = Vectors(), faiss.IndexFlatIP(DIMENSION), ExactIndex(DIMENSION)
        for numbers in self.lots():
            lot = vectors.of(numbers)
            flat.add(lot)
            ours.add(lot, numbers)
        asked = questions(self.work, self.total)[1]
        truth = flat.search(asked, K)[1]
        np.save(self.work / "truth.npy", truth)
        ways = {
            "ours": lambda at: ours.search(asked[at][None], K)[1],
            "raw": lambda at: flat.search(asked[at][None], K)[1],
        }
        return timed(ways, 50, truth)

    def search_hnsw(self) -> dict[str, Any]:
        """The collection's graph beside the raw one, efSearch 256, on one thread."""
        import faiss

        faiss.omp_set_num_threads(1)
        collection, _, _, asked = self.opened()
        snapshot = collection.snapshot()
        raw = faiss.read_index(str(self.work / "raw-hnsw.index"))
        raw.hnsw.efSearch = 256
        rows = self.row_numbers(snapshot)
        ways = {
            "ours": lambda at: rows[snapshot.nearest(asked[at], K)[1]],
            "raw": lambda at: raw.search(asked[at][None], K)[1],
        }
        return timed(ways, QUESTIONS, self.truth())

    def row_numbers(self, snapshot: Any) -> np.ndarray:
        """The number of the passage of each row."""
        found = snapshot.catalogue.query("SELECT row, id FROM passages ORDER BY row")
        numbers = np.full(found[-1][0] + 1, -1, dtype=np.int64)
        numbers[[row for row, _ in found]] = [int(name[1:]) for _, name in found]
        return numbers

    def search_ivfpq(self) -> dict[str, Any]:
        """64 lists visited and 300 vectors scored again, on one thread."""
        import faiss

        faiss.omp_set_num_threads(1)
        asked = questions(self.work, self.total)[1]
        began = time.perf_counter()
        ours = FaissIndex.load(self.work / "ivfpq.index")
        open_s = time.perf_counter() - began
        raw = faiss.read_index(str(self.work / "raw-ivfpq.index"))
        inner = faiss.downcast_index(raw.base_index)
        inner.nprobe, raw.k_factor = 64, 30
        ways = {
            "ours": lambda at: ours.search(asked[at][None], K)[1],
            "raw": lambda at: raw.search(asked[at][None], K)[1],
        }
        return {"open_s": round(open_s, 3), **timed(ways, QUESTIONS, self.truth())}

    def search_words(self) -> dict[str, Any]:
        """BM25 alone: the words of a question, any of them."""
        import tantivy

        collection, _, asked, _ = self.opened()
        snapshot = collection.snapshot()
        index = tantivy.Index.open(str(self.work / "raw-tantivy"))
        searcher = index.searcher()
        rows = self.row_numbers(snapshot)

        def raw(at: int) -> np.ndarray:
            hits = searcher.search(index.parse_query(asked[at], ["text"]), K, count=False).hits
            return np.array(searcher.fast_field_values("row", [address for _, address in hits]))

        truth = np.stack([raw(at) for at in range(len(asked))])
        return timed({"ours": lambda at: rows[snapshot.matching(asked[at], K)[1]], "raw": raw}, QUESTIONS, truth)

    def retrieve(self) -> dict[str, Any]:
        """From the question to passages with their texts and p(z|x)."""
        collection, _, asked, _ = self.opened()
        retriever = Retriever(collection)

        def way(mode: Any) -> Callable[[int], Any]:
            return lambda at: retriever.retrieval(asked[at], K, mode=mode)

        return timed({mode: way(mode) for mode in ("dense", "lexical", "hybrid")}, QUESTIONS)

    def change(self) -> dict[str, Any]:
        """Add 1,000 passages, and delete them, through the catalogue."""
        known = vocabulary()
        file = self.work / "more.jsonl"
        with file.open("w") as out:
            for at, text in enumerate(texts(10**9, CHANGED, known), 10**9):
                out.write(json.dumps({"id": f"p{at}", "text": text}) + "\n")
        line: dict[str, Any] = {}
        with Collection.open(self.collection, encoder=Computed()) as collection:
            add, delete = Meter(), Meter()
            with add.running():
                collection.ingest([file], as_passages=True)
            with delete.running():
                collection.remove([str(file)])
            line = {"add_s": round(add.wall_s, 3), "delete_s": round(delete.wall_s, 3)}
            assert len(collection) == self.total
        return line

    def raw_change(self) -> dict[str, Any]:
        """The same in the raw libraries."""
        import faiss
        import tantivy

        known = vocabulary()
        more = list(texts(10**9, CHANGED, known))
        vectors = Vectors().of(np.arange(10**9, 10**9 + CHANGED))
        index = faiss.read_index(str(self.work / "raw-hnsw.index"))
        words = tantivy.Index.open(str(self.work / "raw-tantivy"))
        adding, saving, deleting = Meter(), Meter(), Meter()
        with adding.running():
            index.add(vectors)
            writer = words.writer(heap_size=64 << 20, num_threads=1)
            for row, text in enumerate(more, 10**9):
                document = tantivy.Document()
                document.add_unsigned("row", row)
                document.add_text("text", text)
                writer.add_document(document)
            writer.commit()
        with saving.running():  # an index in memory is lost with the process
            faiss.write_index(index, str(self.work / "raw-change.index"))
        with deleting.running():  # FAISS deletes nothing from a graph
            for row in range(10**9, 10**9 + CHANGED):
                writer.delete_documents_by_term("row", row)
            writer.commit()
        (self.work / "raw-change.index").unlink()
        return {
            "add_s": round(adding.wall_s, 3),
            "write_s": round(saving.wall_s, 3),
            "delete_words_s": round(deleting.wall_s, 3),
        }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--work", type=Path, required=True, help="Folder for everything that is made.")
    options.add_argument("--passages", type=int, default=1_000_000)
    options.add_argument("--json", action="store_true", help="One JSON line a stage.")
    options.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    options.add_argument("--again", nargs="*", default=[], help="Stages to measure again.")
    given = options.parse_args()
    if given.stage:
        found = getattr(Stages(given.work, given.passages), given.stage.replace("-", "_"))()
        print(json.dumps(found), flush=True)
        return
    given.work.mkdir(parents=True, exist_ok=True)
    for stage in STAGES:
        kept = given.work / f"{stage}.json"
        if stage in given.again or not kept.exists():
            command = [sys.executable, __file__, "--work", str(given.work), "--passages", str(given.passages)]
            done = subprocess.run([*command, "--stage", stage], check=True, stdout=subprocess.PIPE, text=True)
            kept.write_text(done.stdout.splitlines()[-1])
        say({"stage": stage, "passages": given.passages, **json.loads(kept.read_text())}, given.json)
    provenance(given.json)


if __name__ == "__main__":
    main()
