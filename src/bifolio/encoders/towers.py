"""Models in their folders: what kind a folder is, whether it can be loaded safely, and what its vectors depend on.

A :class:`Tower` is one loaded model with its tokenizer; :mod:`bifolio.encoders.transformer` makes an encoder of one or
two of them. Only safetensors are read, nothing is downloaded, no code of a folder is run.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bifolio.errors import MissingExtraError, ModelError, UsageError
from bifolio.weights import quiet_load

DPR_KINDS = ("DPRQuestionEncoder", "DPRContextEncoder")
_DPR_WINDOW = 256  # Karpukhin et al. 2020: passages of 100 words in 256 tokens
_OPEN_WINDOW = 512  # where neither tokenizer nor model says how long an input may be
# Their positions are counted from the padding token's id on, so that many rows of the table are never used.
_NUMBERED_AFTER_PADDING = frozenset(
    "roberta xlm-roberta xlm-roberta-xl roberta-prelayernorm camembert mpnet longformer ibert data2vec-text".split()
)
_MODULES = ("Transformer", "Pooling", "Dense", "LayerNorm", "Dropout", "Normalize")
_WITH_WEIGHTS = ("Transformer", "Dense", "LayerNorm")
# What changes a model's function and is not in its weights; not versions and places, which differ in every package.
_CONFIG_FACTS = ("model_type", "hidden_act", "layer_norm_eps", "num_attention_heads", "num_hidden_layers")
_TOKENIZER_FACTS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
_VOCABULARIES = ("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model")


@dataclass(frozen=True, eq=False)
class Tower:
    """One model with its tokenizer.

    Attributes:
        tokenizer: The model's own.
        run: Token ids, mask and types of a batch to vectors, float32, before the normalisation that is ours.
        device: Where ``run`` expects its tensors.
        window: The longest input in tokens.
        dimension: D.
        normalise: Whether scores are cosines.
        question_prompt: What is put before a question.
        passage_prompt: What is put before a passage.
        facts: What vectors depend on besides weights and tokenizer: part of the fingerprint.
        tokenizing: Fast tokenizers keep truncation as state and fail when two threads change it.
    """

    tokenizer: Any
    run: Callable[[dict[str, torch.Tensor]], torch.Tensor]
    device: torch.device
    window: int
    dimension: int
    normalise: bool
    question_prompt: str
    passage_prompt: str
    facts: Mapping[str, Any]
    tokenizing: threading.Lock = field(default_factory=threading.Lock)


def check_kinds(folder: Path, passage_folder: Path | None) -> str:
    """Say "sentence-transformers" or "dpr"; raises unless the folders are exactly what that kind needs."""
    kind = _kind(folder)
    if passage_folder is None:
        if kind == DPR_KINDS[0]:
            raise UsageError(
                f"{folder} is DPR's question encoder alone; give its passage encoder (DPRContextEncoder) too: "
                "passage_folder=..., or the encoder id 'QUESTION,PASSAGE'"
            )
        if kind == DPR_KINDS[1]:
            raise UsageError(
                f"{folder} is DPR's passage encoder; give the question encoder (DPRQuestionEncoder) as folder and "
                "this one as passage_folder"
            )
        return kind
    other = _kind(passage_folder)
    if (kind, other) == DPR_KINDS:
        return "dpr"
    if (other, kind) == DPR_KINDS:
        raise UsageError(f"question and passage encoder are swapped: {folder} encodes passages; exchange the folders")
    raise UsageError(
        f"{folder} is {kind} and {passage_folder} is {other}; passage_folder is for DPR only: a DPRQuestionEncoder "
        "with a DPRContextEncoder. A sentence-transformers folder encodes both: leave passage_folder out"
    )


def _kind(folder: Path) -> str:
    """Say "sentence-transformers", or give the name of DPR's architecture."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; expected a model's folder")
    if (folder / "modules.json").is_file():
        return "sentence-transformers"
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: neither modules.json nor config.json; expected an encoder's folder")
    architectures = _read_json(folder / "config.json", dict).get("architectures") or []
    for name in DPR_KINDS:
        if name in architectures:
            return name
    raise ModelError(
        f"{folder}: {', '.join(map(str, architectures)) or 'a model'} without modules.json, so how its token vectors "
        "are pooled is unknown. Add modules.json and 1_Pooling/config.json (SentenceTransformer.save writes both)"
    )


