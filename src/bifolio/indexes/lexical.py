"""BM25 over the words of passages, by tantivy (k1 = 1.2, b = 0.75; lengths are rounded to one byte there).

The text is cut into words here (:mod:`bifolio.indexes.words`) and no query is ever parsed, so any text is a legal
question. BM25 finds passages; how much of the question one of them says is its *share*: BM25 and the question's pairs
of neighbouring words that it has, over what the question's words are worth (their inverse document frequencies). Unlike
BM25 it is of one size for short and long questions, so that it can be weighed against a dense score.

How rare a word is, and how long passages are, is counted over all passages of the index, also over those that
``allowed`` leaves out: they can shift scores a little, and never appear. Nothing is deleted here, for an older
generation may be swapped in again: a deleted passage is one that ``allowed`` leaves out.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tantivy
from jaxtyping import Bool, Float32, Int64

from bifolio.errors import CollectionDamagedError, UsageError
from bifolio.indexes.replacing import replacing
from bifolio.indexes.words import words

if TYPE_CHECKING:
    from typing_extensions import Self

_HEAP = 64 << 20  # bytes that the writer holds before it writes a part
_ANALYZER = "words"
_MOST_WORDS = 64  # of a question, the rarest
_LONGEST = 100_000  # characters of a question that are looked at
_SPARE = 16  # results beyond k: enough that ties at the cut are ordinarily decided at once
_FEW = 0.02  # of the passages, or
_FEW_ROWS = 2000  # passages: so few are looked for by their rows
_PAIR = 0.45  # of its inverse document frequency is what a pair of words adds. Chosen on wikiqa dev beside MiniLM
_FREQUENT = 0.1  # of the passages, and
_FREQUENT_ROWS = 10  # passages, have a word that makes no pair with another one like it: "of the"
_MOST_PAIRS = 32  # of a question
_SUMS = "bifolio-checksums.json"


def _analyzer() -> Any:
    """Words, which are between spaces by now, to their stems.

    The stems are English: on wikiqa they are worth .03 of R@1. Other languages lose little by them, for passages and
    questions lose the same endings, and scripts other than Latin lose nothing.
    """
    return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).filter(tantivy.Filter.stemmer("english")).build()


def _schema() -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("row", indexed=True, fast=True)
    builder.add_text_field("text", tokenizer_name=_ANALYZER, index_option="position")
    return builder.build()


@contextmanager
def _complaints(folder: Path | None) -> Iterator[None]:
    """Turn tantivy's complaints about files into ours."""
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        if isinstance(error, UsageError):
            raise
        reason = " ".join(str(error).split())[:300]
        raise CollectionDamagedError(f"{folder}: the lexical index cannot be used ({reason})") from error


class _Asked(NamedTuple):
    """The words of a question that some passage has."""

    words: dict[str, float]  # with their inverse document frequencies, rarest first
    pairs: dict[tuple[str, str], None]  # neighbours in the question


