"""Which generators the suite is run on, and the plain model that they are compared with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import tiny
from bifolio.generators.causal import CausalGenerator
from bifolio.generators.seq2seq import Seq2SeqGenerator
from bifolio.protocols import Reading
from bifolio.types import Passage

SHARED = ("llama", "gpt2", "qwen3", "neox", "opt", "mistral", "gemma2")
"""Decoder-only families whose hypotheses share their prompt."""
ALIBI = ("bloom", "mpt", "falcon")
"""Those that need a row for every hypothesis."""
SINGLE = (*ALIBI, "gemma2")
"""Those whose softmax is in float32: in float64 the mask of padding overflows there."""
ENCODER_DECODERS = ("bart", "mbart", "pegasus", "marian", "t5", "mt5")
NAMES = (*SHARED, *ALIBI, *ENCODER_DECODERS)

PASSAGES = (
    Passage("1", "Close V-12 first.", title="Valves"),
    Passage("2", "The pump is red. It was built in 1970, says the book.", title="Pumps"),
    Passage("3", "ok"),
)
READINGS = (
    Reading("Which valve closes first?", PASSAGES, "short", 12, True),
    Reading("Why?", PASSAGES[1:2], "long", 12, False),
    Reading("What is red in there?", PASSAGES[:2], "short", 12, False),
)
"""Questions with four, one and two branches."""


@dataclass(frozen=True)
class Subject:
    """A generator and the same weights in transformers, with the attention that they came with."""

    generator: Any
    plain: Any
    tolerance: float

    def prompts(self, reading: Reading) -> list[list[int]]:
        """Token ids that each branch reads."""
        if isinstance(self.generator, Seq2SeqGenerator):
            return self.generator._inputs(reading)[0]
        parts = self.generator._parts(reading)
        return [[*prefix, *parts.tail] for prefix in parts.prefixes]

    def log_probs(self, reading: Reading, answer: tuple[int, ...], *, grad: bool = False) -> torch.Tensor:
        """Log p(next | x, z, answer) of every branch, (K, V): one prompt at a time, no cache, no padding."""
        rows = []
        with torch.set_grad_enabled(grad):
            for prompt in self.prompts(reading):
                if isinstance(self.generator, Seq2SeqGenerator):
                    ids, start = torch.tensor([prompt]), self.plain.generation_config.decoder_start_token_id
                    out = self.plain(input_ids=ids, decoder_input_ids=torch.tensor([[start, *answer]]), use_cache=False)
                else:
                    out = self.plain(input_ids=torch.tensor([[*prompt, *answer]]), use_cache=False)
                rows.append(torch.log_softmax(out.logits[0, -1], dim=-1))
            return self._ends(torch.stack(rows), reading.style)

    def _ends(self, rows: torch.Tensor, style: str) -> torch.Tensor:
        """All ways to end an answer as one."""
        ends = self.generator._ends
        stops = (ends if isinstance(self.generator, Seq2SeqGenerator) else ends[style]).stops
        total = rows[:, stops].exp().sum(1).log()
        rows = rows.index_fill(1, stops, -torch.inf)
        rows[:, self.generator.spec.eos] = total
        return rows

    def close(self, mine: torch.Tensor, theirs: torch.Tensor) -> None:
        """Equal, impossible tokens included."""
        torch.testing.assert_close(mine.double(), theirs.double(), atol=self.tolerance, rtol=0)


def subject(family: str, folder: Path, **options: Any) -> Subject:
    """A tiny random model of a family, in float64 where the family can."""
    dtype = options.pop("dtype", "float32" if family in SINGLE else "float64")
    if family in ENCODER_DECODERS:
        tiny.seq2seq(folder, family=family)
        generator = Seq2SeqGenerator(folder, dtype=dtype, **options)
        load = transformers.AutoModelForSeq2SeqLM
    else:
        tiny.causal(folder, family=family, chat=False)
        generator = CausalGenerator(folder, dtype=dtype, **options)
        load = transformers.AutoModelForCausalLM
    plain = load.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    return Subject(generator, plain, 1e-9 if dtype == "float64" else 3e-4)
