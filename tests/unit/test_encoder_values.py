"""TransformerEncoder against transformers itself: the same vectors, computed one text at a time."""

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import torch
from transformers import AutoModel, AutoTokenizer, DPRContextEncoder, DPRQuestionEncoder

from bifolio.encoders.transformer import TransformerEncoder
from bifolio.protocols import Encoder
from bifolio.types import Passage
from unit import encoder_folders as folders

PASSAGES = [
    Passage("1", "the cat sat on the mat.", title="cats"),
    Passage("2", "a dog ran in the park"),
    Passage("3", "old stone bridge, new town", title="the river", heading="bridge > old"),
    Passage("4", ""),
    Passage("5", "", title="dogs"),
    Passage("6", "the river ran in the old town " * 20, title="long"),
    Passage("7", "x" * 100_000),
    Passage("8", "nul \0 emoji \U0001f600 漢字 and a lone \ud800 surrogate"),
    Passage("9", "[MASK] [PAD] [CLS]"),
]
QUESTIONS = ["where is the cat?", "", "dogs in parks", "the " * 500]


def by_hand(folder, texts, *, pooling="mean", normalise=True, window=32, dense=None):
    """One text at a time: no padding, no sentence-transformers."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        inputs = tokenizer(text, truncation=True, max_length=window, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**inputs).last_hidden_state[0]
            vector = hidden.mean(0) if pooling == "mean" else hidden[0]
            if dense is not None:
                vector = torch.tanh(dense["linear.weight"] @ vector + dense["linear.bias"])
        rows.append(vector / vector.norm() if normalise else vector)
    return torch.stack(rows).numpy()


def read_by_model(passage):
    text = passage.text.replace("\ud800", "?")
    return f"{passage.label}\n{text}" if passage.label else text


@pytest.mark.parametrize(
    ("pooling", "normalize", "similarity", "normalised"),
    [
        ("mean", True, None, True),
        ("cls", True, "dot", True),
        ("cls", False, "cosine", True),
        ("mean", False, "dot", False),
        ("mean", False, None, True),  # sentence-transformers' own default is the cosine
    ],
)
def test_sentence_transformers(tmp_path, pooling, normalize, similarity, normalised):
    folder = folders.write_sentence_transformer(tmp_path, pooling=pooling, normalize=normalize, similarity=similarity)
    encoder = TransformerEncoder(folder, dtype="float32", device="cpu")
    assert isinstance(encoder, Encoder)
    options = {"pooling": pooling, "normalise": normalised}
    wanted = by_hand(folder, [read_by_model(passage) for passage in PASSAGES], **options)
    np.testing.assert_allclose(encoder.encode_passages(PASSAGES), wanted, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_questions(QUESTIONS), by_hand(folder, QUESTIONS, **options), atol=1e-5)
    spec = encoder.spec
    assert (spec.dimension, spec.window, spec.model) == (32, 32, str(folder))
    assert spec.prior_scale == (20.0 if normalised else 1.0)
    assert spec.no_passage_logit == (8.0 if normalised else None)


def test_dense_module(tmp_path):
    from safetensors.torch import load_file

    folder = folders.write_sentence_transformer(tmp_path, dense=12)
    encoder = TransformerEncoder(folder, dtype="float32")
    dense = load_file(folder / "2_Dense/model.safetensors")
    wanted = by_hand(folder, QUESTIONS, dense=dense)
    assert encoder.spec.dimension == 12
    np.testing.assert_allclose(encoder.encode_questions(QUESTIONS), wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["passage", "document"])
def test_prompts(tmp_path, name):
    prompts = {"query": "query: ", name: "passage: "}
    folder = folders.write_sentence_transformer(tmp_path, prompts=prompts)
    encoder = TransformerEncoder(folder, dtype="float32")
    asked = by_hand(folder, [f"query: {question}" for question in QUESTIONS])
    stored = by_hand(folder, [f"passage: {read_by_model(passage)}" for passage in PASSAGES])
    np.testing.assert_allclose(encoder.encode_questions(QUESTIONS), asked, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_passages(PASSAGES), stored, atol=1e-5)


@pytest.mark.parametrize("projection", [0, 20])
def test_dpr(tmp_path, projection):
    asks = folders.write_dpr(tmp_path / "q", passages=False, seed=1, projection=projection)
    reads = folders.write_dpr(tmp_path / "p", passages=True, seed=2, projection=projection)
    encoder = TransformerEncoder(asks, passage_folder=reads, dtype="float32", model="dpr")
    question_encoder, passage_encoder = (
        kind.from_pretrained(folder).eval() for kind, folder in ((DPRQuestionEncoder, asks), (DPRContextEncoder, reads))
    )
    tokenizer = AutoTokenizer.from_pretrained(asks)

    def vector(model, *texts):
        inputs = tokenizer(*([text] for text in texts), truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():  # as DPR was trained: all token types zero
            return model(inputs["input_ids"], inputs["attention_mask"]).pooler_output[0].numpy()

    stored = [vector(passage_encoder, *([p.label] if p.label else []), p.text.replace("\ud800", "?")) for p in PASSAGES]
    np.testing.assert_allclose(encoder.encode_passages(PASSAGES), np.stack(stored), atol=1e-5)
    asked = np.stack([vector(question_encoder, question) for question in QUESTIONS])
    np.testing.assert_allclose(encoder.encode_questions(QUESTIONS), asked, atol=1e-5)
    spec = encoder.spec
    assert (spec.dimension, spec.prior_scale, spec.no_passage_logit) == (projection or 32, 1.0, None)
    assert (spec.model, spec.window) == ("dpr", 64)


def test_neighbours_order_and_batch_size_change_nothing(tmp_path):
    folder = folders.write_sentence_transformer(tmp_path)
    rng = np.random.default_rng(0)
    words = [word for word in folders.WORDS if word.isalpha()]
    texts = [Passage(str(n), " ".join(rng.choice(words, rng.integers(0, 40)))) for n in range(60)]
    alone = np.concatenate([TransformerEncoder(folder, dtype="float32").encode_passages([text]) for text in texts[:3]])
    together = TransformerEncoder(folder, dtype="float32", batch_size=32).encode_passages(texts)
    np.testing.assert_allclose(together[:3], alone, atol=1e-5)
    for batch_size in (1, 7):
        order = rng.permutation(60)
        shuffled = TransformerEncoder(folder, dtype="float32", batch_size=batch_size).encode_passages(
            [texts[at] for at in order]
        )
        np.testing.assert_allclose(shuffled, together[order], atol=1e-5)


def test_chunks_keep_the_order(tmp_path, monkeypatch):
    folder = folders.write_sentence_transformer(tmp_path)
    encoder = TransformerEncoder(folder, dtype="float32", batch_size=2)
    whole, lengths = encoder.encode_passages(PASSAGES), encoder.passage_lengths(PASSAGES)
    monkeypatch.setattr("bifolio.encoders.transformer._CHUNK", 4)
    told = []
    np.testing.assert_allclose(encoder.encode_passages(PASSAGES, told.append), whole, atol=1e-5)
    assert encoder.passage_lengths(PASSAGES).tolist() == lengths.tolist()
    assert told == [2, 2, 2, 2, 1]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_side_of_the_tokenizer(tmp_path, side):
    folder = folders.write_sentence_transformer(tmp_path)
    encoder = TransformerEncoder(folder, dtype="float32")
    encoder._questions.tokenizer.padding_side = side
    seen = []
    run = encoder._questions.run
    object.__setattr__(encoder._questions, "run", lambda inputs: seen.append(inputs["attention_mask"]) or run(inputs))
    encoder.encode_questions(["the cat sat", "a"])
    assert seen[0].tolist() == [[1] * 5, [0, 0, 1, 1, 1] if side == "left" else [1, 1, 1, 0, 0]]


def test_bfloat16_is_close_to_float32(tmp_path):
    folder = folders.write_sentence_transformer(tmp_path)
    exact = TransformerEncoder(folder, dtype="float32")
    half = TransformerEncoder(folder, dtype="bfloat16")
    vectors = half.encode_passages(PASSAGES)
    assert vectors.dtype == np.float32
    # 3e-2: this model's random weights are ten times larger than trained ones; all-MiniLM stays within 1e-2
    np.testing.assert_allclose(vectors, exact.encode_passages(PASSAGES), atol=3e-2)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)  # normalised in float32
    assert half.spec.fingerprint == exact.spec.fingerprint


def test_lengths_are_of_the_uncut_input(tmp_path):
    folder = folders.write_sentence_transformer(tmp_path)
    encoder = TransformerEncoder(folder, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=10**9)
    wanted = [len(tokenizer(read_by_model(passage))["input_ids"]) for passage in PASSAGES]
    assert encoder.passage_lengths(PASSAGES).tolist() == wanted
    assert encoder.passage_lengths([]).tolist() == []
    assert wanted[5] > encoder.spec.window


def test_nothing_to_encode(tmp_path):
    encoder = TransformerEncoder(folders.write_sentence_transformer(tmp_path), dtype="float32")
    assert encoder.encode_questions([]).shape == (0, 32)
    assert encoder.encode_passages([]).shape == (0, 32)


@pytest.mark.models
def test_default_model_like_sentence_transformers():
    from sentence_transformers import SentenceTransformer

    from bifolio import models

    folder = models.resolve(models.DEFAULT_ENCODER)
    reference = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    passages = [*PASSAGES[:6], Passage("10", "Zürich's 3.14 km² «Altstadt»: 漢字", title="A title, with 'marks'")]
    encoder = TransformerEncoder(folder, model=models.DEFAULT_ENCODER, dtype="float32", device="cpu")
    wanted = reference.encode([read_by_model(passage) for passage in passages], show_progress_bar=False)
    np.testing.assert_allclose(encoder.encode_passages(passages), wanted, atol=1e-5)
    half = TransformerEncoder(folder, dtype="bfloat16", device="cpu").encode_passages(passages)
    np.testing.assert_allclose(half, wanted, atol=1e-2)
    assert encoder.spec.window == 256 and encoder.spec.dimension == 384
