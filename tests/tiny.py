"""Tiny random language models, saved as Hugging Face saves them; nothing is downloaded."""

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHAT = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def tokenizer(chat: bool = True, bos: bool = False, merges: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """Bytes as tokens, and two special ones: every text has ids, and an emoji is four tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: i for i, piece in enumerate([*alphabet, *merges])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(merge) for merge in merges]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not merges)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|end|>", additional_special_tokens=["<|start|>"], model_max_length=512
    )
    if bos:
        made.add_special_tokens({"bos_token": "<|bos|>"})
        core = made.backend_tokenizer
        core.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", made.bos_token_id)]
        )
    if chat:
        made.chat_template = CHAT
    return made


_LLAMA_LIKE = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


def _named(name: str, **changes):
    """A model of a family by its class names; ``changes`` are what its configuration calls the sizes."""
    config = getattr(transformers, f"{name}Config")(**changes)
    head = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    return getattr(transformers, name + head)(config)


FAMILIES = {
    "llama": lambda window, **rest: _named("Llama", **_LLAMA_LIKE, max_position_embeddings=window, **rest),
    "gpt2": lambda window, **rest: _named("GPT2", n_embd=32, n_layer=2, n_head=4, n_positions=window, **rest),
    "qwen3": lambda window, **rest: _named(
        "Qwen3", **_LLAMA_LIKE, head_dim=8, max_position_embeddings=window, **rest
    ),
    "neox": lambda window, **rest: _named(
        "GPTNeoX", hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=window, **rest,
    ),
    "opt": lambda window, initializer_range, **rest: _named(
        "OPT", hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=32,
        max_position_embeddings=window, init_std=initializer_range, **rest,
    ),
    "mistral": lambda window, **rest: _named(  # every layer sees no more than ``window`` tokens
        "Mistral", **_LLAMA_LIKE, head_dim=8, max_position_embeddings=4 * window, sliding_window=window, **rest
    ),
    "gemma2": lambda window, **rest: _named(  # soft caps
        "Gemma2", **_LLAMA_LIKE, head_dim=8, max_position_embeddings=4 * window, sliding_window=window, **rest
    ),
    "bloom": lambda window, **rest: _named("Bloom", hidden_size=32, n_layer=2, n_head=4, **rest),
    "mpt": lambda window, **rest: _named(
        "Mpt", d_model=32, n_layers=2, n_heads=4, max_seq_len=window, expansion_ratio=2, **rest
    ),
    "falcon": lambda window, **rest: _named(
        "Falcon", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True, **rest
    ),
}  # fmt: skip
"""Decoder-only families; the last three have ALiBi positions."""


def causal(
    folder: Path,
    *,
    seed: int = 0,
    family: str = "llama",
    chat: bool = True,
    window: int = 512,
    words: PreTrainedTokenizerFast | None = None,
) -> Path:
    """A two-layer model with sharp distributions, so that greedy choices are far from ties."""
    words = words or tokenizer(chat)
    torch.manual_seed(seed)
    model = FAMILIES[family](
        window, vocab_size=len(words), initializer_range=0.5, bos_token_id=None, eos_token_id=words.eos_token_id,
        pad_token_id=None,
    )  # fmt: skip
    model.generation_config.eos_token_id = words.eos_token_id
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def words(*, bos: bool = False, unigram: bool = False, language: str = "") -> PreTrainedTokenizerFast:
    """A tokenizer of an encoder-decoder: ``<s> x </s>`` (BART), ``x </s>`` (T5, Pegasus), ``en x </s>`` (mBART-50)."""
    special = ["<s>", "<pad>", "</s>", "<unk>"] if bos else ["<pad>", "</s>", "<unk>"]
    special += [language] if language else []
    if unigram:  # as in T5, special tokens are pieces of the vocabulary, too
        letters = [chr(i) for i in range(33, 127)] + ["é"]
        pieces = [(piece, 0.0) for piece in special] + [("▁", -2.0)] + [(letter, -4.0) for letter in letters]
        core = Tokenizer(models.Unigram(pieces, unk_id=special.index("<unk>"), byte_fallback=False))
        core.pre_tokenizer = pre_tokenizers.Metaspace()
        core.decoder = decoders.Metaspace()
    else:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        core = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate([*special, *alphabet])}, merges=[]))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
    first = "<s> " if bos else f"{language} " if language else ""
    named = [(piece, special.index(piece)) for piece in special]
    core.post_processor = processors.TemplateProcessing(single=f"{first}$A </s>", special_tokens=named)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=[language] if language else [],
        **({"bos_token": "<s>"} if bos else {}),
    )


_BART_LIKE = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "init_std": 0.5,
}  # fmt: skip
_T5_LIKE = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "initializer_factor": 1.0}


def seq2seq(
    folder: Path,
    *,
    seed: int = 0,
    family: str = "bart",
    window: int = 256,
    words: PreTrainedTokenizerFast | None = None,
    **changes,
) -> Path:
    """A two-layer encoder-decoder; ``changes`` are settings of its generation."""
    words = words or seq2seq_words(family)
    sizes = _T5_LIKE if "t5" in family else {**_BART_LIKE, "max_position_embeddings": window}
    name = {"bart": "Bart", "mbart": "MBart", "pegasus": "Pegasus", "t5": "T5", "mt5": "MT5", "marian": "Marian"}[
        family
    ]
    ids = {"pad_token_id": words.pad_token_id, "eos_token_id": words.eos_token_id, "bos_token_id": words.bos_token_id}
    start = words.eos_token_id if "bart" in family else words.pad_token_id
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(words), decoder_start_token_id=start, forced_eos_token_id=None, **sizes, **ids
    )
    torch.manual_seed(seed)
    head = "MTModel" if family == "marian" else "ForConditionalGeneration"
    model = getattr(transformers, name + head)(config)
    model.generation_config.update(decoder_start_token_id=start, forced_eos_token_id=None, **ids, **changes)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def seq2seq_words(family: str) -> PreTrainedTokenizerFast:
    """The tokenizer that ``seq2seq`` gives a family."""
    if family == "mbart":
        return words(language="en_XX")
    return words(bos=family == "bart", unigram=family in ("mt5", "t5"))