def _read_json(path: Path, kind: type) -> Any:
    """The file's content.

    Raises:
        ModelError: it cannot be read, or is not of that kind.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(content, kind):
        raise ModelError(f"{path}: expected a JSON {kind.__name__}, found {type(content).__name__}")
    return content


def _read_optional(path: Path) -> dict[str, Any]:
    """The file's content, or nothing where there is no file."""
    return dict(_read_json(path, dict)) if path.is_file() else {}


def load_sentence_transformer(folder: Path, device: torch.device, dtype: torch.dtype) -> Tower:
    """Load a sentence-transformers folder.

    Raises:
        ModelError: it cannot be loaded safely, or is of a kind whose vectors are not compared by inner product.
    """
    modules = _check_modules(folder)
    settings = _read_optional(folder / "config_sentence_transformers.json")
    with quiet_load(folder):
        loaded = (
            _library("sentence_transformers")
            .SentenceTransformer(
                str(folder),
                device=str(device),
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"dtype": dtype, "use_safetensors": True},
            )
            .eval()
        )
        similarity = str(loaded.similarity_fn_name)
    if similarity not in ("cosine", "dot"):
        raise ModelError(f"{folder}: compares vectors by {similarity!r}; expected 'cosine' or 'dot'")
    transformer, *rest = list(loaded)
    for module in rest:
        module.float()  # pooling and what follows cost nothing, and bfloat16 would blur the result
    question_prompt, passage_prompt = _prompts(settings)
    include_prompt = all(config.get("include_prompt", True) for _, config in modules)
    if not include_prompt and (question_prompt or passage_prompt):
        raise ModelError(f"{folder}: pools without its prompt (include_prompt: false), which is not supported")
    normalise = modules[-1][0] == "Normalize" or similarity == "cosine"
    tokenizer = _check_tokenizer(folder, transformer.tokenizer)
    window = _window(tokenizer, loaded[0].auto_model.config)
    run = _SentenceForward(transformer, rest, loaded.truncate_dim)
    return Tower(
        tokenizer=tokenizer,
        run=run,
        device=device,
        window=window,
        dimension=_dimension(folder, run, tokenizer, device),
        normalise=normalise,
        question_prompt=question_prompt,
        passage_prompt=passage_prompt,
        facts={
            "kind": "sentence-transformers",
            "modules": [[name, config] for name, config in modules],
            "normalise": normalise,
            "window": window,
            "prompts": [question_prompt, passage_prompt],
            "truncate_dim": loaded.truncate_dim,
            **_model_facts(folder, loaded[0].auto_model.config),
        },
    )


