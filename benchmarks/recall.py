"""Recall of a default collection on questions with known passages, by set.

    python benchmarks/recall.py --data DIR [--split test] [--encoder ID] [--quick] [--json]

DIR holds passages.jsonl {id,title,text} and SPLIT.jsonl {question,passage_ids,set}. A question counts at k if one of
its passages is among the first k. The collection is built with ``as_passages``, exactly as a user would, and kept at
--collection if given.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path

from common import Meter, provenance, say

from bifolio import Collection

CUTS = (1, 5, 20)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--encoder")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--collection", type=Path, help="keep the collection here; used again if it is there")
    parser.add_argument("--quick", action="store_true", help="100 questions over the passages that answer them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    questions = [json.loads(line) for line in (options.data / f"{options.split}.jsonl").open(encoding="utf-8")]
    questions = [question for question in questions if question.get("passage_ids")]
    with tempfile.TemporaryDirectory() as scratch:
        passages = options.data / "passages.jsonl"
        if options.quick:
            questions = questions[:: max(1, len(questions) // 100)][:100]
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
        for name, row in evaluate(collection, questions).items():
            say({"case": name, **row}, options.json)
    provenance(options.json)


def few(passages: Path, wanted: set[str], scratch: Path) -> Path:
    """The wanted passages alone, in a file of their own."""
    kept = scratch / "passages.jsonl"
    with passages.open(encoding="utf-8") as source, kept.open("w", encoding="utf-8") as target:
        target.writelines(line for line in source if json.loads(line)["id"] in wanted)
    return kept


def evaluate(collection: Collection, questions: list[dict]) -> dict[str, dict[str, float]]:
    """Recall at the cuts and MRR at 10, over all questions and by set."""
    ranks: dict[str, list[float]] = defaultdict(list)
    for question in questions:
        gold = set(question["passage_ids"])
        hits = collection.retrieve(question["question"], max(CUTS))
        rank = next((i for i, hit in enumerate(hits, start=1) if hit.passage.id in gold), float("inf"))
        for name in ("all", question.get("set", "")):
            ranks[name].append(rank)
    table = {}
    for name, found in sorted(ranks.items()):
        row = {f"recall@{k}": round(sum(rank <= k for rank in found) / len(found), 3) for k in CUTS}
        mrr = sum(1 / rank for rank in found if rank <= 10) / len(found)
        table[name] = {"n": len(found), **row, "mrr@10": round(mrr, 3)}
    return table


if __name__ == "__main__":
    main()
