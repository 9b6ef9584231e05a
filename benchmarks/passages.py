"""A decoder-only model reading passages one by one, cold and from its cache, beside the same passages concatenated.

    python benchmarks/passages.py [--quick] [--json] [--threads N] [--plot FILE.svg]

The concatenated side is the same model in transformers: one prompt with all passages, ``generate`` for one token, then
per further token. Ours are the branches of one question: ``cold`` reads every passage, ``warm`` finds it in the cache.
A decoding step is set beside reading all weights from memory once. ``growth`` says how the cost of an answer grows.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import provenance, say

from bifolio import models
from bifolio.generators.causal import CausalGenerator
from bifolio.protocols import Move, Reading
from bifolio.types import Passage

WORDS = (
    "the pump valve pressure station closes opens before after reservoir upper lower gauge reads less than two bar and "
    "then of which separates water from oil black warm when it has been started by hand or with a key in the office"
).split()
QUESTION = "Which valve must be closed first before the pump stops?"
"""25 tokens with the default model's template behind it."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="Fewer repeats, no growth.")
    options.add_argument("--json", action="store_true", help="One JSON line a case.")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--model", default=models.DEFAULT_GENERATOR)
    options.add_argument("--plot", type=Path, help="Also draw growth into this file (needs matplotlib).")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    folder = models.resolve(given.model)
    ours = CausalGenerator(folder, dtype=given.dtype)
    peer = Concatenated(folder, given.dtype)
    repeat = 3 if given.quick else 7
    for k in (5, 10):
        prefill(ours, peer, k, repeat, given.json)
    for k, beam in ((5, 1), (5, 4), (10, 1), (10, 4)):
        step(ours, peer, k, beam, repeat, given.json)
    if not given.quick:
        table = growth(ours, given.json)
        if given.plot:
            plot(table, given.plot)
    provenance(given.json)


def texts(ours: CausalGenerator, count: int, tokens: int = 200) -> tuple[Passage, ...]:
    """Passages of exactly that many tokens."""
    dice = random.Random(count * 1000 + tokens)
    made = []
    for i in range(count):
        ids = ours._ids(" ".join(dice.choices(WORDS, k=2 * tokens)), trusted=False)[:tokens]
        made.append(Passage(f"p{i}", ours.text(ids), "Station"))
    return tuple(made)


class Concatenated:
    """The peer: one prompt with all passages."""

    def __init__(self, folder: Path, dtype: str) -> None:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        options: dict[str, Any] = {"dtype": getattr(torch, dtype), "use_safetensors": True, "local_files_only": True}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), **options).eval()

    def ids(self, ours: CausalGenerator, passages: tuple[Passage, ...]) -> torch.Tensor:
        """The prompt."""
        parts = ours._parts(Reading(QUESTION, passages, "long", 64, False))
        head = len(ours._head(ours._templates["long"]))
        middle = [token for prefix in parts.prefixes for token in prefix[head:]]
        return torch.tensor([[*parts.prefixes[0][:head], *middle, *parts.tail]])

    @torch.inference_mode()
    def generate(self, ids: torch.Tensor, tokens: int) -> None:
        """Exactly that many tokens."""
        self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip


def cpu(run: Callable[[], Any]) -> tuple[float, float]:
    """CPU and wall seconds."""
    wall, started = time.perf_counter(), time.process_time()
    run()
    return time.process_time() - started, time.perf_counter() - wall


def medians(repeat: int, **sides: Callable[[], Any]) -> dict[str, dict[str, float]]:
    """Each side once unmeasured, then in turn."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for run in sides.values():
        run()
    for _ in range(repeat):
        for name, run in sides.items():
            found[name].append(cpu(run))
    return {
        name: {
            "cpu_s": round(statistics.median(c for c, _ in runs), 4),
            "wall_s": round(statistics.median(w for _, w in runs), 4),
        }
        for name, runs in found.items()
    }


def prefill(ours: CausalGenerator, peer: Concatenated, k: int, repeat: int, as_json: bool) -> None:
    """Until the first token's distribution."""
    passages = texts(ours, k)
    reading = [Reading(QUESTION, passages, "long", 64, False)]
    together = peer.ids(ours, passages)

    def cold() -> None:
        ours._cache.clear()
        ours.read(reading).start()

    found = medians(repeat, cold=cold, warm=lambda: ours.read(reading).start(), peer=lambda: peer.generate(together, 1))
    for name in ("cold", "warm"):
        say(
            {
                "case": f"prefill-{name}-k{k}", "tokens": together.shape[1],
                "question": len(ours._parts(reading[0]).tail),
                "ours": found[name], "peer": {"name": "transformers, concatenated", **found["peer"]},
                "ratio_cpu": ratio(found, name, "cpu_s"), "ratio_wall": ratio(found, name, "wall_s"),
            },
            as_json,
        )  # fmt: skip


