"""What a change costs in a small and in a large collection, and a sync of many files.

    python benchmarks/change.py --work DIR [--sizes 1000 10000 100000] [--files 100000] [--json]

Each file has ten passages. In a collection of each size one file is added, changed and removed, through ``ingest`` and
``rm``, and a generation is swapped; a reader that is open moves on and answers. The median of several is told, in
milliseconds. A sync looks at every file, so that its cost has a part that grows with them: it is told apart.

``--files``: so many files of one passage are synced into a new collection, then again with nothing changed. No model
is involved: the encoder computes vectors from texts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import Meter, provenance, say

from bifolio import Collection
from bifolio.protocols import EncoderSpec

DIMENSION, PER_FILE, TIMES = 384, 10, 7


class Computed:
    """An encoder without a model: random vectors, the same for the same text."""

    spec = EncoderSpec("computed", "computed:2", DIMENSION, 20.0, None, 512)

    def encode_questions(self, questions: Sequence[str]) -> np.ndarray:
        """As an encoder does."""
        found = [np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIMENSION) for text in questions]
        vectors = np.stack(found).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def encode_passages(self, passages: Sequence[Any], on_batch: Callable[[int], None] | None = None) -> np.ndarray:
        """As an encoder does."""
        if on_batch:
            on_batch(len(passages))
        return self.encode_questions([passage.text for passage in passages])

    def passage_lengths(self, passages: Sequence[Any]) -> np.ndarray:
        """As an encoder does."""
        return np.full(len(passages), 80, dtype=np.int64)


def text(number: int, passages: int) -> str:
    """A document of so many passages of about a hundred words."""
    random = np.random.default_rng(number)
    words = [[f"w{n}" for n in random.zipf(1.3, 95) % 50_000] for _ in range(passages)]
    return "\n\n".join(f"# Part {at} of {number}\n\n{' '.join(part).capitalize()}." for at, part in enumerate(words))


def write(folder: Path, number: int, content: str) -> Path:
    """A file in a folder of a hundred."""
    path = folder / f"{number // 100:04}" / f"{number:06}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def median_ms(action: Callable[[int], Any]) -> float:
    """Of several times, each given its number."""
    seconds = []
    for at in range(TIMES):
        began = time.perf_counter()
        action(at)
        seconds.append(time.perf_counter() - began)
    return round(1000 * statistics.median(seconds), 1)


def change(work: Path, passages: int) -> dict[str, Any]:
    """One size."""
    docs, path, count = work / "docs", work / "c", passages // PER_FILE
    for number in range(count):
        write(docs, number, text(number, PER_FILE))
    collection = Collection.build([docs], path, encoder=Computed())
    reader = Collection.open(path, encoder=Computed())
    reader.retrieve("w1 w2 w3", 5)
    line: dict[str, Any] = {"passages": len(collection), "files": count, "index": collection.stats()["index"]["index"]}
    new = [write(docs, count + at, text(count + at, PER_FILE)) for at in range(TIMES)]
    seen: list[float] = []

    line["add_ms"] = median_ms(lambda at: collection.ingest([new[at]]))
    line["read_on_ms"] = median_ms(lambda at: moved(collection, reader, docs, count + TIMES + at, seen))
    line["of_it_reader_ms"] = round(1000 * statistics.median(seen), 1)
    changed = [write(docs, at, text(10**6 + at, PER_FILE)) for at in range(TIMES)]
    line["change_ms"] = median_ms(lambda at: collection.ingest([changed[at]]))
    line["remove_ms"] = median_ms(lambda at: collection.remove([str(new[at])]))
    newest = int(collection.generation)
    line["swap_ms"] = median_ms(lambda at: collection.swap(newest - 1 - at % 2))
    collection.swap(newest)
    line["sync_nothing_ms"] = median_ms(lambda at: sync_one(collection, docs, at, 0))
    line["sync_one_ms"] = median_ms(lambda at: sync_one(collection, docs, at, 1))
    line["open_ms"] = median_ms(lambda at: Collection.open(path, encoder=Computed()).close())
    return line


def moved(collection: Collection, reader: Collection, docs: Path, number: int, seen: list[float]) -> None:
    """Add a file and let the reader find it; ``seen`` takes the reader's seconds."""
    collection.ingest([write(docs, number, text(number, PER_FILE))])
    began = time.perf_counter()
    assert reader.refresh()
    reader.retrieve("w1 w2 w3", 5)
    seen.append(time.perf_counter() - began)


def sync_one(collection: Collection, docs: Path, at: int, changes: int) -> None:
    """A sync of everything when so many files have changed; the first one settles what was changed before."""
    for one in range(changes):
        write(docs, 50 + at + one, text(2 * 10**6 + at + one, PER_FILE))
    collection.sync([docs])


def many(work: Path, files: int) -> dict[str, Any]:
    """A sync of many small files, and another one."""
    docs = work / "docs"
    for number in range(files):
        write(docs, number, text(number, 1))
    first, again, resumed = Meter(), Meter(), Meter()
    with first.running():
        collection = Collection.build([docs], work / "c", encoder=Computed())
    first_figures = first.figures()
    with again.running():
        collection.sync([docs])
    with resumed.running():  # the times of the youngest files were too fresh to be trusted in the first sync
        report = collection.sync([docs])
    assert {file.status for file in report.files} == {"unchanged"}
    return {
        "files": files,
        "passages": len(collection),
        "files_per_s": round(files / first.wall_s),
        **first_figures,
        "second_sync_s": round(again.wall_s, 1),
        "third_sync_s": round(resumed.wall_s, 1),
        "peak_mb_after": Meter().figures()["peak_mb"],
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--work", type=Path, required=True, help="Folder for everything that is made; it is emptied.")
    options.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000, 100_000], help="Passages.")
    options.add_argument("--files", type=int, default=100_000, help="Files of the large sync; 0 for none.")
    options.add_argument("--json", action="store_true", help="One JSON line a case.")
    options.add_argument("--case", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.case:
        kind, size = given.case.split(":")
        found = {"change": change, "many": many}[kind](given.work, int(size))
        print(json.dumps(found), flush=True)
        return
    cases = [f"change:{size}" for size in given.sizes] + ([f"many:{given.files}"] if given.files else [])
    for case in cases:  # each in a process of its own, whose memory is its own
        folder = given.work / case.replace(":", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [sys.executable, __file__, "--work", str(folder), "--case", case]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        say({"case": case.split(":")[0], **json.loads(done.stdout.splitlines()[-1])}, given.json)
        shutil.rmtree(folder)
    provenance(given.json)


if __name__ == "__main__":
    main()
