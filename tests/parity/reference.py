"""The reference implementation (transformers, models/rag) with tiny random weights, and the same weights in bifolio.

Nothing is downloaded. One pair of a shape is made once and its weights are drawn anew for every seed, so that hundreds
of models cost seconds. All in float64.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast, RagConfig, RagSequenceForGeneration, RagTokenForGeneration

from bifolio import marginal
from bifolio.generators.grid import Grid
from bifolio.generators.seq2seq import Seq2SeqGenerator
from bifolio.generators.seq2seq_prompts import Seq2SeqPrompts
from bifolio.hypotheses import Mixture, constant
from bifolio.segments import boundary, segment_ids

VOCABULARY = 24
MAX_LENGTH = 24
"""Of the reference's rows, the decoder's start included."""
UNPADDED = [[0, 7, 8, 9, 2], [0, 10, 11, 12, 2]]
SCORES = torch.tensor([[1.0, -0.5]], dtype=torch.float64)
"""Two contexts and their scores, for the tests of the reference's faults."""


def words(family: str) -> PreTrainedTokenizerFast:
    """One token a word: ``w7`` is a word of the vocabulary, and ids can be written as text."""
    special = ["<s>", "<pad>", "</s>", "<unk>"] if family == "bart" else ["<unk>", "<pad>", "</s>"]
    names = [*special, "/", "//", *(f"w{i}" for i in range(VOCABULARY - len(special) - 2))]
    core = Tokenizer(tokenizer_models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if family == "bart" else "$A </s>",
        special_tokens=[(name, names.index(name)) for name in ("<s>", "</s>") if name in special],
    )
    bos = {"bos_token": "<s>"} if family == "bart" else {}
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", pad_token="<pad>", unk_token="<unk>", **bos)


def configuration(family: str, width: int, layers: int, heads: int, **changes):
    """A small one of a family; with padding as token 0, as T5 has it, the reference's beams end in many EOS."""
    if family == "bart":
        made = transformers.BartConfig(
            vocab_size=VOCABULARY, d_model=width, encoder_layers=layers, decoder_layers=layers,
            encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=2 * width,
            decoder_ffn_dim=2 * width, max_position_embeddings=64, bos_token_id=0, pad_token_id=1, eos_token_id=2,
            decoder_start_token_id=2, forced_eos_token_id=None, **changes,
        )  # fmt: skip
    else:
        made = transformers.T5Config(
            vocab_size=VOCABULARY, d_model=width, d_kv=width // heads, d_ff=2 * width, num_layers=layers,
            num_heads=heads, bos_token_id=None, pad_token_id=1, eos_token_id=2, decoder_start_token_id=1,
            **changes,
        )  # fmt: skip
    return made


@dataclass(frozen=True)
class Pair:
    """The reference's two models around one generator, and ours with the same weights."""

    token: RagTokenForGeneration
    sequence: RagSequenceForGeneration
    ours: Seq2SeqGenerator

    @property
    def theirs(self):
        """The reference's generator."""
        return self.token.rag.generator

    @property
    def start(self) -> int:
        """What the decoder begins with."""
        return self.theirs.config.decoder_start_token_id

    @property
    def pad(self) -> int:
        return self.theirs.config.pad_token_id

    @property
    def eos(self) -> int:
        return self.theirs.config.eos_token_id

    def redraw(self, seed: int, *, ending: float = 0.0) -> None:
        """All weights anew; the greater ``ending``, the likelier is EOS."""
        dice = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in self.theirs.named_parameters():
                norm = "norm" in name and name.endswith("weight")
                weight.copy_(torch.randn(weight.shape, generator=dice, dtype=weight.dtype) * 0.4 + norm)
            self._let_it_end(ending, dice)
        self.ours._model.load_state_dict(self.theirs.state_dict())

    def _let_it_end(self, ending: float, dice: torch.Generator) -> None:
        """Padding that is generated would not be scored by the reference: with ``ending`` it is out of reach."""
        if self.theirs.config.model_type == "bart":
            bias = torch.randn(VOCABULARY, generator=dice, dtype=torch.float64)
            bias[self.eos] += 2 * ending
            bias[self.pad] -= 50 * (ending > 0)
            self.theirs.final_logits_bias.copy_(bias[None])
            return
        # T5 has no biases: one direction of its stream is made the same for all tokens but EOS and the decoder's start.
        self.theirs.shared.weight[:, 0] = 20.0
        self.theirs.shared.weight[self.start, 0] = 0.0  # which is padding, too
        self.theirs.shared.weight[self.eos, 0] += 2 * ending
        for name, weight in self.theirs.named_parameters():
            if name.endswith("layer_norm.weight") and "final" not in name:
                weight *= 4
                weight[0] = 0  # nothing reads it
            elif name.endswith(("o.weight", "wo.weight")):
                weight[0] = 0  # nothing writes it
        self.theirs.decoder.final_layer_norm.weight[0] = 1.0

    def branches(self, contexts: list[list[list[int]]]) -> Grid:
        """Branches whose encoder reads exactly these ids: B questions, K contexts each."""
        encoded = self.ours._encode([ids for mine in contexts for ids in mine])
        sizes, questions = [len(mine) for mine in contexts], len(contexts)
        prompts = Seq2SeqPrompts(self.ours._seq2seq, encoded)
        return Grid(prompts, sizes, [self.ours._ends] * questions, ((),) * questions)

    def tensors(self, contexts: list[list[list[int]]], scores: torch.Tensor) -> dict[str, torch.Tensor]:
        """The same as arguments of the reference, padded on the right."""
        ids, mask = padded([row for mine in contexts for row in mine], self.pad)
        return {"context_input_ids": ids, "context_attention_mask": mask, "doc_scores": scores}

    def labels(self, answers: list[list[int]]) -> torch.Tensor:
        """What the reference takes for labels: the decoder's input, of which the target is shifted left."""
        return padded([[self.start, *answer] for answer in answers], self.pad)[0]

    def losses(
        self, contexts: list[list[list[int]]], scores: torch.Tensor, answers: list[list[int]], scheme: str
    ) -> torch.Tensor:
        """Ours: -log p(y|x) of one answer a question, through the likelihoods of training."""
        ids, seen = self.ours._pad([row for mine in contexts for row in mine])
        token_log_probs, mask = self.ours._seq2seq.token_log_probs(ids, seen, answers, self.ours._ends)
        rule = boundary(scheme, self.ours.text)
        longest = mask.shape[1]
        segments = torch.tensor([(segment_ids(a, rule) + [0] * longest)[:longest] for a in answers])
        prior = marginal.log_prior(scores)
        return -marginal.segment_log_likelihood(prior, token_log_probs, segments, mask)