def ratio(found: dict[str, dict[str, float]], name: str, key: str) -> float:
    return round(found["peer"][key] / found[name][key], 2)


def step(ours: CausalGenerator, peer: Concatenated, k: int, beam: int, repeat: int, as_json: bool) -> None:
    """One token of k branches, beside reading the weights once, and one token of the concatenated prompt."""
    passages = texts(ours, k)
    branches = ours.read([Reading(QUESTION, passages, "long", 64, False)])
    branches.start()
    branches.advance([Move([0] * beam, [300 + h for h in range(beam)])])
    weights = [parameter.detach() for parameter in peer.model.parameters()]

    def stream() -> None:
        for weight in weights:
            weight.view(-1).view(torch.int32).amax()

    together = peer.ids(ours, passages)
    cache = peer.model(input_ids=together, use_cache=True, logits_to_keep=1)
    kept = cache["cache"] if "cache" in cache else cache["past_key_values"]

    @torch.inference_mode()
    def token() -> None:
        name = "cache" if "cache" in cache else "past_key_values"
        peer.model(input_ids=together[:, -1:], use_cache=True, **{name: kept})
        kept.crop(-1)

    found = medians(
        3 * repeat, ours=lambda: branches.advance([Move(list(range(beam)), [400] * beam)]), stream=stream, peer=token
    )
    say(
        {
            "case": f"step-k{k}-beam{beam}", "ours": found["ours"], "stream": found["stream"],
            "peer": {"name": "transformers, concatenated, one hypothesis", **found["peer"]},
            "ratio_cpu": ratio(found, "ours", "cpu_s"), "ratio_wall": ratio(found, "ours", "wall_s"),
            "over_stream": round(found["ours"]["cpu_s"] / found["stream"]["cpu_s"], 2),
        },
        as_json,
    )  # fmt: skip


def growth(ours: CausalGenerator, as_json: bool) -> list[dict[str, Any]]:
    """CPU seconds of an answer: one quantity varies, the others stay at k 5, beam 1, 200 tokens, 32 tokens."""
    base = {"k": 5, "beam": 1, "passage": 200, "answer": 32}
    values = {"k": (1, 5, 10, 20), "beam": (1, 2, 4, 8), "passage": (50, 100, 200, 400), "answer": (8, 32, 64, 128)}
    lines = []
    for name, row in values.items():
        for value in row:
            case = {**base, name: value}
            reading = [Reading(QUESTION, texts(ours, case["k"], case["passage"]), "long", 128, False)]

            def answer(warm: bool, case: dict[str, int] = case, reading: list[Reading] = reading) -> None:
                if not warm:
                    ours._cache.clear()
                branches = ours.read(reading)
                branches.start()
                parents = [0] * case["beam"]
                for i in range(case["answer"]):
                    branches.advance([Move(parents, [300 + i] * case["beam"])])
                    parents = list(range(case["beam"]))

            answer(False)
            cold, warm = cpu(lambda: answer(False))[0], cpu(lambda: answer(True))[0]
            lines.append(
                {"case": f"growth-{name}-{value}", **case, "cold_cpu_s": round(cold, 2), "warm_cpu_s": round(warm, 2)}
            )
            say(lines[-1], as_json)
    return lines


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    """Four small plots."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "bifolio"
    from matplotlib import pyplot

    names = {"k": "passages k", "beam": "beam", "passage": "tokens of a passage", "answer": "tokens of the answer"}
    figure, axes = pyplot.subplots(1, 4, figsize=(12, 3), layout="constrained")
    for axis, (name, label) in zip(axes, names.items(), strict=True):
        mine = [line for line in lines if line["case"].startswith(f"growth-{name}-")]
        for key, style in (("cold_cpu_s", "o-"), ("warm_cpu_s", "s--")):
            axis.plot([line[name] for line in mine], [line[key] for line in mine], style, label=key.partition("_")[0])
        axis.set(xlabel=label, ylim=(0, None))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("CPU seconds of an answer")
    axes[0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
