"""Tiny random models, written in exactly the layouts that real ones have."""

import json
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizer, DPRConfig, DPRContextEncoder, DPRQuestionEncoder

WORDS = "the cat sat on mat a dog ran in park river bridge stone query passage old new town . , : ? ##s ##ing".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = list(dict.fromkeys([*SPECIAL, *"abcdefghijklmnopqrstuvwxyz0123456789", *WORDS]))
SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,  # large enough that two texts are not almost the same
}


def write_json(path: Path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_tokenizer(folder: Path, window: int = 64) -> None:
    vocab = {word: number for number, word in enumerate(VOCABULARY)}
    BertTokenizer(vocab=vocab, do_lower_case=True, model_max_length=window).save_pretrained(folder)


def write_bert(folder: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    BertModel(BertConfig(**SIZES)).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_sentence_transformer(
    folder: Path,
    *,
    seed: int = 0,
    pooling: str = "mean",
    normalize: bool = True,
    similarity: str | None = None,
    prompts: dict[str, str] | None = None,
    window: int = 32,
    dense: int = 0,
) -> Path:
    write_bert(folder, seed)
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    write_json(
        folder / "1_Pooling/config.json",
        {
            "word_embedding_dimension": 32,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )
    if dense:
        from safetensors.torch import save_file

        kinds.append(("Dense", "2_Dense"))
        activation = "torch.nn.modules.activation.Tanh"
        write_json(
            folder / "2_Dense/config.json",
            {"in_features": 32, "out_features": dense, "bias": True, "activation_function": activation},
        )
        weights = {"linear.weight": torch.randn(dense, 32), "linear.bias": torch.randn(dense)}
        save_file(weights, folder / "2_Dense/model.safetensors")
    if normalize:
        kinds.append(("Normalize", f"{len(kinds)}_Normalize"))
    write_json(
        folder / "modules.json",
        [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for n, (kind, path) in enumerate(kinds)
        ],
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": window, "do_lower_case": False})
    settings = {"__version__": {}, "prompts": prompts or {}, "similarity_fn_name": similarity}
    write_json(folder / "config_sentence_transformers.json", settings)
    return folder


def write_dpr(folder: Path, *, passages: bool, seed: int = 0, projection: int = 0) -> Path:
    torch.manual_seed(seed)
    kind = DPRContextEncoder if passages else DPRQuestionEncoder
    kind(DPRConfig(**SIZES, projection_dim=projection)).save_pretrained(folder)
    write_tokenizer(folder)
    return folder