def padded(rows: list[list[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as one tensor with its mask."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask


def pair(folder: Path, family: str, width: int = 16, layers: int = 2, heads: int = 2, **changes) -> Pair:
    """Both implementations; call ``redraw`` before use. ``changes`` are settings of generation."""
    config = configuration(family, width, layers, heads)
    name = "BartForConditionalGeneration" if family == "bart" else "T5ForConditionalGeneration"
    made = getattr(transformers, name)(config)
    ids = {key: getattr(config, key) for key in ("bos_token_id", "pad_token_id", "eos_token_id")}
    made.generation_config.update(decoder_start_token_id=config.decoder_start_token_id, **ids, **changes)
    made.save_pretrained(folder)
    words(family).save_pretrained(folder)
    question = transformers.DPRConfig(
        vocab_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        max_position_embeddings=4,
    )  # fmt: skip
    encoder = transformers.DPRQuestionEncoder(question)
    rag = RagConfig.from_question_encoder_generator_configs(question, config)
    token = RagTokenForGeneration(rag, question_encoder=encoder, generator=made)
    sequence = RagSequenceForGeneration(rag, question_encoder=encoder, generator=made)
    token.generation_config.update(decoder_start_token_id=config.decoder_start_token_id, **ids, **changes)
    for model in (token, sequence):
        model.double().eval()
    return Pair(token, sequence, Seq2SeqGenerator(folder, dtype="float64", trainable=True))


class Unfinished(Exception):
    """A search went on for longer than the test allows."""


class Counted:
    """Branches of which no search may take more than ``most`` steps."""

    def __init__(self, branches: Grid, most: int) -> None:
        self._branches, self._left = branches, most

    def advance(self, moves):
        self._left -= 1
        if not self._left:
            raise Unfinished
        return self._branches.advance(moves)

    def apart(self):
        return Counted(self._branches.apart(), self._left)

    def __getattr__(self, name):
        return getattr(self._branches, name)


@dataclass(frozen=True)
class Problem:
    """Questions with their contexts as ids, the retriever's scores, and one answer each."""

    contexts: list[list[list[int]]]
    scores: torch.Tensor
    answers: list[list[int]]
    beams: int

    @property
    def k(self) -> int:
        return len(self.contexts[0])


def problem(made: Pair, seed: int, *, ragged: bool = True, most: int = 10) -> Problem:
    """B in 1..3, K in 1..10 (or ``most``), contexts of 3 to 11 tokens, answers of 1 to 6 words."""
    dice = random.Random(seed)
    family_bos = [0] if made.theirs.config.bos_token_id is not None else []

    def text(low: int, high: int) -> list[int]:
        return [dice.randrange(5, VOCABULARY) for _ in range(dice.randint(low, high))]

    b, k, length = dice.randint(1, 3), dice.randint(1, most), dice.randint(3, 9)
    contexts = [
        [[*family_bos, *(text(1, 9) if ragged else text(length, length)), made.eos] for _ in range(k)] for _ in range(b)
    ]
    answers = [[*family_bos, *text(1, 6), made.eos] for _ in range(b)]
    scores = torch.randn(b, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    return Problem(contexts, scores, answers, dice.randint(1, 4))


def reference_loss(model, made, contexts, scores, answers, **options):
    with torch.no_grad():
        given = made.tensors([contexts] * len(answers), scores.expand(len(answers), -1))
        return model(**given, labels=made.labels(answers), n_docs=len(contexts), **options).loss


def token_log_probs(made, contexts, answer):
    """log p(y_i | x, z, y_<i) under each context, by the plain model: one row, no padding."""
    rows = []
    for ids in contexts:
        with torch.no_grad():
            logits = made.theirs(
                input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([[made.start, *answer[:-1]]])
            ).logits[0]
        rows.append(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0])
    return torch.stack(rows)


def mixture(made, scores=SCORES):
    return Mixture(constant(marginal.log_prior(scores[0])), lambda prefix: False, made.eos)
