"""Rag.from_pretrained: a checkpoint of the reference, from question to answer, against the reference's own model."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from bifolio import Collection, Rag
from bifolio.errors import EncoderMismatchError, ModelMissingError, UsageError
from bifolio.generators.seq2seq import Layout
from bifolio.loading import load_encoder
from fakes import FakeEncoder, write_files
from unit.encoder_folders import write_dpr
from unit.rag_checkpoints import edit_config, write_rag

QUESTION = "which valve is closed"
TEXTS = {"one.txt": "the valve has closed\n", "two.txt": "the oil is black\n", "three.txt": "a cat sat there\n"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("BIFOLIO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_dpr(tmp_path / "q", passages=False, seed=1)
    write_dpr(tmp_path / "p", passages=True, seed=2)
    write_files(tmp_path / "docs", TEXTS)
    return tmp_path


def write_words(folder):
    """A generator's tokenizer whose special tokens are BART's."""
    names = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "/",
        "//",
        *sorted({w for t in TEXTS.values() for w in t.split()}),
        "which",
    ]
    core = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("<s>", 0), ("</s>", 2)]
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=core, **special).save_pretrained(folder)


def build(path="c"):
    Collection.build(["docs"], path, encoder=load_encoder("./q,./p", device="cpu", dtype="float32")).close()


# The reference's RAG-Sequence fails with T5, which has no BOS.
@pytest.mark.parametrize(("scheme", "family"), [("token", "bart"), ("sequence", "bart"), ("token", "t5")])
def test_an_answer_has_the_reference_s_loss(here, scheme, family):
    """The checkpoint's own classes, fed by hand, give -log p(y|x) of our score."""
    start = {"generator_decoder_start_token_id": 2} if family == "bart" else {}
    reference = write_rag(here / "rag", scheme, family, n_docs=2, max_combined_length=60, **start)
    if family == "bart":
        write_words(here / "rag" / "generator_tokenizer")
    build()
    rag = Rag.from_pretrained("./rag", "c", device="cpu", dtype="float32")
    assert (rag.options.scheme, rag.options.k) == (scheme, 2)
    scored = rag.score(QUESTION, "the valve")
    assert len(scored.hits) == 2
    assert scored.no_passage is None
    generator = rag.generator
    rows = [generator._ids(Layout().join(h.passage.label, h.passage.text, QUESTION)) for h in scored.hits]
    width = max(map(len, rows))
    pad = generator._tokenizer.pad_token_id
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    labels = torch.tensor([[generator._start, *generator.answer_ids("the valve", style="long")]])
    scores = torch.tensor([[hit.score for hit in scored.hits]])
    with torch.no_grad():
        found = reference(
            context_input_ids=ids, context_attention_mask=mask, doc_scores=scores, labels=labels, n_docs=2
        )
    assert scored.log_prob == pytest.approx(-float(found.loss.sum()), abs=1e-4)


def test_settings_of_the_checkpoint_are_used_and_can_be_overruled(here):
    settings = {"title_sep": " : ", "doc_sep": " ? ", "n_docs": 3, "max_combined_length": 40}
    write_rag(here / "rag", "sequence", **settings)
    edit_config(here / "rag", max_length=7)
    build()
    rag = Rag.from_pretrained("./rag", "c", dtype="float32")
    assert rag.generator._layout == Layout(" : ", " ? ", "", 40)
    assert (rag.options.k, rag.options.max_tokens, rag.options.scheme) == (3, 7, "sequence")
    assert rag.generator.spec.window == 40
    other = Rag.from_pretrained("./rag", "c", dtype="float32", scheme="token", k=1)
    assert (other.options.k, other.options.scheme) == (1, "token")
    answer = rag.ask(QUESTION)
    assert answer.model["generator"] == "./rag#generator"
    assert answer.model["encoder"] == "./rag#question_encoder,./p"
    assert sum(answer.weights) == pytest.approx(1, abs=1e-4)


def test_a_local_folder_may_be_given_as_a_path_and_passages_by_the_caller(here):
    write_rag(here / "rag", "token")
    rag = Rag.from_pretrained(here / "rag", dtype="float32", trainable=True)
    answer = rag.ask(QUESTION, passages=[{"title": "Valves", "text": "the valve has closed"}], max_tokens=5)
    assert answer.weights == pytest.approx((1.0,))
    loss = rag.loss([QUESTION], ["the oil"], passages=[[{"text": "the oil is black"}]])
    loss.backward()
    assert all(p.grad is not None for n, p in rag.generator._model.named_parameters() if "layers.0" in n)


def test_an_open_collection_is_opened_again_with_the_checkpoint_s_questions(here):
    write_rag(here / "rag", "token")
    build()
    with Collection.open("c", dtype="float32") as mine:
        rag = Rag.from_pretrained("./rag", mine, dtype="float32")
        assert rag.collection.encoder.spec.fingerprint != mine.encoder.spec.fingerprint
        tuned = load_encoder("./rag#question_encoder,./p", device="cpu", dtype="float32")
        vectors = mine.snapshot().vectors([hit.passage.id for hit in rag.ask(QUESTION, max_tokens=3).hits])
        expected = sorted((float(v @ tuned.encode_questions([QUESTION])[0]) for v in vectors), reverse=True)
        assert [hit.score for hit in rag.ask(QUESTION, max_tokens=3).hits] == pytest.approx(expected, rel=1e-4)


def test_collections_that_do_not_fit(here):
    write_rag(here / "rag", "token")
    Collection.build(["docs"], "fake", encoder=FakeEncoder()).close()
    with pytest.raises(UsageError, match="no pair QUESTION,PASSAGE"):
        Rag.from_pretrained("./rag", "fake")
    build()
    write_dpr(here / "p2", passages=True, seed=9)
    with pytest.raises(EncoderMismatchError):
        Rag.from_pretrained("./rag", "c", passage_encoder="./p2", dtype="float32")
    with pytest.raises(ModelMissingError, match="facebook/rag-token-nq"):
        Rag.from_pretrained("facebook/rag-token-nq", "c")
