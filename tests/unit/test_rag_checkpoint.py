"""RAG checkpoints taken apart: the two models compute what the whole one computes, whatever the layout."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
from safetensors.torch import load as load_bytes
from safetensors.torch import save_file

from bifolio import models
from bifolio.errors import ModelError, ModelMissingError, UsageError
from bifolio.loading import load_encoder
from bifolio.models import parts, store
from bifolio.rag_checkpoint import RagCheckpoint, read_rag_checkpoint
from bifolio.types import Passage
from bifolio.weights import quiet_load
from unit.encoder_folders import VOCABULARY, write_dpr
from unit.rag_checkpoints import copy, edit_config, make_rag, rewrite_weights, to_bin, write_rag

transformers = pytest.importorskip("transformers", reason="comes with the [models] extra")

IDS = torch.tensor([[2, 7, 30, 41, 3]])
ANSWER = torch.tensor([[2, 5, 9]])


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BIFOLIO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """One checkpoint for the tests that copy it before they spoil it."""
    folder = tmp_path_factory.mktemp("saved") / "rag"
    write_rag(folder)
    return folder


def load(folder, name):
    with quiet_load(folder):
        model = getattr(transformers, name).from_pretrained(folder, local_files_only=True, use_safetensors=True)
        transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.eval()


def load_file(path):
    """Not memory-mapped: these tests change files."""
    return load_bytes(path.read_bytes())


def question_vector(model):
    with torch.inference_mode():
        return model(IDS)[0]


def logits(model):
    with torch.inference_mode():
        return model(input_ids=IDS, decoder_input_ids=ANSWER).logits


def inner(model):
    return getattr(model, "rag", model)


def entries(home):
    return sorted(path.name for path in (home / "models").iterdir() if not path.name.endswith(".lock"))


@pytest.mark.parametrize("generator", ["bart", "t5"])
@pytest.mark.parametrize("scheme", ["token", "sequence", None])
def test_the_two_models_compute_what_the_whole_one_does(tmp_path, scheme, generator):
    whole = inner(write_rag(tmp_path / "rag", scheme, generator, n_docs=3))
    found = read_rag_checkpoint("./rag")
    assert (found.scheme, found.n_docs, found.model) == (scheme, 3, "./rag")
    question = load(found.question_encoder, "DPRQuestionEncoder")
    seq2seq = load(found.generator, "AutoModelForSeq2SeqLM")
    assert type(seq2seq).__name__ == parts.GENERATORS[generator]
    torch.testing.assert_close(question_vector(question), question_vector(whole.question_encoder), rtol=0, atol=0)
    torch.testing.assert_close(logits(seq2seq), logits(whole.generator), rtol=0, atol=0)
    assert logits(seq2seq).std() > 0.1  # not two models that say nothing


def test_settings_are_the_checkpoint_s(tmp_path, saved):
    assert read_rag_checkpoint(str(saved)) == RagCheckpoint(
        model=str(saved),
        scheme="token",
        n_docs=5,
        title_sep=" / ",
        doc_sep=" // ",
        prefix="",
        max_combined_length=300,
        max_answer_length=None,
        question_encoder=models.resolve(f"{saved}#question_encoder"),
        generator=models.resolve(f"{saved}#generator"),
        passage_encoders=(),
    )
    other = copy(saved, tmp_path / "other")
    edit_config(other, title_sep="|", doc_sep="~", n_docs=7, max_combined_length=120, generator__prefix="say: ")
    found = read_rag_checkpoint(other)
    assert (found.title_sep, found.doc_sep, found.n_docs) == ("|", "~", 7)
    assert (found.max_combined_length, found.prefix) == (120, "say: ")
    edit_config(other, title_sep=..., doc_sep=..., n_docs=..., max_combined_length=...)  # as written before they were
    found = read_rag_checkpoint(other)
    assert (found.title_sep, found.doc_sep, found.n_docs, found.max_combined_length) == (" / ", " // ", 5, 300)


def test_the_answer_s_length_is_what_was_stated_last(tmp_path, saved):
    other = copy(saved, tmp_path / "other")
    edit_config(other, generator__max_length=62)
    assert read_rag_checkpoint(other).max_answer_length == 62
    edit_config(other, max_length=20)
    assert read_rag_checkpoint(other).max_answer_length == 20
    (other / "generation_config.json").write_text('{"max_length": 33}')
    assert read_rag_checkpoint(other).max_answer_length == 33
    (other / "generation_config.json").write_text('{"max_length": 33, "max_new_tokens": 9}')
    assert read_rag_checkpoint(other).max_answer_length == 9


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "bart"}, "no RAG checkpoint: its config.json has model_type 'bart', expected 'rag'"),
        ({"n_docs": 0}, "n_docs 0; expected a whole number"),
        ({"n_docs": True}, "n_docs True; expected a whole number"),
        ({"max_combined_length": "300"}, "max_combined_length '300'; expected a whole number"),
        ({"title_sep": 3}, "title_sep 3; expected a text"),
        ({"max_length": -1}, "max_length -1; expected"),
        ({"generator": ...}, "the settings of its generator are missing; expected bart or t5"),
        ({"generator": []}, "the settings of its generator are missing"),
        ({"generator__model_type": "gpt2"}, "the settings of its generator are of type 'gpt2'"),
        ({"question_encoder__model_type": "bert"}, "the settings of its question_encoder are of type 'bert'; .* dpr"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path, saved, changes, words):
    edit_config(copy(saved, tmp_path / "other"), **changes)
    with pytest.raises(ModelError, match=words):
        read_rag_checkpoint("./other")


def test_no_checkpoint_at_all(tmp_path):
    with pytest.raises(ModelMissingError, match="there is no model folder"):
        read_rag_checkpoint("./nothing")
    with pytest.raises(ModelMissingError, match="Run: bifolio models pull facebook/rag-token-nq"):
        read_rag_checkpoint("facebook/rag-token-nq")
    with pytest.raises(UsageError, match="a part of a part"):
        models.resolve("./rag#generator#generator")


def test_weights_in_several_files(tmp_path):
    whole = inner(write_rag(tmp_path / "rag", max_shard_size="40KB"))
    assert len(list((tmp_path / "rag").glob("*.safetensors"))) > 2
    found = read_rag_checkpoint("./rag")
    torch.testing.assert_close(logits(load(found.generator, "BartForConditionalGeneration")), logits(whole.generator))
    part = sorted((tmp_path / "rag").glob("*.safetensors"))[-1]
    part.unlink()
    with pytest.raises(ModelError, match=f"names '{part.name}', which is no file beside it: the model is incomplete"):
        read_rag_checkpoint("./rag")
    index = tmp_path / "rag/model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"rag.x": "../outside.safetensors"}}))
    with pytest.raises(ModelError, match=r"names '\.\./outside\.safetensors', which is no file beside it"):
        read_rag_checkpoint("./rag")
    index.write_text("[]")
    with pytest.raises(ModelError, match="index.json cannot be read"):
        read_rag_checkpoint("./rag")


@pytest.mark.parametrize("generator", ["bart", "t5"])
@pytest.mark.parametrize("kept", ["encoder.embed_tokens", "decoder.embed_tokens", "lm_head", "all"])
def test_a_tied_table_under_whichever_name_it_was_kept(tmp_path, generator, kept):
    whole = inner(write_rag(tmp_path / "rag", generator=generator))
    stem = "rag.generator.model." if generator == "bart" else "rag.generator."

    def rename(weights):
        table = weights.pop(f"{stem}shared.weight")
        for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
            if kept in (name, "all"):
                weights[("rag.generator." if name == "lm_head" else stem) + f"{name}.weight"] = table
        return weights

    rewrite_weights(tmp_path / "rag", rename)
    found = read_rag_checkpoint("./rag").generator
    torch.testing.assert_close(logits(load(found, "AutoModelForSeq2SeqLM")), logits(whole.generator), rtol=0, atol=0)


def test_an_output_table_of_its_own_is_not_taken_for_the_input_s(tmp_path):
    whole = inner(write_rag(tmp_path / "rag", generator_tie_word_embeddings=False))
    weights = load_file(tmp_path / "rag/model.safetensors")
    shared, output = (weights[f"rag.generator.{name}.weight"] for name in ("model.shared", "lm_head"))
    assert not torch.equal(shared, output)
    found = read_rag_checkpoint("./rag").generator
    torch.testing.assert_close(logits(load(found, "BartForConditionalGeneration")), logits(whole.generator))
    tables = ("shared", "embed_tokens")
    rewrite_weights(tmp_path / "rag", lambda w: {k: v for k, v in w.items() if not any(name in k for name in tables)})
    broken = read_rag_checkpoint("./rag").generator
    assert "model.shared.weight" not in load_file(broken / "model.safetensors")
    with pytest.raises(ModelError, match="its safetensors lack .*shared.weight"):
        load(broken, "BartForConditionalGeneration")


def test_half_precision_is_copied_bit_by_bit(tmp_path):
    make_rag().to(torch.bfloat16).save_pretrained(tmp_path / "rag")
    write_rag(tmp_path / "other")
    for name in ("question_encoder_tokenizer", "generator_tokenizer"):
        os.rename(tmp_path / "other" / name, tmp_path / "rag" / name)
    found = read_rag_checkpoint("./rag")
    before = load_file(tmp_path / "rag/model.safetensors")
    after = load_file(found.generator / "model.safetensors")
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    for name, tensor in after.items():
        assert torch.equal(tensor, before[f"rag.generator.{name}"])
    assert json.loads((found.generator / "config.json").read_text())["dtype"] == "bfloat16"


def test_damaged_and_strange_weights(tmp_path, saved, home):
    path = copy(saved, tmp_path / "rag") / "model.safetensors"
    data = path.read_bytes()
    for bytes_ in (data[:-1], data[: len(data) // 2], data[:4], b"\xff" * 64, b"", data + b"\0"):
        path.write_bytes(bytes_)
        with pytest.raises(ModelError, match="model.safetensors is not a whole safetensors file"):
            read_rag_checkpoint("./rag")
    path.write_bytes(data)
    rewrite_weights(tmp_path / "rag", lambda w: {name.removeprefix("rag."): t for name, t in w.items()})
    read_rag_checkpoint("./rag")  # a bare RagModel's names, whatever the architecture says
    rewrite_weights(tmp_path / "rag", lambda w: {f"model.{name}": t for name, t in w.items()})
    with pytest.raises(ModelError, match=r"has no weights named question_encoder\.\*; it has model\.generator"):
        read_rag_checkpoint("./rag")
    save_file({"rag.generator.x": torch.zeros(1)}, path)
    with pytest.raises(ModelError, match=r"has no weights named rag\.question_encoder\.\*; it has rag\.generator\.x"):
        read_rag_checkpoint("./rag")
    path.unlink()
    save_file({"x": torch.zeros(1)}, tmp_path / "rag/a.safetensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "rag/b.safetensors")
    with pytest.raises(ModelError, match=r"has 2 \.safetensors and no model\.safetensors\.index\.json"):
        read_rag_checkpoint("./rag")
    assert [name for name in entries(home) if "partial" in name] == []


@pytest.mark.parametrize("part", ["question_encoder", "generator"])
def test_a_tokenizer_that_is_missing(tmp_path, saved, part):
    folder = copy(saved, tmp_path / "rag") / f"{part}_tokenizer"
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=f"no tokenizer for its {part}: expected the folder {part}_tokenizer"):
        read_rag_checkpoint("./rag")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    with pytest.raises(ModelError, match="as RagTokenizer.save_pretrained"):
        models.resolve(f"./rag#{part}")


def test_tokenizers_as_they_were_written_when_the_checkpoints_were_published(tmp_path, saved):
    folder = copy(saved, tmp_path / "rag")
    for part in ("question_encoder", "generator"):
        for file in (folder / f"{part}_tokenizer").iterdir():
            file.unlink()
        (folder / f"{part}_tokenizer/special_tokens_map.json").write_text("{}")
    (folder / "question_encoder_tokenizer/vocab.txt").write_text("\n".join(VOCABULARY))
    (folder / "question_encoder_tokenizer/tokenizer_config.json").write_text('{"do_lower_case": true}')
    letters = ["<s>", "<pad>", "</s>", "<unk>", *"Catś", "<mask>"]
    (folder / "generator_tokenizer/vocab.json").write_text(json.dumps({word: n for n, word in enumerate(letters)}))
    (folder / "generator_tokenizer/merges.txt").write_text("#version: 0.2\n")
    (folder / "generator_tokenizer/tokenizer_config.json").write_text('{"model_max_length": 1024}')
    found = read_rag_checkpoint("./rag")
    question, generator = (
        transformers.AutoTokenizer.from_pretrained(part, local_files_only=True)
        for part in (found.question_encoder, found.generator)
    )
    cat = VOCABULARY.index("cat")
    assert question("CAT").input_ids == [2, cat, 3]
    assert (generator("Cat").input_ids, generator.model_max_length) == ([0, 4, 5, 6, 2], 1024)


def test_code_and_pickles_are_not_copied(tmp_path, saved):
    folder = copy(saved, tmp_path / "rag")
    (folder / "generator_tokenizer/tokenization.py").write_text("raise SystemExit")
    (folder / "generator_tokenizer/x.pkl").write_bytes(b"pickle")
    found = read_rag_checkpoint("./rag")
    assert sorted(path.name for path in found.generator.iterdir()) == [
        "bifolio-model.json",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_made_once_and_again_when_the_content_changes(tmp_path, saved, home, monkeypatch):
    folder = copy(saved, tmp_path / "rag")
    first = read_rag_checkpoint("./rag")
    made = []
    monkeypatch.setattr(parts, "_fill", lambda *arguments, fill=parts._fill: (made.append(1), fill(*arguments)))
    assert (read_rag_checkpoint("./rag"), made) == (first, [])
    assert read_rag_checkpoint(copy(folder, tmp_path / "elsewhere")).generator == first.generator
    rewrite_weights(folder, lambda w: {n: t + 1 if n.endswith("final_logits_bias") else t for n, t in w.items()})
    second = read_rag_checkpoint("./rag")
    assert second.generator != first.generator
    assert len(made) == 2
    before, after = (load_file(found.generator / "model.safetensors") for found in (first, second))
    assert torch.equal(after["final_logits_bias"], before["final_logits_bias"] + 1)
    (second.generator / "model.safetensors").write_bytes(b"cut")  # damaged in the cache: made again
    assert read_rag_checkpoint("./rag") == second
    assert torch.equal(
        load_file(second.generator / "model.safetensors")["final_logits_bias"], after["final_logits_bias"]
    )
    assert len(entries(home)) == 4


def test_a_copy_that_fails_leaves_nothing(tmp_path, saved, home, monkeypatch):
    folder = copy(saved, tmp_path / "rag")
    real = parts.tensors.write

    def full(path, found):
        real(path, found)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parts.tensors, "write", full)
    with pytest.raises(ModelError, match=r"rag#question_encoder cannot be put into .*No space left"):
        read_rag_checkpoint(folder)
    assert entries(home) == []


def test_processes_that_want_the_same_part_make_it_once(tmp_path, saved, home):
    script = textwrap.dedent(
        f"""
        from bifolio import models
        from bifolio.models import parts
        fill = parts._fill
        def told(*arguments):
            print("made", flush=True)
            fill(*arguments)
        parts._fill = told
        print(models.resolve({str(saved)!r} + "#generator").name)
        """
    )
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    lines = [line for process in running for line in process.communicate(timeout=120)[0].splitlines()]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert lines.count("made") == 1
    assert {line for line in lines if line != "made"} == {models.resolve(f"{saved}#generator").name}
    assert len(entries(home)) == 1


def test_what_the_cache_knows_of_a_part(saved, home):
    model_id = f"{saved}#generator"
    folder = models.resolve(model_id)
    record = models.record(model_id)
    assert (record.id, record.path, record.origin) == (model_id, folder, "split")
    assert [found.id for found in models.installed()] == [model_id]
    assert models.languages(model_id) == ()
    assert models.verify(model_id) == record
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match=r"damaged: model\.safetensors has sha256 .* models pull --force .*#generator"):
        models.verify(model_id)
    assert models.pull(model_id, force=True) == folder
    assert models.verify(model_id) == record


def test_a_checkpoint_in_the_cache_is_known_by_its_manifest(saved, home, monkeypatch):
    folder = copy(saved, home / "models" / "org--rag")
    files = [
        {"path": name, "size": (folder / name).stat().st_size, "sha256": hashlib.sha256(name.encode()).hexdigest()}
        for name in store.paths_below(folder)
    ]
    facts = dict.fromkeys(("revision", "source_file", "source_sha256", "license", "created"), "")
    manifest = {"format": 1, "id": "org/rag", "origin": "hub", "languages": ["en"], "files": files, **facts}
    (folder / store.MANIFEST).write_text(json.dumps(manifest))
    hashed = []
    monkeypatch.setattr(
        parts.store, "hash_file", lambda path, real=store.hash_file: (hashed.append(path), real(path))[1]
    )
    found = read_rag_checkpoint("org/rag")
    assert [path for path in hashed if folder in path.parents] == []
    assert found.model == "org/rag"
    assert models.languages("org/rag#generator") == ("en",)


def test_an_encoder_of_its_question_side_and_a_passage_encoder(tmp_path):
    whole = inner(write_rag(tmp_path / "rag"))
    write_dpr(tmp_path / "passages", passages=True, seed=5)
    found = read_rag_checkpoint("./rag")
    encoder = load_encoder(found.encoder_id("./passages"), dtype="float32")
    assert encoder.spec.model == "./rag#question_encoder,./passages"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "rag/question_encoder_tokenizer")
    with torch.inference_mode():
        expected = whole.question_encoder(**tokenizer(["the cat sat"], return_tensors="pt")).pooler_output
    torch.testing.assert_close(torch.tensor(encoder.encode_questions(["the cat sat"])), expected)
    assert encoder.encode_passages([Passage("1", "the cat", title="a dog")]).shape == (1, 32)
    with pytest.raises(UsageError, match="which passage encoder goes with ./rag is not known"):
        found.encoder_id()


def test_passage_encoders_that_are_known():
    nq, multiset = (f"facebook/dpr-ctx_encoder-{kind}-base" for kind in ("single-nq", "multiset"))
    assert models.passage_encoders("facebook/dpr-question_encoder-multiset-base") == (multiset,)
    assert models.passage_encoders("facebook/rag-sequence-nq#question_encoder") == (nq, multiset)
    assert models.passage_encoders("org/other") == ()
    with pytest.raises(
        UsageError, match=f"with its passage encoder it is facebook/dpr-question_encoder-single-nq-base,{nq}$"
    ):
        load_encoder("facebook/dpr-question_encoder-single-nq-base")
    with pytest.raises(
        UsageError, match=f"it is facebook/rag-token-nq#question_encoder,{nq} or facebook/rag-token-nq#"
    ):
        load_encoder("facebook/rag-token-nq")


def test_an_old_checkpoint_is_converted_where_it_lies_when_told_to(tmp_path):
    whole = inner(write_rag(tmp_path / "rag"))
    to_bin(tmp_path / "rag")
    with pytest.raises(ModelError, match="as pytorch_model.bin only.* bifolio models pull --convert-bin ./rag"):
        read_rag_checkpoint("./rag")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models.pull("./rag", convert_bin=True)
    assert (tmp_path / "rag/pytorch_model.bin").exists()
    found = read_rag_checkpoint("./rag")
    torch.testing.assert_close(logits(load(found.generator, "BartForConditionalGeneration")), logits(whole.generator))
    torch.testing.assert_close(
        question_vector(load(found.question_encoder, "DPRQuestionEncoder")), question_vector(whole.question_encoder)
    )
