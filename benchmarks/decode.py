"""RAG-Token and RAG-Sequence beside transformers' models/rag: same random weights, same inputs, same threads.

    python benchmarks/decode.py --peer PEER_SCRIPT [--quick] [--json]

PEER_SCRIPT builds the reference's model (BERT-base question encoder, BART-base size generator) and times it; this
script takes weights and inputs from it. Every run has a process of its own, so that peak memory is the case's own; ours
and the peer take turns. ``generate`` makes exactly 20 new tokens; RagSequence is decoded by the reference's thorough
decoding (a beam search per passage, then rescoring) and by our exact one. Extra memory is what a case takes above the
loaded model: of the peer as its script tells it, which leaves out what fits into the peak of loading; of ours in full.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from common import peak_mb, provenance, say

# model, operation, beam, passages, questions, real tokens of 300 (0: all)
CASES = [
    ("token", "gen", 4, 5, 4, 0),
    ("token", "gen", 1, 5, 4, 0),
    ("token", "gen", 4, 10, 4, 0),
    ("seq", "gen", 4, 5, 1, 0),
    ("seq", "gen", 4, 10, 1, 0),
    ("token", "train", 1, 5, 4, 0),
    ("token", "train", 1, 5, 4, 120),
    ("seq", "train", 1, 5, 4, 0),
    ("token", "train", 1, 10, 4, 0),
]
QUICK = [CASES[0], CASES[3], CASES[6]]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--peer", type=Path, required=True, help="The script of the peer's side.")
    options.add_argument("--quick", action="store_true", help="Three cases, once each.")
    options.add_argument("--json", action="store_true", help="One JSON line a case.")
    options.add_argument("--repeat", type=int, default=3, help="Runs of each side of a case; medians are reported.")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--cases", help="Indices of the cases to run, such as 0,3.")
    options.add_argument("--side", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.side:
        print(json.dumps(ours(load(given.peer), json.loads(given.side), given.threads)))
        return
    cases = QUICK if given.quick else CASES
    if given.cases:
        cases = [CASES[int(i)] for i in given.cases.split(",")]
    for case in cases:
        say(compare(given.peer, case, given.threads, 1 if given.quick else given.repeat), given.json)
    provenance(given.json)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("peer", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path}: cannot be loaded; expected the peer's Python script")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(peer: Path, case: tuple[Any, ...], threads: int, repeat: int) -> dict[str, Any]:
    model, op, beam, docs, batch, real = case
    flags = ["--model", model, "--op", op, "--beam", beam, "--docs", docs, "--batch", batch, "--real", real]
    theirs = [sys.executable, str(peer), *map(str, flags), "--threads", str(threads)]
    mine = [sys.executable, __file__, "--peer", str(peer), "--side", json.dumps(case), "--threads", str(threads)]
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "peer": []}
    for _ in range(repeat):
        for name, command in (("ours", mine), ("peer", theirs)):
            runs[name].append(figures(command))
    middle = {
        name: {key: round(statistics.median(run[key] for run in found), 3) for key in found[0]}
        for name, found in runs.items()
    }
    line: dict[str, Any] = {"case": f"{model}-{op}-beam{beam}-k{docs}-batch{batch}-real{real or 300}", **middle}
    line["peer"] = {"name": "transformers models/rag", **middle["peer"]}
    for name, key in (("cpu", "cpu_s"), ("wall", "wall_s"), ("memory", "extra_mb")):
        line[f"ratio_{name}"] = round(middle["peer"][key] / max(middle["ours"][key], 1e-9), 2)
    return line


def figures(command: list[str]) -> dict[str, float]:
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    wall = found.get("s", found.get("wall_s"))
    peak, base = found.get("peak_rss_mb", found.get("peak_mb")), found.get("base_rss_mb", found.get("base_mb"))
    return {"cpu_s": found["cpu_s"], "wall_s": wall, "peak_mb": peak, "extra_mb": peak - base}


def ours(peer: ModuleType, case: tuple[Any, ...], threads: int) -> dict[str, float]:
    """Our side of one case."""
    model, op, beam, docs, batch, real = case
    asked = argparse.Namespace(
        model=model, op=op, size="medium", beam=beam, docs=docs, batch=batch, ctx=300, real=real, new=20,
        threads=threads, dtype="float32",
    )  # fmt: skip
    whole, settings = peer.build(asked)
    inputs = peer.inputs(asked, settings)
    run = (train if op == "train" else generate)(whole, inputs, asked)
    base = forget_peak()
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    try:
        peak = status_mb("VmHWM")
    except (OSError, StopIteration):
        peak = peak_mb()
    return {"cpu_s": cpu, "wall_s": wall, "peak_mb": peak, "base_mb": base}


def forget_peak() -> float:
    """Resident memory now, in MB, from which the peak is counted on; the peak so far where that cannot be had."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return peak_mb()
    return status_mb("VmRSS")


