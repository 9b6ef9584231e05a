"""Which folders become an encoder, which are refused with which words, and what an encoder's fingerprint covers."""

import logging
import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import torch
from safetensors.torch import load_file, save_file
from transformers import RobertaConfig, RobertaModel

from bifolio.encoders import transformer
from bifolio.encoders.transformer import TransformerEncoder
from bifolio.errors import MissingExtraError, ModelError, UsageError
from bifolio.types import Passage
from bifolio.weights import pick_dtype
from unit import encoder_folders as folders


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return folders.write_sentence_transformer(tmp_path_factory.mktemp("st"))


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "copy")


@pytest.fixture(scope="module")
def dpr(tmp_path_factory):
    place = tmp_path_factory.mktemp("dpr")
    return folders.write_dpr(place / "q", passages=False), folders.write_dpr(place / "p", passages=True)


def fingerprint(folder, **options):
    return TransformerEncoder(folder, **options).spec.fingerprint


def test_fingerprint_depends_on_content_alone(folder, original):
    first = fingerprint(original, dtype="float32", model="a name")
    assert first == fingerprint(folder, dtype="bfloat16", batch_size=1, model="another name")
    name, _, digits = first.partition(":")
    assert name == "bert-32" and len(digits) == 16 and int(digits, 16) >= 0


def change_weights(folder):
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.output.dense.bias"][3] += 0.25
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def change_pooling(folder):
    text = (folder / "1_Pooling/config.json").read_text()
    cls = text.replace('"pooling_mode_cls_token": false', '"pooling_mode_cls_token": true')
    (folder / "1_Pooling/config.json").write_text(
        cls.replace('"pooling_mode_mean_tokens": true', '"pooling_mode_mean_tokens": false')
    )


def change_window(folder):
    folders.write_json(folder / "sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False})


def change_prompts(folder):
    folders.write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "query: "}})


def change_vocabulary(folder):
    text = (folder / "tokenizer.json").read_text()
    assert '"cat"' in text
    (folder / "tokenizer.json").write_text(text.replace('"cat"', '"cot"'))


@pytest.mark.parametrize("change", [change_weights, change_pooling, change_window, change_prompts, change_vocabulary])
def test_fingerprint_changes_with(folder, original, change):
    change(folder)
    assert fingerprint(folder) != fingerprint(original)


def test_fingerprint_changes_with_either_dpr_encoder(dpr, tmp_path):
    asks, reads = dpr
    whole = fingerprint(asks, passage_folder=reads)
    other = folders.write_dpr(tmp_path / "other", passages=True, seed=5)
    assert whole != fingerprint(asks, passage_folder=other)
    assert whole == fingerprint(asks, passage_folder=shutil.copytree(reads, tmp_path / "same"))


def test_fingerprint_changes_with_normalisation(tmp_path, original):
    plain = folders.write_sentence_transformer(tmp_path, normalize=False, similarity="dot")
    assert fingerprint(plain) != fingerprint(original)


def test_dpr_folders_that_do_not_belong_together(dpr, original, tmp_path):
    asks, reads = dpr
    with pytest.raises(UsageError, match="passage_folder="):
        TransformerEncoder(asks)
    with pytest.raises(UsageError, match="give the question encoder"):
        TransformerEncoder(reads)
    with pytest.raises(UsageError, match="swapped"):
        TransformerEncoder(reads, passage_folder=asks)
    for pair in ((asks, asks), (reads, reads), (original, reads), (original, original)):
        with pytest.raises(UsageError, match="leave passage_folder out"):
            TransformerEncoder(pair[0], passage_folder=pair[1])
    small = folders.write_dpr(tmp_path, passages=True, projection=8)
    with pytest.raises(ModelError, match="32 dimensions.* 8;"):
        TransformerEncoder(asks, passage_folder=small)


def test_plain_bert_is_refused_since_its_pooling_is_unknown(tmp_path):
    with pytest.raises(ModelError, match=r"BertModel without modules\.json.*Add modules\.json"):
        TransformerEncoder(folders.write_bert(tmp_path))


def test_folders_that_are_none(tmp_path):
    with pytest.raises(ModelError, match="no such folder"):
        TransformerEncoder(tmp_path / "missing")
    with pytest.raises(ModelError, match=r"neither modules\.json nor config\.json"):
        TransformerEncoder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: cannot be read as JSON"):
        TransformerEncoder(tmp_path)