class BM25Index:
    """An inverted index in a folder, or in memory. Searches may run in any number of threads.

    Readers keep the state that they opened, in any number of processes; one process at a time may write.
    """

    def __init__(self, index: Any, folder: Path | None, *, write: bool) -> None:
        """Use :meth:`create` or :meth:`open`."""
        self._index = index
        self._folder = folder
        self._write = write
        self._writer: Any = None
        self._lock = threading.Lock()
        self._analyzer = _analyzer()
        index.register_tokenizer(_ANALYZER, _analyzer())
        index.config_reader("manual")
        self._schema = index.schema
        self._look()

    def _look(self) -> None:
        with _complaints(self._folder):
            self._index.reload()
            self._searcher = self._index.searcher()

    @classmethod
    def create(cls, folder: Path | None) -> Self:
        """A new, empty index in a folder that is not there yet; None: in memory."""
        if folder is None:
            return cls(tantivy.Index(_schema()), None, write=True)
        folder.mkdir()
        with _complaints(folder):
            return cls(tantivy.Index(_schema(), path=str(folder)), folder, write=True)

    @classmethod
    def open(cls, folder: Path, *, write: bool = False) -> Self:
        """Open an index at its last commit.

        Raises:
            CollectionDamagedError: there is none, it cannot be read, or it is of another version.
        """
        try:
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            records = {field["name"]: field["options"].get("indexing") for field in meta["schema"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CollectionDamagedError(f"{folder}: there is no lexical index") from error
        if records.get("text") != {"record": "position", "fieldnorms": True, "tokenizer": _ANALYZER}:
            raise CollectionDamagedError(f"{folder}: the lexical index is of another version")
        with _complaints(folder):
            return cls(tantivy.Index.open(str(folder)), folder, write=write)

    @property
    def upto(self) -> int:
        """One more than the largest row at the last commit; 0 for none. What an index has caught up with."""
        with _complaints(self._folder):
            found = self._searcher.search(tantivy.Query.all_query(), 1, count=False, order_by_field="row").hits
            return int(found[0][0]) + 1 if found else 0

    def __len__(self) -> int:
        """How many passages there are at the last commit."""
        return int(self._searcher.num_docs)

    # ---- writing ----

    def _writing(self) -> Any:
        if not self._write:
            raise UsageError(f"{self._folder} is open for reading: open it with write=True")
        if self._writer is None:
            with _complaints(self._folder):
                self._writer = self._index.writer(heap_size=_HEAP, num_threads=1)
        return self._writer

    def add(self, rows: Sequence[int], texts: Sequence[str]) -> None:
        """Add passages under rows that are not used yet."""
        writer = self._writing()
        for row, text in zip(rows, texts, strict=True):
            document = tantivy.Document()
            document.add_unsigned("row", int(row))
            document.add_text("text", " ".join(words(text)))
            writer.add_document(document)

    def commit(self) -> None:
        """Put what was added on the disk; from here on this object finds it."""
        if self._writer is not None:
            with _complaints(self._folder):
                self._writer.commit()
                self._writer.wait_merging_threads()
                self._writer = None
            self._look()
            if self._folder is not None:
                _write_sums(self._folder)

    def close(self) -> None:
        """Give up what was not committed, and the right to write."""
        if self._writer is not None:
            with _complaints(self._folder):
                self._writer.rollback()
                self._writer.wait_merging_threads()
            self._writer = None

    # ---- searching ----

    def _asked(self, question: str) -> _Asked:
        """The rarest words that the passages have, and the pairs worth looking for."""
        asked = self._analyzer.analyze(" ".join(words(question[:_LONGEST])))
        counts = {word: self._searcher.doc_freq("text", word) for word in dict.fromkeys(asked)}
        known = sorted((word for word, count in counts.items() if count), key=lambda word: counts[word])[:_MOST_WORDS]
        often = max(_FREQUENT_ROWS, _FREQUENT * len(self))
        pairs = dict.fromkeys(
            pair
            for pair in pairwise(asked)
            if all(map(counts.get, pair)) and min(counts[word] for word in pair) <= often
        )
        few = sorted(pairs, key=lambda pair: min(counts[word] for word in pair))[:_MOST_PAIRS]
        return _Asked({word: self._rarity(counts[word]) for word in known}, dict.fromkeys(few))

    def _rarity(self, count: int) -> float:
        """The inverse document frequency of what ``count`` passages have, as BM25 has it here."""
        return math.log(1 + (len(self) - count + 0.5) / (count + 0.5))

    def _any_word(self, asked: _Asked) -> Any:
        terms = [tantivy.Query.term_query(self._schema, "text", word, "freq") for word in asked.words]
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, term) for term in terms])

    def _with_pairs(self, asked: _Asked) -> Any:
        """The words, and what pairs add: once, however often and in however long a passage they stand."""
        found = [self._any_word(asked)]
        for pair in asked.pairs:
            query = tantivy.Query.phrase_query(self._schema, "text", list(pair))
            with _complaints(self._folder):
                count = self._searcher.search(query, 1).count or 0
            if count:
                found.append(tantivy.Query.const_score_query(query, _PAIR * self._rarity(count)))
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, query) for query in found])

    def _among(self, query: Any, rows: Sequence[int]) -> Any:
        """What a query finds among some rows, with the same scores."""
        mine = tantivy.Query.term_set_query(self._schema, "row", list(rows))
        free = tantivy.Query.const_score_query(mine, 0.0)
        return tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.Must, free)])

    def _found(self, query: Any, limit: int) -> tuple[Float32[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        with _complaints(self._folder):
            hits = self._searcher.search(query, limit, count=False).hits
            rows = self._searcher.fast_field_values("row", [address for _, address in hits]) if hits else []
        return np.array([score for score, _ in hits], dtype=np.float32), np.array(rows, dtype=np.int64)

    def search(
        self, question: str, k: int, allowed: Bool[np.ndarray, " R"] | None = None
    ) -> tuple[Float32[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """BM25 and rows of the best passages that have a word of the question, best first, ties by smaller row.

        Args:
            question: Any text.
            k: How many at most; fewer only if no more allowed passages have a word of it.
            allowed: Row r may be returned if ``r < len(allowed)`` and ``allowed[r]``; all when left out.

        Raises:
            UsageError: k is below 1.
        """
        if k < 1:
            raise UsageError(f"k is {k}; expected at least 1")
        asked, count = self._asked(question), len(self)
        if not asked.words or (allowed is not None and not allowed.any()):
            return np.empty(0, np.float32), np.empty(0, np.int64)
        query = self._any_word(asked)
        few = 0 if allowed is None else int(np.count_nonzero(allowed))
        if allowed is not None and (few <= _FEW_ROWS or few <= _FEW * count):
            query = self._among(query, np.flatnonzero(allowed).tolist())
        limit = min(k + _SPARE, count + 1)  # the library makes room for so many
        while True:
            scores, rows = self._found(query, limit)
            exhausted = len(rows) < limit
            if allowed is not None:
                keep = rows < len(allowed)
                keep[keep] = allowed[rows[keep]]
                last = scores[-1] if len(scores) else 0.0
                scores, rows = scores[keep], rows[keep]
            else:
                last = scores[-1] if len(scores) else 0.0
            if exhausted or (len(rows) >= k and scores[k - 1] > last):
                order = np.lexsort((rows, -scores))[:k]
                return scores[order], rows[order]
            limit = min(4 * limit, count + 1)

    def shares(self, question: str, rows: Sequence[int]) -> Float32[np.ndarray, " n"]:
        """How much of the question each of some rows says: 0 no word, about 1 all of them, more with its pairs.

        (BM25 + 0.45 sum over pairs of idf) / (sum over the question's words of idf). Pairs are the neighbours in the
        question that are neighbours in the passage (Metzler and Croft 2005, SIGIR); both sums are over what some
        passage has.
        """
        asked = self._asked(question)
        if not asked.words or not len(rows):
            return np.zeros(len(rows), dtype=np.float32)
        found, where = self._found(self._among(self._with_pairs(asked), list(rows)), len(rows))
        known = dict(zip(where.tolist(), (found / sum(asked.words.values())).tolist(), strict=True))
        return np.array([known.get(int(row), 0.0) for row in rows], dtype=np.float32)

    # ---- checking ----

    @staticmethod
    def check(folder: Path) -> list[str]:
        """Compare the files with their checksums; what is wrong, a sentence each.

        Raises:
            CollectionDamagedError: there is no index.
        """
        BM25Index.open(folder)
        try:
            sums = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
            known = dict(sums["files"])
            if sums["sum"] != _sum_of(known):
                return [f"{folder / _SUMS} is not as it was written"]
        except (OSError, ValueError, KeyError, TypeError):
            return [f"{folder / _SUMS} is missing or damaged"]
        found = [f"{folder / name} is missing" for name in known if not (folder / name).is_file()]
        return found + [
            f"{folder / name} is not as it was written"
            for name, digest in known.items()
            if (folder / name).is_file() and _sha256(folder / name) != digest
        ]


def _sum_of(known: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _write_sums(folder: Path) -> None:
    """Checksums of the files of the index; those of files that were there before are not computed again."""
    try:
        before = dict(json.loads((folder / _SUMS).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        before = {}
    known = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == _SUMS:
            continue
        same = before.get(path.name) if path.suffix != ".json" else None
        known[path.name] = same or _sha256(path)
    with replacing(folder / _SUMS) as temporary:
        temporary.write_text(json.dumps({"files": known, "sum": _sum_of(known)}), encoding="utf-8")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()
