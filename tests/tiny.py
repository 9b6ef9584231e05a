"""Tiny random language models, saved as Hugging Face saves them; nothing is downloaded."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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
    if family == "llama":
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(words),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=window,
                initializer_range=0.5,
                bos_token_id=None,
                eos_token_id=words.eos_token_id,
            )
        )
    else:
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=len(words),
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=window,
                initializer_range=0.5,
                bos_token_id=None,
                eos_token_id=words.eos_token_id,
            )
        )
    model.generation_config.eos_token_id = words.eos_token_id
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
