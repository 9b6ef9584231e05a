"""Exact decoding of RAG-Sequence beside thorough and fast: whose answer has the higher p(y|x), and at what cost.

    python benchmarks/search.py [--data WIKIQA_MINI] [--quick] [--json]

Thorough searches each of K passages with a beam of B; exact searches the mixture with a beam of K B (as many live
hypotheses) and of B. Random models: tiny encoder-decoder ones, drawn anew for every seed. With data: the default
generator over the passages that the default encoder finds. What fast finds is scored exactly, under all passages.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from common import provenance, say

from bifolio import decode, passagewise
from bifolio.generators.ends import Ends
from bifolio.generators.grid import Grid
from bifolio.generators.seq2seq_prompts import Seq2SeqModel, Seq2SeqPrompts
from bifolio.hypotheses import Decoded, Mixture, constant
from bifolio.protocols import Branches

Problem = tuple[Callable[[], Branches], Mixture]
EQUAL = 1e-4  # nats by which two log-probabilities may differ and still be the same


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--data", type=Path, help="Folder with passages.jsonl and questions to ask the real model.")
    options.add_argument("--quick", action="store_true", help="A tenth of the problems.")
    options.add_argument("--json", action="store_true", help="One JSON line a case.")
    options.add_argument("--models", type=int, default=400, help="Random models.")
    options.add_argument("--questions", type=int, default=100, help="Questions to the real model.")
    given = options.parse_args()
    part = 10 if given.quick else 1
    for k, beam in ((3, 2), (5, 1), (5, 4)):
        compare(f"random-k{k}-beam{beam}", random_problems(given.models // part, k), k, beam, 30, given.json)
    if given.data:
        with tempfile.TemporaryDirectory() as folder:
            for k, beam in ((5, 1), (5, 2)):
                problems = real_problems(given.data, Path(folder), given.questions // part, k)
                compare(f"default-model-k{k}-beam{beam}", problems, k, beam, 16, given.json)
    else:
        say({"case": "default-model", "skipped": "needs data, give --data DIR"}, given.json)
    provenance(given.json)


def random_problems(count: int, k: int) -> Iterator[Problem]:
    """Tiny BART models with sharp random weights, in which EOS is likely enough for answers to end."""
    from transformers import BartConfig, BartForConditionalGeneration

    from bifolio.generators import attention

    attention.register()
    settings = BartConfig(
        vocab_size=40, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64, init_std=0.4,
    )  # fmt: skip
    for seed in range(count):
        torch.manual_seed(seed)
        model = BartForConditionalGeneration(settings).double().eval()
        model.final_logits_bias[0, 2] = 3.0
        model.set_attn_implementation(attention.NAME)
        ids = torch.randint(4, 40, (k, 12))
        with torch.inference_mode():
            states = model.get_encoder()(input_ids=ids).last_hidden_state
        log_prior = torch.log_softmax(torch.randn(k, dtype=torch.float64), 0)
        made = Seq2SeqModel(model, 2, True)

        def branches(made: Any = made, states: Any = states) -> Branches:
            prompts = Seq2SeqPrompts(made, (states, torch.ones(states.shape[:2], dtype=torch.bool)))
            return Grid(prompts, [k], [Ends(2, torch.tensor([2]))], ((),))

        yield branches, Mixture(constant(log_prior), lambda prefix: False, 2)


def real_problems(data: Path, folder: Path, count: int, k: int) -> Iterator[Problem]:
    """Questions of a data set, passages found by the default encoder, short answers by the default generator."""
    import json

    from bifolio import Collection
    from bifolio.loading import load_generator
    from bifolio.protocols import Reading
    from bifolio.retriever import Retriever

    path = folder / "collection"
    make = Collection.open if path.exists() else None
    collection = make(path) if make else Collection.build([data / "passages.jsonl"], path, as_passages=True)
    generator: Any = load_generator()
    retriever = Retriever(collection)
    lines = next(p for p in (data / "test.jsonl", data / "dev.jsonl") if p.exists()).read_text().splitlines()
    for line in lines[:count]:
        question = json.loads(line)["question"]
        hits = retriever.retrieve(question, k)
        log_prior = retriever.prior.log_prior([hit.score for hit in hits])
        reading = Reading(question, tuple(hit.passage for hit in hits), "short", 16, False)

        def branches(reading: Reading = reading) -> Branches:
            return generator.read([reading])

        yield branches, Mixture(constant(log_prior), lambda prefix: False, generator.spec.eos)


def compare(name: str, problems: Iterator[Problem], k: int, beam: int, longest: int, as_json: bool) -> None:
    """One line: how often exact is at least as good, and what each costs."""
    ways: dict[str, Callable[[Branches, Mixture], Sequence[Decoded]]] = {
        "exact_kb": lambda b, m: decode.run(b, [decode.beam(m, max_tokens=longest, beams=k * beam)])[0],
        "exact_b": lambda b, m: decode.run(b, [decode.beam(m, max_tokens=longest, beams=beam)])[0],
        "thorough": lambda b, m: passagewise.thorough(b, [m], max_tokens=longest, beams=beam)[0],
        "fast": lambda b, m: passagewise.fast(b, [m], max_tokens=longest, beams=beam)[0],
    }
    found: dict[str, list[tuple[bool, float]]] = {way: [] for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for make, mixture in problems:
        for way, search in ways.items():
            branches = make()
            branches.start()  # reading is the same for all
            started = time.process_time()
            best = search(branches, mixture)[0]
            seconds[way].append(time.process_time() - started)
            ((exact,),) = passagewise.score(branches, [mixture], [[best.tokens]])
            found[way].append((best.finished, exact.log_prob))
    line: dict[str, Any] = {"case": name, "n": len(found["thorough"])}
    for way in ("exact_kb", "exact_b", "fast"):
        pairs = list(zip(found[way], found["thorough"], strict=True))
        line[way] = {
            "at_least_thorough": round(sum(no_worse(a, b) for a, b in pairs) / len(pairs), 4),
            "above": round(sum(not no_worse(b, a) for a, b in pairs) / len(pairs), 4),
            "mean_gain_nats": round(statistics.mean(a[1] - b[1] for a, b in pairs), 4),
            "ratio_cpu": round(sum(seconds["thorough"]) / sum(seconds[way]), 2),
        }
    say(line, as_json)


def no_worse(mine: tuple[bool, float], other: tuple[bool, float]) -> bool:
    """Finished answers rank before those that were cut."""
    return mine[0] > other[0] or (mine[0] == other[0] and mine[1] >= other[1] - EQUAL)


if __name__ == "__main__":
    main()