def status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def prepared(whole: Any, inputs: Any, *, packing: bool) -> tuple[Any, Any, Any]:
    """The generator as ours, and contexts cut to the longest that is real."""
    from bifolio.generators import attention
    from bifolio.generators.packed import pack
    from bifolio.generators.seq2seq_prompts import Seq2SeqModel

    ids, mask = inputs[:2]
    generator = whole.rag.generator
    attention.register()
    generator.set_attn_implementation(attention.NAME)
    if packing:
        pack(generator)
    longest = int(mask.sum(1).max())
    return Seq2SeqModel(generator, 2, True), ids[:, :longest], mask[:, :longest]


def generate(whole: Any, inputs: Any, asked: argparse.Namespace) -> Any:
    import torch

    from bifolio import decode
    from bifolio.generators.ends import Ends
    from bifolio.generators.grid import Grid
    from bifolio.generators.seq2seq_prompts import Seq2SeqPrompts
    from bifolio.hypotheses import Mixture, constant

    class NeverEnds(Ends):
        """EOS has no probability: all answers have the same length, as the peer's."""

        def log_probs(self, logits: Any) -> Any:
            log_p = super().log_probs(logits)
            log_p[..., self.eos] = -torch.inf
            return log_p

    model, ids, mask = prepared(whole, inputs, packing=True)
    whole.eval()
    ends = NeverEnds(2, torch.tensor([2]))
    log_prior = inputs[2].log_softmax(1)

    def run() -> None:
        with torch.inference_mode():
            seen = None if bool(mask.all()) else mask
            states = model.model.get_encoder()(input_ids=ids, attention_mask=seen).last_hidden_state
            prompts = Seq2SeqPrompts(model, (states, mask.bool()))
            branches = Grid(prompts, [asked.docs] * asked.batch, [ends] * asked.batch, ((),) * asked.batch)
            token = asked.model == "token"
            mixtures = [Mixture(constant(row), lambda prefix: token, 2) for row in log_prior]
            found = decode.run(
                branches, [decode.beam(mixture, max_tokens=asked.new, beams=asked.beam) for mixture in mixtures]
            )
            assert all(len(answers[0].tokens) == asked.new for answers in found)

    return run


def train(whole: Any, inputs: Any, asked: argparse.Namespace) -> Any:
    import torch

    from bifolio import marginal
    from bifolio.generators.ends import Ends

    model, ids, mask = prepared(whole, inputs, packing=False)
    scores, labels = inputs[2].clone().requires_grad_(True), [row[1:].tolist() for row in inputs[3]]
    whole.train()

    def run() -> None:
        log_probs, real = model.token_log_probs(ids, mask, labels, Ends(2, torch.tensor([2])))
        tokens = torch.arange(log_probs.shape[2]).expand(asked.batch, -1)
        segments = tokens if asked.model == "token" else torch.zeros_like(tokens)
        (-marginal.segment_log_likelihood(scores.log_softmax(1), log_probs, segments, real)).sum().backward()

    return run


if __name__ == "__main__":
    main()
