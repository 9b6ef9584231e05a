"""Rerankers: models that read the question together with a passage, and are too slow to read them all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float32

from bifolio.errors import MissingExtraError, ModelError, UsageError
from bifolio.protocols import LogitGenerator, Reading, TextGenerator
from bifolio.types import Passage

GENERATOR_WEIGHT = 0.3
"""Nats of the prior for one nat of log p(x|z). On wikiqa dev, with SmolLM2-135M beside hybrid retrieval, R@1 and MRR
are best from 0.25 to 0.3 and fall slowly on both sides (docs/LOG.md)."""
INSTRUCTION = "Please write a question based on this passage."
"""What stands in the question's place; the question is the answer to it (Sachan et al. 2022, arXiv:2204.07496)."""


class CrossEncoderReranker:
    """A cross-encoder: question and passage in one input, one logit out."""

    def __init__(self, folder: str | Path, *, weight: float = 1.0, device: str = "auto", batch: int = 16) -> None:
        """Load the model from a local folder; nothing is downloaded, only safetensors are read, no remote code runs.

        Args:
            folder: A sequence classifier with one label, as written by ``save_pretrained``.
            weight: Nats of the prior for one unit of its logit.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:1`` ...
            batch: Passages that it reads at once.

        Raises:
            ModelError: the folder holds no such model.
            UsageError: the weight is not a finite number above 0, or CUDA is asked for and absent.
            MissingExtraError: sentence-transformers is not installed.
        """
        try:
            from sentence_transformers import CrossEncoder
        except ImportError as error:
            raise MissingExtraError("sentence-transformers", "models", "a cross-encoder") from error
        import torch

        from bifolio.weights import pick_device, quiet_load

        self._weight, self._batch = _checked(weight), batch
        device = str(pick_device(device))
        with quiet_load(Path(folder)):
            self._model: Any = CrossEncoder(
                str(folder),
                device=device,
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True},
                activation_fn=torch.nn.Identity(),
            )
        labels = int(self._model.config.num_labels)
        if labels != 1:
            raise ModelError(f"{folder} has {labels} labels: expected a cross-encoder with one, its relevance")

    def scores(self, question: str, passages: Sequence[Passage]) -> Float32[np.ndarray, " n"]:
        """``weight`` times the model's logit, in the order of the passages; what is too long is cut at its end."""
        if not passages:
            return np.zeros(0, dtype=np.float32)
        pairs = [(question, f"{passage.label}\n{passage.text}".strip()) for passage in passages]
        logits = self._model.predict(pairs, batch_size=self._batch, show_progress_bar=False, convert_to_numpy=True)
        gains: Float32[np.ndarray, " n"] = (self._weight * np.asarray(logits, dtype=np.float64)).astype(np.float32)
        return gains


class GeneratorReranker:
    """A generator: how likely the question is after the passage, log p(x|z) - log p(x) (Sachan et al. 2022).

    The difference is what the passage tells of the question: 0 for one that tells nothing. The second term is the same
    for all passages and moves none before another, but it puts them on the scale of the no-passage branch.
    """

    def __init__(self, generator: LogitGenerator | TextGenerator, *, weight: float = GENERATOR_WEIGHT) -> None:
        """Read with ``generator``, whose passage cache serves the answers, too.

        Args:
            generator: It gives log-probabilities of given tokens.
            weight: Nats of the prior for one nat of that.

        Raises:
            UsageError: the weight is not a finite number above 0, or the generator is a server's.
        """
        if hasattr(type(generator), "concatenated"):  # asking for the protocol would ask the server
            raise UsageError(
                "a reranker needs the generator's next-token distribution, which a server does not return: take a "
                "local one"
            )
        self._generator, self._weight = cast("LogitGenerator", generator), _checked(weight)

    def scores(self, question: str, passages: Sequence[Passage]) -> Float32[np.ndarray, " n"]:
        """``weight * (log p(x|z) - log p(x))`` in the order of the passages; x ends with EOS.

        Raises:
            UsageError: the question does not fit the generator's window.
        """
        if not passages:
            return np.zeros(0, dtype=np.float32)
        ids = self._generator.answer_ids(question, style="long")
        reading = Reading(INSTRUCTION, tuple(passages), "long", len(ids), no_passage=True)
        ((log_probs,),) = self._generator.read([reading]).score([[ids]])
        totals = log_probs.double().sum(1).cpu().numpy()
        gains: Float32[np.ndarray, " n"] = (self._weight * (totals[:-1] - totals[-1])).astype(np.float32)
        return gains


def _checked(weight: float) -> float:
    if not 0 < weight < float("inf"):
        raise UsageError(f"weight {weight!r} of a reranker: expected a finite number above 0")
    return float(weight)
