"""Tiny random RAG checkpoints, written as transformers writes real ones."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load, save_file
from transformers import (
    BartConfig,
    DPRConfig,
    RagConfig,
    RagModel,
    RagSequenceForGeneration,
    RagTokenForGeneration,
    T5Config,
)

from unit.encoder_folders import SIZES, write_tokenizer

CLASSES = {"token": RagTokenForGeneration, "sequence": RagSequenceForGeneration, None: RagModel}
BART = {
    "vocab_size": 80,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
    "init_std": 0.3,
}
T5 = {
    "vocab_size": 80,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 1,
    "num_heads": 2,
    "initializer_factor": 2.0,
}


def make_rag(scheme="token", generator="bart", *, seed=0, **settings):
    """The model itself; ``settings`` with ``generator_`` in front go to the generator's."""
    torch.manual_seed(seed)
    inner = {k.removeprefix("generator_"): v for k, v in settings.items() if k.startswith("generator_")}
    outer = {k: v for k, v in settings.items() if not k.startswith("generator_")}
    if generator == "bart":
        config = BartConfig(**{**BART, **inner})
    else:
        config = T5Config(decoder_start_token_id=0, **{**T5, **inner})
    question = DPRConfig(**SIZES)
    rag = RagConfig.from_question_encoder_generator_configs(question, config, **outer)
    return CLASSES[scheme](config=rag).eval()


def write_rag(folder: Path, scheme="token", generator="bart", *, max_shard_size=None, **options):
    """The model, saved with both tokenizers; it is returned."""
    model = make_rag(scheme, generator, **options)
    model.save_pretrained(folder, **({"max_shard_size": max_shard_size} if max_shard_size else {}))
    for part in ("question_encoder", "generator"):
        write_tokenizer(folder / f"{part}_tokenizer")
    return model


def rewrite_weights(folder: Path, change) -> None:
    """Replace the weights by what ``change`` makes of them; tensors may be the same one."""
    weights = change(load((folder / "model.safetensors").read_bytes()))
    save_file({name: tensor.clone().contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")


def to_bin(folder: Path) -> dict[str, torch.Tensor]:
    """Turn the weights into a pickle as old checkpoints have it, tied tables under all of their names."""
    weights = load((folder / "model.safetensors").read_bytes())
    shared = next(name for name in weights if name.endswith("shared.weight"))
    stem = shared.removesuffix("shared.weight")
    for alias in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        weights[stem + alias] = weights[shared]
    weights[stem.removesuffix("model.") + "lm_head.weight"] = weights[shared]
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return weights


def edit_config(folder: Path, **changes) -> None:
    """Change settings; ``generator__x`` is setting x of the generator, and a value of ... takes one away."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name, value in changes.items():
        part, _, inner = name.rpartition("__")
        place = config[part] if part else config
        if value is ...:
            place.pop(inner, None)
        else:
            place[inner] = value
    path.write_text(json.dumps(config))


def copy(source: Path, target: Path) -> Path:
    """A copy of a checkpoint that a test may spoil."""
    return Path(shutil.copytree(source, target))
