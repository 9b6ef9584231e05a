"""The numbered faults of the reference (MATH section 6): that it has them, and that bifolio does not.

Each test first shows what transformers' RAG does, so that the day it changes is noticed, and then what ours does.
"""

import copy
import inspect
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast, RagConfig, RagSequenceForGeneration
from transformers.models.rag.retrieval_rag import HFIndexBase, RagRetriever

import bifolio
from bifolio import decode, marginal, passagewise
from bifolio.generators.ends import Ends
from bifolio.hypotheses import Mixture, constant
from bifolio.indexes.exact import ExactIndex
from bifolio.protocols import Move, Reading
from bifolio.types import Passage
from fakes import FakeGenerator
from parity.reference import SCORES, UNPADDED, mixture, pair, reference_loss, token_log_probs

SRC = Path(bifolio.__file__).parent
BOS, EOS = 0, 2
RAGGED = [[0, 7, 8, 9, 10, 11, 12, 13, 2], [0, 14, 2]]


def plain_mixture(made):
    return Mixture(constant(torch.zeros(1, dtype=torch.float64)), lambda prefix: False, made.eos)


def test_01_candidates_are_generated_with_the_padding_masked(bart):
    given = bart.tensors([RAGGED], SCORES)
    ids, mask = given["context_input_ids"], given["context_attention_mask"]
    differ = 0
    for seed in range(20):
        bart.redraw(seed)
        unmasked = bart.theirs.generate(ids, attention_mask=None, max_length=12).tolist()
        all_ones = bart.theirs.generate(ids, attention_mask=torch.ones_like(mask), max_length=12).tolist()
        masked = bart.theirs.generate(ids, attention_mask=mask, max_length=12).tolist()
        assert unmasked == all_ones
        differ += unmasked != masked
        apart = bart.branches([RAGGED]).apart()
        ours = decode.run(apart, [decode.beam(plain_mixture(bart), max_tokens=11) for _ in RAGGED])
        for (answer,), row in zip(ours, masked, strict=True):
            assert list(answer.tokens) == row[1 : 1 + len(answer.tokens)]
            assert set(row[1 + len(answer.tokens) :]) <= {bart.pad}
    assert differ >= 10


def test_02_the_prior_counts_for_a_target_of_one_token(bart):
    likelihood = token_log_probs(bart, UNPADDED, [EOS])
    for scores in (SCORES, -5 * SCORES):
        theirs = reference_loss(bart.sequence, bart, UNPADDED, scores, [[EOS]])
        assert float(theirs[0]) == pytest.approx(-float(likelihood.sum(1).logsumexp(0)))  # no prior in it
        ours = bart.losses([UNPADDED], scores, [[EOS]], "sequence")
        wanted = -float((scores[0].log_softmax(0) + likelihood.sum(1)).logsumexp(0))
        assert float(ours[0].detach()) == pytest.approx(wanted)


