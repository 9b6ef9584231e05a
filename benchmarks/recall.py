"""Recall of a default collection on questions with known passages, by set and by way of retrieval.

    python benchmarks/recall.py --data DIR [--split test] [--encoder ID] [--collection DIR] [--quick] [--json]
        [--ways dense lexical hybrid rrf generator] [--questions N]

DIR holds passages.jsonl {id,title,text} and SPLIT.jsonl {question,passage_ids,set}. A question counts at k if one of
its passages is among the first k. The collection is built with ``as_passages``, exactly as a user would, and kept at
--collection if given. ``generator`` is hybrid retrieval whose best 20 are read again by the default generator, log
p(x|z); ``cross-encoder:MODEL`` names another reranker. --questions takes an evenly spread part of the questions.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from common import Meter, provenance, say

from bifolio import Collection, Retriever

CUTS = (1, 5, 20)
WAYS = ("dense", "lexical", "hybrid", "rrf")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--encoder")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--collection", type=Path, help="keep the collection here; used again if it is there")
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    parser.add_argument("--questions", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="100 questions over the passages that answer them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    questions = [json.loads(line) for line in (options.data / f"{options.split}.jsonl").open(encoding="utf-8")]
    questions = [question for question in questions if question.get("passage_ids")]
    with tempfile.TemporaryDirectory() as scratch:
        passages = options.data / "passages.jsonl"
        if options.quick:
            questions = spread(questions, 100)
            passages = few(passages, {z for question in questions for z in question["passage_ids"]}, Path(scratch))
        target = options.collection or Path(scratch) / "collection"
        meter = Meter()
        if Collection.exists(target):
            collection = Collection.open(target, dtype=options.dtype)
        else:
            with meter.running():
                chosen = {"encoder": options.encoder} if options.encoder else {}
                collection = Collection.build([passages], target, as_passages=True, dtype=options.dtype, **chosen)
        say({"case": "build", "passages": len(collection), "ours": meter.figures()}, options.json)
        if options.questions:
            questions = spread(questions, options.questions)
        retriever = Retriever(collection)
        for way in options.ways:
            for name, row in evaluate(retriever, questions, way).items():
                say({"case": f"{way} {name}", **row}, options.json)
    provenance(options.json)


def spread(questions: list[dict], count: int) -> list[dict]:
    """About ``count`` questions, evenly over the file."""
    return questions[:: max(1, len(questions) // count)][:count]


def few(passages: Path, wanted: set[str], scratch: Path) -> Path:
    """The wanted passages alone, in a file of their own."""
    kept = scratch / "passages.jsonl"
    with passages.open(encoding="utf-8") as source, kept.open("w", encoding="utf-8") as target:
        target.writelines(line for line in source if json.loads(line)["id"] in wanted)
    return kept


def chosen(way: str) -> dict[str, str]:
    """The options of a way of retrieval."""
    if way in ("dense", "lexical", "hybrid"):
        return {"mode": way}
    return {"fusion": "rrf"} if way == "rrf" else {"reranker": way}


def evaluate(retriever: Retriever, questions: list[dict], way: str) -> dict[str, dict[str, float]]:
    """Recall at the cuts and MRR at 10, over all questions and by set, and milliseconds a question."""
    ranks: dict[str, list[float]] = defaultdict(list)
    start = time.perf_counter()
    for question in questions:
        gold = set(question["passage_ids"])
        hits = retriever.retrieve(question["question"], max(CUTS), **chosen(way))
        found = ({hit.passage.id, *(one.id for one in hit.duplicates)} for hit in hits)
        rank = next((i for i, ids in enumerate(found, start=1) if ids & gold), float("inf"))
        for name in dict.fromkeys(("all", question.get("set", "all"))):
            ranks[name].append(rank)
    each = 1000 * (time.perf_counter() - start) / len(questions)
    table = {}
    for name, found in sorted(ranks.items()):
        row = {f"recall@{k}": round(sum(rank <= k for rank in found) / len(found), 3) for k in CUTS}
        mrr = sum(1 / rank for rank in found if rank <= 10) / len(found)
        table[name] = {"n": len(found), **row, "mrr@10": round(mrr, 3)}
    return {name: {**row, "ms": round(each, 1)} for name, row in table.items()}


if __name__ == "__main__":
    main()