def test_pickles_are_not_read(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    os.remove(folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        TransformerEncoder(folder)


def test_pickles_of_a_dense_module_are_not_read(tmp_path):
    folder = folders.write_sentence_transformer(tmp_path, dense=8)
    torch.save(load_file(folder / "2_Dense/model.safetensors"), folder / "2_Dense/pytorch_model.bin")
    os.remove(folder / "2_Dense/model.safetensors")
    with pytest.raises(ModelError, match=r"2_Dense: no \.safetensors"):
        TransformerEncoder(folder)


@pytest.mark.parametrize("kind", ["os.system", "sentence_transformers.models.WordEmbeddings", "custom_code.Pooling"])
def test_modules_that_are_not_known(folder, kind):
    entries = [{"idx": 0, "name": "0", "path": "", "type": kind}]
    folders.write_json(folder / "modules.json", entries)
    with pytest.raises(ModelError, match="is not supported"):
        TransformerEncoder(folder)


def test_adapters_are_refused(folder):
    folders.write_json(folder / "adapter_config.json", {"base_model_name_or_path": "someone/something"})
    with pytest.raises(ModelError, match="merge it"):
        TransformerEncoder(folder)


def test_similarity_that_is_no_product(tmp_path):
    with pytest.raises(ModelError, match="'euclidean'"):
        TransformerEncoder(folders.write_sentence_transformer(tmp_path, normalize=False, similarity="euclidean"))


def test_truncated_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be loaded"):
        TransformerEncoder(folder)


def test_weights_that_are_missing_are_not_drawn_at_random(folder, dpr, tmp_path):
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"lack encoder\.layer\.1\.output\.dense\.weight"):
        TransformerEncoder(folder)
    asks = shutil.copytree(dpr[0], tmp_path / "asks")
    weights = load_file(asks / "model.safetensors")
    (name,) = [name for name in weights if name.endswith("layer.0.attention.self.query.weight")]
    del weights[name]
    save_file(weights, asks / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"lack .*query\.weight"):
        TransformerEncoder(asks, passage_folder=dpr[1])


def test_the_pooler_may_be_missing(folder):
    whole = TransformerEncoder(folder, dtype="float32").encode_questions(["a cat"])
    weights = {k: v for k, v in load_file(folder / "model.safetensors").items() if not k.startswith("pooler.")}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    np.testing.assert_array_equal(TransformerEncoder(folder, dtype="float32").encode_questions(["a cat"]), whole)


def test_nan_is_an_error(folder):
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][folders.VOCABULARY.index("dog")] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    encoder = TransformerEncoder(folder, dtype="float32")
    assert np.isfinite(encoder.encode_questions(["the cat"])).all()
    with pytest.raises(ModelError, match="NaN or infinity in the vector of text 1"):
        encoder.encode_questions(["the cat sat on the mat", "dog", "a cat"])


def test_loading_is_silent_and_leaves_settings_alone(folder, dpr, capfd):
    from transformers.utils import logging as transformers_logging

    weights = {k: v for k, v in load_file(folder / "model.safetensors").items() if not k.startswith("pooler.")}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})  # worth a warning to transformers
    loggers = [logging.getLogger(name) for name in ("transformers", "transformers.modeling_utils")]
    before = [(logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    environment = dict(os.environ)
    capfd.readouterr()
    encoder = TransformerEncoder(folder)
    TransformerEncoder(dpr[0], passage_folder=dpr[1])
    encoder.encode_passages([Passage("1", "long " * 5000)])
    encoder.passage_lengths([Passage("1", "long " * 5000)])
    assert capfd.readouterr() == ("", "")
    assert [(logger.level, logger.propagate, list(logger.handlers)) for logger in loggers] == before
    assert transformers_logging.is_progress_bar_enabled()
    assert dict(os.environ) == environment


def test_ten_threads(original):
    encoder = TransformerEncoder(original, dtype="float32")
    passages = [Passage(str(n), "the cat sat " * n) for n in range(12)]
    alone, lengths = encoder.encode_passages(passages), encoder.passage_lengths(passages)
    gate = threading.Barrier(10)

    def work(_):
        gate.wait()
        return encoder.encode_passages(passages), encoder.passage_lengths(passages)

    with ThreadPoolExecutor(10) as pool:
        for vectors, found in pool.map(work, range(10)):
            np.testing.assert_allclose(vectors, alone, atol=1e-5)
            assert found.tolist() == lengths.tolist()


def test_without_the_extra_the_message_is_the_pip_command(original, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bifolio\[models\]'"):
        TransformerEncoder(original)


def test_options_that_cannot_be_used(original, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert TransformerEncoder(original, device="auto").device == torch.device("cpu")
    for options, message in [
        ({"device": "cuda"}, "torch sees no such GPU"),
        ({"device": "cuda:7"}, "torch sees no such GPU"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"batch_size": 0}, "batch_size is 0"),
    ]:
        with pytest.raises(UsageError, match=message):
            TransformerEncoder(original, **options)


@pytest.mark.parametrize(
    ("has", "wanted"),
    [
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
        ({"avx512_f": True, "avx512_bf16": False}, torch.float32),
        ({}, torch.float32),
    ],
)
def test_auto_dtype_follows_the_cpu(monkeypatch, has, wanted):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    assert pick_dtype("auto", torch.device("cpu")) is wanted


def test_batches_are_bounded_in_rows_and_in_padded_tokens():
    lengths = [5, 600, 5, 300, 8192, 256, 10, 256]
    batches = list(transformer._batches(lengths, 4))
    assert sorted(at for batch in batches for at in batch) == list(range(8))
    for batch in batches:
        longest = max(lengths[at] for at in batch)
        assert len(batch) == 1 or (len(batch) <= 4 and len(batch) * longest <= 1024)
    flat = [lengths[at] for batch in batches for at in batch]
    assert flat == sorted(lengths, reverse=True)


def test_a_question_longer_than_the_window_of_a_roberta_can_be_encoded(tmp_path):
    """RoBERTa counts positions from behind the padding token's id, so its table is longer than its window."""
    folder = folders.write_sentence_transformer(tmp_path / "roberta", window=1000)
    folders.write_tokenizer(folder, window=10**30)  # what transformers writes where the tokenizer knows no limit
    torch.manual_seed(0)
    RobertaModel(RobertaConfig(**folders.SIZES, pad_token_id=0)).save_pretrained(folder)
    encoder = TransformerEncoder(folder)
    assert encoder.spec.window == folders.SIZES["max_position_embeddings"] - 1
    assert np.isfinite(encoder.encode_questions(["the cat sat on a mat " * 50])).all()
