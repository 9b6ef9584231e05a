"""Rerankers against the plain models that they are made of."""

import math

import numpy as np
import pytest
import torch
import transformers

import tiny
from bifolio import Collection, Rag, Retriever
from bifolio.errors import ModelError, UsageError
from bifolio.generators.causal import CausalGenerator
from bifolio.protocols import Reading, Reranker
from bifolio.registry import names
from bifolio.rerankers import GENERATOR_WEIGHT, INSTRUCTION, CrossEncoderReranker, GeneratorReranker
from bifolio.retriever import load_reranker
from bifolio.types import Passage
from fakes import COPY, FakeEncoder, FakeGenerator, write_files
from unit.encoder_folders import VOCABULARY, write_tokenizer

PASSAGES = (Passage("1", "the cat sat", title="Cats"), Passage("2", "a sea"), Passage("3", "the cat"))


def cross_encoder(folder, labels=1):
    torch.manual_seed(0)
    write_tokenizer(folder)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64, num_labels=labels,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).eval().save_pretrained(folder)
    return folder


def test_a_cross_encoder_gives_its_logits(tmp_path):
    folder = cross_encoder(tmp_path / "m")
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    core = transformers.AutoTokenizer.from_pretrained(folder)
    expected = []
    for passage in PASSAGES:
        inputs = core("where sat the cat", f"{passage.label}\n{passage.text}".strip(), return_tensors="pt")
        with torch.no_grad():
            expected.append(3 * float(plain(**inputs).logits))
    reranker = CrossEncoderReranker(folder, weight=3.0, device="cpu", batch=2)
    assert isinstance(reranker, Reranker)
    found = reranker.scores("where sat the cat", PASSAGES)
    assert found.dtype == np.float32
    assert found.tolist() == pytest.approx(expected, abs=1e-5)
    assert len(set(found.tolist())) == 3
    assert reranker.scores("x", ()).tolist() == []


def test_a_passage_that_is_too_long_is_cut(tmp_path):
    reranker = CrossEncoderReranker(cross_encoder(tmp_path / "m"), device="cpu")
    found = reranker.scores("the cat", [Passage("1", "the cat sat " * 500)])
    assert np.isfinite(found).all()


def test_models_that_are_no_cross_encoders(tmp_path):
    with pytest.raises(ModelError, match="3 labels: expected a cross-encoder with one"):
        CrossEncoderReranker(cross_encoder(tmp_path / "m", labels=3), device="cpu")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError):
        CrossEncoderReranker(tmp_path / "empty", device="cpu")
    for weight in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="weight"):
            CrossEncoderReranker(tmp_path / "m", weight=weight)
        with pytest.raises(UsageError, match="weight"):
            GeneratorReranker(FakeGenerator("a"), weight=weight)


def test_names(tmp_path):
    assert names("reranker") == ["cross-encoder", "generator"]
    folder = cross_encoder(tmp_path / "m")
    assert isinstance(load_reranker(f"cross-encoder:{folder}"), CrossEncoderReranker)


def test_a_generator_gives_what_the_passage_tells_of_the_question():
    generator = FakeGenerator("the cat sat a sea")
    rest = math.log((1 - COPY) / (generator.spec.vocabulary - 1))
    copied = math.log(COPY)
    found = GeneratorReranker(generator, weight=0.5).scores("the cat", PASSAGES)
    # "the cat" and EOS: after 1 two words are right and EOS is not, after 2 none is, after 3 all are; after no passage
    # EOS is expected from the start: right at the end alone.
    totals = [2 * copied + rest, 3 * rest, 3 * copied]
    totals[1] = 2 * rest + copied  # "a sea" has ended by then, too
    nothing = 2 * rest + copied
    assert found.tolist() == pytest.approx([0.5 * (total - nothing) for total in totals], abs=1e-5)
    question, ids, style, room, no_passage = generator.reads[0]
    assert (question, ids, style, room, no_passage) == (INSTRUCTION, ["1", "2", "3"], "long", 3, True)
    assert GeneratorReranker(generator).scores("the cat", ()).tolist() == []


def test_a_real_generator_gives_its_own_log_probabilities(tmp_path):
    folder = tiny.causal(tmp_path / "m")
    generator = CausalGenerator(folder, device="cpu", dtype="float32")
    found = GeneratorReranker(generator).scores("cat?", PASSAGES)
    ids = generator.answer_ids("cat?", style="long")
    alone = []
    for passage in PASSAGES:
        reading = Reading(INSTRUCTION, (passage,), "long", len(ids))
        alone.append(float(generator.read([reading]).score([[ids]])[0][0].sum()))
    nothing = float(generator.read([Reading(INSTRUCTION, (), "long", len(ids), True)]).score([[ids]])[0][0].sum())
    assert found.tolist() == pytest.approx([GENERATOR_WEIGHT * (one - nothing) for one in alone], abs=1e-4)


def test_a_servers_model_is_no_reranker():
    class Server:
        def concatenated(self, reading):
            raise AssertionError

    with pytest.raises(UsageError, match="which a server does not return"):
        GeneratorReranker(Server())


def test_the_generator_of_a_rag_reads_again(tmp_path):
    texts = {"a.txt": "cat mat\n", "b.txt": "where sat\n", "c.txt": "salt sea\n"}
    docs = write_files(tmp_path / "docs", texts)
    with Collection.build([docs], tmp_path / "c", encoder=FakeEncoder(no_passage_logit=1.5)) as collection:
        generator = FakeGenerator(" ".join(texts.values()))
        rag = Rag(collection, generator=generator, k=2)
        plain = rag.ask("where sat")
        read = len(generator.reads)
        answer = rag.ask("where sat", reranker="generator")
        assert generator.reads[read][0] == INSTRUCTION
        passages = [Passage("", text) for text in texts.values()]
        gains = GeneratorReranker(generator).scores("where sat", passages)
        gain = dict(zip(texts, gains, strict=True))
        found = Retriever(collection).retrieve("where sat", 3)
        before = {hit.passage.source.rsplit("/")[-1]: hit.score for hit in found}
        for hit in answer.hits:
            name = hit.passage.source.rsplit("/")[-1]
            assert hit.score == pytest.approx(before[name] + gain[name], abs=1e-3)
        assert plain.hits[0].passage.text == answer.hits[0].passage.text == "where sat"