def test_03_training_starts_the_decoder_as_generation_does(bart, tmp_path):
    text = "w7 w8"
    labels = torch.tensor([bart.ours._tokenizer(text)["input_ids"]])  # <s> x </s>, as people pass them
    with torch.no_grad():
        theirs = bart.sequence(**bart.tensors([UNPADDED], SCORES), labels=labels, n_docs=2).loss
        from_bos = [
            bart.theirs(input_ids=torch.tensor([ids]), decoder_input_ids=labels).logits[0, :-1].log_softmax(-1)
            for ids in UNPADDED
        ]
    without_start = torch.stack([rows.gather(1, labels[0, 1:, None])[:, 0].sum() for rows in from_bos])
    assert float(theirs[0]) == pytest.approx(-float((SCORES[0].log_softmax(0) + without_start).logsumexp(0)))

    answer = bart.ours.answer_ids(text, style="short")
    assert answer == labels[0].tolist()
    assert bart.start == EOS and bart.ours._start == EOS
    trained = bart.losses([UNPADDED], SCORES, [answer], "sequence")
    ((generated,),) = passagewise.score(bart.branches([UNPADDED]), [mixture(bart)], [[answer]])
    assert float(trained[0].detach()) == pytest.approx(-generated.log_prob)
    assert generated.log_prob != pytest.approx(-float(theirs[0]))

    config = transformers.T5Config(
        vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    question = transformers.DPRConfig(
        vocab_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    rag = RagConfig.from_question_encoder_generator_configs(question, config)
    t5 = RagSequenceForGeneration(
        rag, question_encoder=transformers.DPRQuestionEncoder(question),
        generator=transformers.T5ForConditionalGeneration(config),
    )  # fmt: skip
    with pytest.raises(AttributeError, match="bos_token_id"):
        t5(
            context_input_ids=torch.tensor([[5, 6, 1]]), context_attention_mask=torch.ones(1, 3), n_docs=1,
            doc_scores=torch.zeros(1, 1), labels=torch.tensor([[5, 1]]),
        )  # fmt: skip
    ours = pair(tmp_path, "t5")
    ours.redraw(0)
    assert float(ours.losses([[[5, 6, 2]]], torch.zeros(1, 1).double(), [[7, 2]], "sequence")[0].detach()) > 0


def test_04_a_score_does_not_depend_on_the_neighbours_in_the_batch(bart):
    first, other = [BOS, 7, 8, EOS], [9, 10, EOS]
    alone = reference_loss(bart.sequence, bart, UNPADDED, SCORES, [first], exclude_bos_score=True)
    beside = reference_loss(bart.sequence, bart, UNPADDED, SCORES, [first, other], exclude_bos_score=True)
    assert abs(float(alone[0]) - float(beside[0])) > 0.1
    branches = bart.branches([UNPADDED])
    (one,) = passagewise.score(branches, [mixture(bart)], [[first]])
    (two,) = passagewise.score(branches, [mixture(bart)], [[other, first]])
    assert one[0].log_prob == pytest.approx(two[1].log_prob, abs=1e-12)
    together = bart.losses([UNPADDED] * 2, SCORES.expand(2, -1), [first, other], "sequence")
    assert float(together[0].detach()) == pytest.approx(-one[0].log_prob, abs=1e-9)


def test_05_eos_is_trained_even_where_it_is_padding_and_no_label_has_to_be_minus_100(bart, monkeypatch):
    answer, shorter = [BOS, 7, 8, EOS], [BOS, 7, 8]
    monkeypatch.setattr(bart.sequence.config.generator, "pad_token_id", EOS)
    with_eos = reference_loss(bart.sequence, bart, UNPADDED, SCORES, [answer])
    without = reference_loss(bart.sequence, bart, UNPADDED, SCORES, [shorter])
    assert float(with_eos[0]) == pytest.approx(float(without[0]))  # EOS, however unlikely, costs nothing
    labels = torch.tensor([[EOS, BOS, 7, EOS, -100]])
    with pytest.raises(IndexError), torch.no_grad():
        bart.sequence(**bart.tensors([UNPADDED], SCORES), labels=labels, n_docs=2)

    words = copy.deepcopy(bart.ours._tokenizer)
    words.pad_token = "</s>"
    monkeypatch.setattr(bart.ours, "_tokenizer", words)
    losses = bart.losses([UNPADDED] * 2, SCORES.expand(2, -1), [answer, shorter], "sequence").detach()
    for loss, ids in zip(losses, (answer, shorter), strict=True):
        wanted = (SCORES[0].log_softmax(0) + token_log_probs(bart, UNPADDED, ids).sum(1)).logsumexp(0)
        assert float(loss) == pytest.approx(-float(wanted))
    assert float(losses[0] - losses[1]) > 0.01


def test_06_an_index_smaller_than_k_gives_what_it_has(bart):
    vectors = np.array([[1, 0], [0, 1]], dtype=np.float32)
    index = object.__new__(HFIndexBase)
    index.vector_size = 2

    class Dataset:
        def search_batch(self, name, queries, k):
            return None, np.array([[0, 1, -1]])

        def __getitem__(self, ids):
            return {"embeddings": vectors[ids], "title": np.array(["first", "last"])[ids].tolist()}

    index.dataset = Dataset()
    ids, found = index.get_top_docs(np.array([[-2.0, -1.0]], dtype=np.float32), 3)
    assert ids.tolist() == [[0, 1, -1]]
    assert found[0, 2].tolist() == [0, 0]  # score 0: here the best of all
    assert index.get_doc_dicts(ids)[0]["title"] == ["first", "last", "last"]

    ours = ExactIndex(2)
    ours.add(vectors, np.array([4, 9]))
    scores, known = ours.search(np.array([[-2.0, -1.0]], dtype=np.float32), 3)
    assert known.tolist() == [[9, 4]]
    assert scores.tolist() == [[-1, -2]]
    assert marginal.log_prior(torch.tensor(scores)).exp().sum(1).tolist() == pytest.approx([1])


def test_07_the_passage_is_cut_and_never_the_question(bart):
    question, long = "w1 w2 w3", " ".join(["w4"] * 100)
    config = SimpleNamespace(title_sep=" / ", doc_sep=" // ", max_combined_length=24)
    retriever = SimpleNamespace(config=config, generator_tokenizer=bart.ours._tokenizer)
    ids, _ = RagRetriever.postprocess_docs(
        retriever, [{"title": ["w5"], "text": [long]}], [question], None, 1, return_tensors="pt"
    )
    assert "w1" not in bart.ours._tokenizer.decode(ids[0])

    reading = Reading(question, (Passage("1", long, title="w5"),), "short", 8)
    ((prompt,), (kept,)) = bart.ours._inputs(reading)
    assert bart.ours._tokenizer.decode(prompt, skip_special_tokens=True).endswith("w4 // w1 w2 w3")
    assert len(prompt) == bart.ours.spec.window
    assert (kept.read, kept.whole) == (bart.ours.spec.window - 8, 100)
    assert bart.ours.read([reading]).kept == ((kept,),)


def test_08_the_question_keeps_its_case(bart):
    words = Tokenizer(tokenizer_models.WordLevel({"[UNK]": 0, "who": 1, "is": 2, "bob": 3}, unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    uncased = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    assert "question_encoder_tokenizer.decode(question_input_ids" in inspect.getsource(RagRetriever.__call__)
    assert uncased.decode(uncased("Who is Bob")["input_ids"]) == "who is bob"

    generator = FakeGenerator("Who is Bob")
    rag = bifolio.Rag(generator=generator, no_passage=False)
    rag.ask("Who is Bob", passages=[{"text": "Bob"}], style="short", max_tokens=4)
    assert generator.reads[-1][0] == "Who is Bob"


def encoded_rows(model, count):
    return model.get_encoder().register_forward_pre_hook(
        lambda module, args, given: count.append(len(given["input_ids"])), with_kwargs=True
    )


def test_09_rescoring_reads_nothing_again(bart):
    bart.redraw(3, ending=3)
    count: list[int] = []
    hook = encoded_rows(bart.theirs, count)
    bart.sequence.generate(**bart.tensors([UNPADDED], SCORES), n_docs=2, num_beams=3, max_length=8)
    hook.remove()
    assert sum(count) > 2 * 2  # the two passages, and then again for every candidate
    count.clear()
    hook = encoded_rows(bart.ours._model, count)
    (found,) = passagewise.thorough(bart.branches([UNPADDED]), [mixture(bart)], max_tokens=7, beams=3)
    hook.remove()
    assert len(found) >= 3
    assert sum(count) == 2


def test_10_questions_are_answered_together(bart, monkeypatch):
    calls: list[int] = []
    generate = type(bart.theirs).generate
    monkeypatch.setattr(type(bart.theirs), "generate", lambda *a, **b: calls.append(1) or generate(*a, **b))
    bart.sequence.generate(**bart.tensors([UNPADDED] * 3, SCORES.expand(3, -1)), n_docs=2, max_length=8)
    assert len(calls) == 3

    contexts = [UNPADDED, [UNPADDED[1], UNPADDED[0]], [[0, 15, 2], [0, 16, 2]]]
    steps: list[int] = []
    one_step = type(bart.ours._seq2seq).decode
    monkeypatch.setattr(type(bart.ours._seq2seq), "decode", lambda *a: steps.append(1) or one_step(*a))
    together = decode.run(
        bart.branches(contexts), [decode.beam(mixture(bart), max_tokens=7, beams=2) for _ in contexts]
    )
    assert len(steps) <= 7
    for mine, context in zip(together, contexts, strict=True):
        (alone,) = decode.run(bart.branches([context]), [decode.beam(mixture(bart), max_tokens=7, beams=2)])
        assert [answer.tokens for answer in mine] == [answer.tokens for answer in alone]


def test_11_cross_attention_is_not_copied_when_beams_change_places(bart):
    cache = bart.theirs(
        input_ids=torch.tensor(UNPADDED * 2), decoder_input_ids=torch.tensor([[EOS]] * 4), use_cache=True
    ).cache
    before = cache.cross_attention_cache.layers[0].keys
    moved = bart.token._reorder_cache(cache, torch.tensor([0, 0]))  # two beams of two passages, the same for both
    assert moved.cross_attention_cache.layers[0].keys.data_ptr() != before.data_ptr()
    torch.testing.assert_close(moved.cross_attention_cache.layers[0].keys, before)

    branches = bart.branches([UNPADDED])
    branches.start()
    places = [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in branches._run._cross.layers]
    for move in (Move([0, 0, 0], [7, 8, 9]), Move([2, 2, 1], [7, 8, 9]), Move([1, 0], [7, 8])):
        branches.advance([move])
        now = branches._run._cross.layers
        assert [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in now] == places
        assert len(now[0].keys) == 2


def test_12_log_probabilities_of_half_precision_are_float32(bart):
    dice = torch.Generator().manual_seed(0)
    logits = (torch.randn(2, 3, 5000, generator=dice) * 3).bfloat16()
    exact = logits.double().log_softmax(-1)
    target = torch.tensor([[2, 5, 3, 1]])
    theirs = -bart.sequence.get_nll(logits, SCORES.bfloat16(), target[:, :3], n_docs=2)
    assert theirs.dtype == torch.bfloat16
    ours = Ends(EOS, torch.tensor([EOS])).log_probs(logits)
    assert ours.dtype == torch.float32
    assert ours.exp().sum(-1).flatten().tolist() == pytest.approx([1] * 6, abs=1e-5)
    assert float((ours - exact).abs().max()) < 1e-5
    assert float((logits.log_softmax(-1) - exact).abs().max()) > 1e-2