def load_dpr(folder: Path, architecture: str, device: torch.device, dtype: torch.dtype) -> Tower:
    """Load one of DPR's two encoders: ``pooler_output``, compared by raw inner product.

    Raises:
        ModelError: it cannot be loaded safely.
    """
    _check_weights(folder)
    with quiet_load(folder):
        transformers = _library("transformers")
        model = getattr(transformers, architecture).from_pretrained(
            str(folder), dtype=dtype, use_safetensors=True, local_files_only=True, trust_remote_code=False
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        model = model.to(device).eval()
    window = min(_DPR_WINDOW, _window(_check_tokenizer(folder, tokenizer), model.config))
    run = _DprForward(model)
    return Tower(
        tokenizer=tokenizer,
        run=run,
        device=device,
        window=window,
        dimension=_dimension(folder, run, tokenizer, device),
        normalise=False,
        question_prompt="",
        passage_prompt="",
        facts={
            "kind": architecture,
            "pooling": "pooler_output",
            "normalise": False,
            "window": window,
            **_model_facts(folder, model.config),
        },
    )


def _library(name: str) -> Any:
    """A module of the extra ``models``, imported when a model is loaded: it takes seconds, and warns."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(name.partition(".")[0].replace("_", "-"), "models", "the encoder") from error


class _SentenceForward:
    """The modules of a sentence-transformers model: the transformer in its own type, the rest in float32."""

    def __init__(self, transformer: Any, rest: Sequence[Any], truncate: int | None) -> None:
        self._transformer, self._rest, self._truncate = transformer, rest, truncate

    def __call__(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        features = self._transformer(dict(inputs))
        for name, value in features.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                features[name] = value.float()
        for module in self._rest:
            features = module(features)
        vectors: torch.Tensor = features["sentence_embedding"]
        return vectors[:, : self._truncate]


class _DprForward:
    """One encoder of DPR."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        # DPR was trained with token types of zero throughout, for pairs too; the tokenizer's are left out.
        out = self._model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        vectors: torch.Tensor = out.pooler_output
        return vectors.float()


def _dimension(folder: Path, run: Callable[..., torch.Tensor], tokenizer: Any, device: torch.device) -> int:
    """D, from one token sent through the model: nothing that a folder says about itself needs to be believed."""
    one = torch.full((1, 1), int(tokenizer.pad_token_id), device=device)
    try:
        with torch.inference_mode():
            return int(run({"input_ids": one, "attention_mask": torch.ones_like(one)}).shape[-1])
    except (RuntimeError, ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder}: the model does not run ({error})") from error


def _check_modules(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Class name and settings of each module; raises unless all are known, safe and in safetensors."""
    modules: list[tuple[str, dict[str, Any]]] = []
    for entry in _read_json(folder / "modules.json", list):
        reference = str(entry.get("type", "")) if isinstance(entry, dict) else ""
        name = reference.rpartition(".")[2]
        if not reference.startswith("sentence_transformers.") or name not in _MODULES:
            raise ModelError(f"{folder}: module {reference!r} is not supported; expected {', '.join(_MODULES)}")
        place = folder / str(entry.get("path", ""))
        if name in _WITH_WEIGHTS:
            _check_weights(place)
        modules.append((name, {} if name == "Transformer" else _read_optional(place / "config.json")))
    names = [name for name, _ in modules]
    if names[:1] != ["Transformer"] or names.count("Transformer") != 1 or "Pooling" not in names:
        raise ModelError(f"{folder}: modules are {names}; expected one Transformer, then Pooling, then the rest")
    return modules


def _check_weights(folder: Path) -> None:
    """Raise unless the folder has safetensors of its own."""
    if (folder / "adapter_config.json").is_file():
        raise ModelError(f"{folder}: an adapter, not a model; merge it into its base model and save that")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{folder}: no .safetensors; other weight files (pytorch_model.bin) can run code and are not read. "
            "Convert them with save_pretrained(..., safe_serialization=True)"
        )


def _check_tokenizer(folder: Path, tokenizer: Any) -> Any:
    """The tokenizer, if it can pad."""
    if tokenizer is None or tokenizer.pad_token_id is None:
        raise ModelError(f"{folder}: its tokenizer has no padding token; set pad_token in tokenizer_config.json")
    return tokenizer


def _window(tokenizer: Any, config: Any) -> int:
    """The longest input in tokens; positions beyond the model's table would be an index error."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions and config.model_type in _NUMBERED_AFTER_PADDING:
        positions -= (config.pad_token_id or 0) + 1
    known = [n for n in (tokenizer.model_max_length, positions) if isinstance(n, int) and 0 < n < 10**6]
    return min(known, default=_OPEN_WINDOW)


def _prompts(settings: Mapping[str, Any]) -> tuple[str, str]:
    """What is put before questions and before passages, by the names that sentence-transformers looks for."""
    prompts = settings.get("prompts") or {}
    default = prompts.get(settings.get("default_prompt_name") or "") or ""
    question = prompts.get("query", default)
    passage = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), default)
    return str(question or ""), str(passage or "")


def _model_facts(folder: Path, config: Any) -> dict[str, Any]:
    """What changes vectors and stands in neither weights nor vocabulary."""
    tokenizer = _read_optional(folder / "tokenizer_config.json")
    lower = _read_optional(folder / "sentence_bert_config.json").get("do_lower_case", False)
    return {
        "config": {name: getattr(config, name, None) for name in _CONFIG_FACTS},
        "tokenizer": {name: tokenizer.get(name) for name in _TOKENIZER_FACTS} | {"lower_first": lower},
    }


def fingerprint(folders: Sequence[Path], facts: Mapping[str, Any]) -> str:
    """The sha256, in hex, over all weights and tokenizers of the folders and the facts, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    for folder in folders:
        weights = sorted({*folder.glob("*.safetensors"), *folder.glob("[0-9]*_*/*.safetensors")})
        whole = folder / "tokenizer.json"
        vocabularies = [whole] if whole.is_file() else [folder / name for name in _VOCABULARIES]
        for path in [*weights, *(path for path in vocabularies if path.is_file())]:
            digest.update(b"file %d\n" % path.stat().st_size)  # so that bytes cannot move from one file to the next
            with path.open("rb") as file:
                while block := file.read(2**20):
                    digest.update(block)
    digest.update(json.dumps(facts, sort_keys=True, ensure_ascii=True).encode())
    return digest.hexdigest()
