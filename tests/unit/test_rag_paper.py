"""The paper's model through Rag: own passages, scoring, loss, many questions, decoders, n-best and requery."""

import math

import pytest
import torch

from bifolio import Collection, Rag, marginal
from bifolio.errors import NotFoundError, UsageError
from bifolio.options import AskOptions
from bifolio.segments import boundary, segment_ids
from bifolio.types import Passage
from fakes import COPY, FakeEncoder, FakeGenerator, bag, write_files

TEXTS = {
    "cat.txt": "the cat sat on the mat\n",
    "dog.txt": "the dog ran to the park\n",
    "sea.txt": "a wide sea of salt\n",
    "end.txt": "cats. dogs. the park\n",
}
VOCABULARY = " ".join(TEXTS.values())
QUESTION = "where sat the cat"


@pytest.fixture
def collection(tmp_path):
    encoder = FakeEncoder(no_passage_logit=1.5)
    with Collection.build([write_files(tmp_path / "docs", TEXTS)], tmp_path / "c", encoder=encoder) as built:
        yield built


@pytest.fixture
def rag(collection):
    return Rag(collection, generator=FakeGenerator(VOCABULARY), k=2)


def likelihood(text, answer, size):
    """log p(answer | a passage of this text) of the fake generator, EOS included."""
    words, said = text.split(), [*answer.split(), None]
    rest = math.log((1 - COPY) / (size - 1))
    return sum(
        math.log(COPY) if (word == words[i] if i < len(words) else word is None) else rest
        for i, word in enumerate(said)
    )


# ---- own passages ----


def test_own_passages_without_a_collection_have_a_uniform_prior():
    rag = Rag(generator=FakeGenerator(VOCABULARY))
    given = [{"text": "the cat sat", "title": "Cats"}, {"text": "the dog ran"}]
    answer = rag.ask(QUESTION, passages=given, scheme="sequence")
    assert [hit.log_prior for hit in answer.hits] == pytest.approx([math.log(0.5)] * 2)
    assert [hit.passage.id for hit in answer.hits] == ["given-1", "given-2"]
    assert answer.hits[0].passage.title == "Cats"
    assert answer.no_passage is None
    assert answer.generation == ""
    assert answer.text == "the cat sat"  # both begin with "the", the first wins the tie
    size = len(rag.generator.words)
    expected = [likelihood(one["text"], answer.text, size) for one in given]
    assert list(answer.log_likelihoods) == pytest.approx(expected, abs=1e-4)
    assert answer.log_prob == pytest.approx(math.log(sum(0.5 * math.exp(value) for value in expected)), abs=1e-4)


def test_own_scores_are_logits_of_the_prior():
    rag = Rag(generator=FakeGenerator(VOCABULARY))
    answer = rag.ask(QUESTION, passages=[{"text": "the cat", "score": 0}, {"text": "the dog", "score": math.log(3)}])
    assert [math.exp(hit.log_prior) for hit in answer.hits] == pytest.approx([0.25, 0.75])
    assert answer.text == "the dog"


def test_own_passages_beside_a_collection_are_scored_by_its_encoder(rag):
    passages = [Passage("p", "the cat sat"), Passage("q", "salt")]
    answer = rag.ask(QUESTION, passages=passages)
    scores = [float(bag(passage.text) @ bag(QUESTION)) for passage in passages]
    assert [hit.score for hit in answer.hits] == pytest.approx(scores, abs=1e-5)
    logits = [*(10 * score for score in scores), 1.5]
    total = math.log(sum(math.exp(logit) for logit in logits))
    assert [hit.log_prior for hit in answer.hits] == pytest.approx([logit - total for logit in logits[:2]], abs=1e-5)
    assert not any("asked for" in note for note in answer.notes)


def test_own_passages_are_not_changed(rag):
    given = [{"text": "the cat", "title": "t", "id": "mine"}]
    rag.ask(QUESTION, passages=given)
    assert given == [{"text": "the cat", "title": "t", "id": "mine"}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "at least one"),
        ("the cat", "at least one"),
        ([{"title": "x"}], "passage 1 .* 'text'"),
        ([{"text": "a"}, "b"], "passage 2"),
        ([{"text": 3}], "its text is 3"),
        ([{"text": "a", "contents": "b"}], "unknown key 'contents'"),
        ([{"text": "a", "score": "high"}], "its score"),
        ([{"text": "a", "score": math.nan}], "its score"),
        ([{"text": "a", "score": 1}, {"text": "b"}], "1 of 2 passages have a score"),
        ([{"text": "a", "id": "x"}, {"text": "b", "id": "x"}], "id 'x'"),
    ],
)
def test_own_passages_that_cannot_be_used(given, message):
    with pytest.raises(UsageError, match=message):
        Rag(generator=FakeGenerator(VOCABULARY)).ask(QUESTION, passages=given)


def test_without_a_collection_and_passages_there_is_nothing_to_read():
    with pytest.raises(UsageError, match="no collection to retrieve from"):
        Rag(generator=FakeGenerator(VOCABULARY)).ask(QUESTION)


# ---- scoring and loss ----


@pytest.mark.parametrize("scheme", ["token", "sentence", "sequence"])
def test_a_given_answer_is_scored_as_the_recursion_says(rag, scheme):
    scored = rag.score(QUESTION, "the dog", scheme=scheme)
    assert (scored.decoder, scored.scheme, scored.text) == ("given", scheme, "the dog")
    size = len(rag.generator.words)
    texts = [hit.passage.text for hit in scored.hits]
    assert list(scored.log_likelihoods) == pytest.approx([likelihood(t, "the dog", size) for t in texts], abs=1e-4)
    assert scored.no_passage_log_likelihood == pytest.approx(likelihood("", "the dog", size), abs=1e-4)
    if scheme == "sequence":
        logits = [hit.log_prior + value for hit, value in zip(scored.hits, scored.log_likelihoods, strict=True)]
        logits.append(scored.no_passage_log_prior + scored.no_passage_log_likelihood)
        total = math.log(sum(map(math.exp, logits)))
        assert scored.log_prob == pytest.approx(total, abs=1e-4)
        posterior = [math.exp(value - total) for value in logits]
        assert [*scored.weights, scored.no_passage] == pytest.approx(posterior, abs=1e-4)


@pytest.mark.parametrize("scheme", ["token", "sentence", "sequence", "requery"])
def test_what_was_decoded_scores_the_same(rag, scheme):
    answer = rag.ask(QUESTION, scheme=scheme)
    scored = rag.score(QUESTION, answer.text, scheme=scheme)
    assert scored.log_prob == pytest.approx(answer.log_prob, abs=1e-4)
    assert list(scored.weights) == pytest.approx(list(answer.weights), abs=1e-4)


class Trainable(FakeGenerator):
    """The fake with a likelihood that has gradients: a factor on all logits."""

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.factor = torch.ones((), requires_grad=True)

    def token_log_probs(self, readings, answers):
        rows = [row[0] for row in self.read(readings).score([[answer] for answer in answers])]
        longest = max(row.shape[1] for row in rows)
        padded = [torch.nn.functional.pad(row, (0, longest - row.shape[1])) for row in rows]
        mask = torch.tensor([[i < row.shape[1] for i in range(longest)] for row in rows])
        return torch.stack(padded) * self.factor, mask


@pytest.mark.parametrize("scheme", ["token", "sentence", "sequence", "requery"])
def test_the_loss_is_minus_the_mean_log_likelihood(collection, scheme):
    rag = Rag(collection, generator=Trainable(VOCABULARY), k=2, scheme=scheme)
    questions, answers = [QUESTION, "where is the dog"], ["the cat", "the dog ran"]
    loss = rag.loss(questions, answers)
    expected = [rag.score(q, a).log_prob for q, a in zip(questions, answers, strict=True)]
    assert float(loss.detach()) == pytest.approx(-sum(expected) / 2, abs=1e-4)
    loss.backward()
    assert rag.generator.factor.grad.abs() > 0


def test_gradients_reach_the_scores_as_posterior_minus_prior(collection):
    rag = Rag(collection, generator=Trainable(VOCABULARY), k=2, scheme="sequence", no_passage=False, mode="dense")
    scores = torch.tensor([[hit.score for hit in rag.ask(QUESTION).hits]], requires_grad=True)
    rag.loss([QUESTION], ["the cat"], scores=scores).backward()
    scored = rag.score(QUESTION, "the cat")
    expected = [10 * (math.exp(hit.log_prior) - w) for hit, w in zip(scored.hits, scored.weights, strict=True)]
    assert scores.grad[0].tolist() == pytest.approx(expected, abs=1e-3)


def test_a_generator_without_gradients_has_no_loss(rag):
    with pytest.raises(UsageError, match="no gradients"):
        rag.loss([QUESTION], ["the cat"])
    with pytest.raises(UsageError, match="one answer for each"):
        Rag(rag.collection, generator=Trainable(VOCABULARY)).loss([QUESTION], [])


# ---- many questions ----

MANY = [QUESTION, "where is the dog", "what is in the sea", "the park", "salt", "cats"]


@pytest.mark.parametrize("branches", [1, 7, 64])
@pytest.mark.parametrize("options", [{}, {"beam": 3}, {"scheme": "requery"}, {"temperature": 1.0, "seed": 4}])
def test_many_answers_are_the_same_as_one_by_one(rag, branches, options):
    found = list(rag.ask_many(MANY, branches=branches, **options))
    alone = [rag.ask(question, **options) for question in MANY]
    assert [a.question for a in found] == MANY
    assert [a.text for a in found] == [a.text for a in alone]
    assert [a.log_prob for a in found] == pytest.approx([a.log_prob for a in alone], abs=1e-4)
    for mine, other in zip(found, alone, strict=True):
        assert list(mine.weights) == pytest.approx(list(other.weights), abs=1e-5)
        assert [hit.passage.id for hit in mine.hits] == [hit.passage.id for hit in other.hits]


def test_questions_are_taken_when_they_are_needed(rag):
    taken = []

    def questions():
        for question in MANY:
            taken.append(question)
            yield question

    stream = rag.ask_many(questions(), branches=6)  # two questions of two passages and no passage
    assert taken == []
    assert next(stream).question == MANY[0]
    assert taken == MANY[:2]
    assert [answer.question for answer in stream] == MANY[1:]


def test_a_bad_question_fails_when_its_turn_comes(rag):
    stream = rag.ask_many([MANY[0], MANY[1], " ", MANY[2]])
    assert [next(stream).question, next(stream).question] == MANY[:2]
    with pytest.raises(UsageError, match="the question is empty"):
        next(stream)


def test_a_question_that_does_not_fit_fails_when_its_turn_comes(collection):
    rag = Rag(collection, generator=FakeGenerator(VOCABULARY, window=140), k=1)
    stream = rag.ask_many([MANY[0], "the cat " * 40, MANY[1]])
    assert next(stream).question == MANY[0]
    with pytest.raises(UsageError, match="no room"):
        next(stream)


@pytest.mark.parametrize("branches", [0, True, "many"])
def test_branches_out_of_range(rag, branches):
    with pytest.raises(UsageError, match="branches"):
        rag.ask_many(MANY, branches=branches)
    with pytest.raises(UsageError, match="list of questions"):
        rag.ask_many(QUESTION)


# ---- decoders and n-best ----


def test_every_decoder_finds_the_certain_answer_and_names_itself(rag):
    for decoder in ("exact", "thorough", "fast"):
        answer = rag.ask(QUESTION, scheme="sequence", decoder=decoder, beam=2)
        assert (answer.text, answer.decoder) == ("the cat sat on the mat", decoder)
    exact = rag.ask(QUESTION, scheme="sequence", beam=2)
    thorough = rag.ask(QUESTION, scheme="sequence", beam=2, decoder="thorough")
    fast = rag.ask(QUESTION, scheme="sequence", decoder="fast")
    assert fast.log_prob == pytest.approx(exact.log_prob, abs=1e-4)
    assert thorough.log_prob == pytest.approx(exact.log_prob, abs=1e-4)
    both = rag.ask(QUESTION, scheme="sequence", beam=2, add_thorough=True)
    assert both.log_prob == pytest.approx(max(exact.log_prob, thorough.log_prob), abs=1e-4)


def test_fast_leaves_out_what_other_branches_add(rag):
    own = [{"text": "the cat", "score": 0.5}, {"text": "the dog", "score": 0.0}]
    exact, fast = (rag.ask(QUESTION, passages=own, scheme="sequence", decoder=name) for name in ("exact", "fast"))
    assert exact.text == fast.text == "the cat"
    assert fast.log_prob < exact.log_prob - 1e-3  # it leaves out what the other branch adds


def test_alternatives_have_their_exact_log_probabilities(rag):
    answer = rag.ask(QUESTION, scheme="sequence", beam=4, n_best=3)
    assert len(answer.alternatives) == 2
    for other in answer.alternatives:
        assert other.log_prob <= answer.log_prob
        assert other.text != answer.text
        scored = rag.score(QUESTION, other.text, scheme="sequence")
        assert other.log_prob == pytest.approx(scored.log_prob, abs=1e-4)
        assert sum(other.weights) + other.no_passage == pytest.approx(1, abs=1e-5)
    assert answer.to_dict()["alternatives"][0]["text"] == answer.alternatives[0].text


def test_diversity_makes_the_first_words_differ(collection):
    rag = Rag(collection, generator=FakeGenerator(VOCABULARY), k=1, no_passage=False)
    plain = rag.ask(QUESTION, beam=4, n_best=2, scheme="sequence")
    diverse = rag.ask(QUESTION, beam=4, n_best=2, diversity=50.0, scheme="sequence")
    assert plain.text.split()[0] == plain.alternatives[0].text.split()[0]
    assert diverse.text == plain.text
    assert diverse.alternatives[0].text.split()[:1] != diverse.text.split()[:1]
    scored = rag.score(QUESTION, diverse.alternatives[0].text, scheme="sequence")
    assert diverse.alternatives[0].log_prob == pytest.approx(scored.log_prob, abs=1e-4)


def test_samples_may_be_several(rag):
    answer = rag.ask(QUESTION, temperature=1.0, seed=7, n_best=3)
    again = rag.ask(QUESTION, temperature=1.0, seed=7, n_best=3)
    assert [a.text for a in answer.alternatives] == [a.text for a in again.alternatives]
    assert len(answer.alternatives) == 2
    assert answer.log_prob >= answer.alternatives[0].log_prob >= answer.alternatives[1].log_prob


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": "best"}, "unknown decoder"),
        ({"decoder": "fast"}, "fast is for scheme sequence"),
        ({"n_best": 2}, "n_best 2 with beam 1"),
        ({"diversity": 1.0}, "diversity"),
        ({"beam": 3, "n_best": 2, "diversity": 1.0}, "multiple"),
        ({"beam": 2, "n_best": 2, "diversity": math.inf}, "finite"),
        ({"decoder": "thorough", "add_thorough": True}, "add_thorough is for the decoder exact"),
        ({"requery_every": 2}, "requery_every is for scheme requery"),
        ({"requery_every": 0, "scheme": "requery"}, "requery_every 0"),
        ({"requery_retrieve": True}, "requery_retrieve is for scheme requery"),
        ({"requery_retrieve": True, "scheme": "requery", "beam": 2}, "one greedy answer"),
        ({"requery_retrieve": 1, "scheme": "requery"}, "True or False"),
        ({"temperature": 1.0, "decoder": "thorough"}, "decoder is for searching"),
        ({"temperature": 1.0, "beam": 2}, "beam is for searching"),
        ({"cap": 1.0}, "cap 1.0"),
        ({"cap": 0.5, "decoder": "fast", "scheme": "sequence"}, "cap is not for decoder fast"),
    ],
)
def test_options_that_contradict_each_other(options, message):
    with pytest.raises(UsageError, match=message):
        AskOptions(**options)


def test_a_cap_bounds_every_step_and_says_that_it_is_another_model(rag):
    own = [{"text": "the cat sat on the mat", "score": 4.0}, {"text": "the dog ran to", "score": 0.0}]
    plain = rag.ask(QUESTION, passages=own, scheme="sequence")
    capped = rag.ask(QUESTION, passages=own, scheme="sequence", cap=0.6)
    assert plain.text == capped.text == "the cat sat on the mat"
    assert (plain.cap, capped.cap) == (None, 0.6)
    assert any("another model" in note for note in capped.notes)
    # Before the second word the first passage may have 0.6 at most, whatever it has earned.
    size, likely = len(rag.generator.words), COPY
    rest = (1 - COPY) / (size - 1)
    assert math.exp(capped.tokens[1].log_prob) == pytest.approx(0.6 * likely + 0.4 * rest, abs=1e-5)
    assert capped.tokens[1].weights[0] == pytest.approx(0.6 * likely / (0.6 * likely + 0.4 * rest), abs=1e-5)
    assert capped.sentences[0].basis == "capped"
    assert list(capped.sentences[0].weights) == pytest.approx(list(capped.tokens[-1].weights), abs=1e-5)
    assert sum(capped.weights) == pytest.approx(1, abs=1e-5)
    assert capped.evidence is None
    assert rag.score(QUESTION, capped.text, passages=own, scheme="sequence", cap=0.6).log_prob == pytest.approx(
        capped.log_prob, abs=1e-4
    )
    assert capped.to_dict()["cap"] == 0.6


def test_passages_of_one_document_share_the_cap(collection):
    rag = Rag(collection, generator=FakeGenerator(VOCABULARY), k=4, cap=0.3)
    together = [Passage(str(i), "the cat", "t", source="a.txt") for i in range(3)] + [
        Passage("x", "the dog", source="b")
    ]
    answer = rag.ask(QUESTION, passages=together)
    first = answer.tokens[0].weights
    assert sum(first[:3]) < 0.5  # 0.3 for a.txt before the first word, which all say


# ---- requery ----


def test_requery_takes_the_prior_of_question_and_answer_so_far(rag):
    scored = rag.score(QUESTION, "the dog ran", scheme="requery", requery_every=2, mode="dense")
    texts = [hit.passage.text for hit in scored.hits]
    ids = rag.generator.answer_ids("the dog ran", style="long")

    def log_prior(prefix):
        query = bag(f"{QUESTION} {prefix}".strip())
        return marginal.log_prior(torch.tensor([float(bag(text) @ query) for text in texts]), 10.0, 1.5)

    rows = [log_prior("")] * 2 + [log_prior("the dog")] * 2
    size = len(rag.generator.words)
    rest = math.log((1 - COPY) / (size - 1))
    table = []
    for text in [*texts, ""]:
        words = text.split()
        table.append(
            [
                math.log(COPY) if (rag.generator.ids[words[i]] if i < len(words) else 0) == token else rest
                for i, token in enumerate(ids)
            ]
        )
    segments = torch.tensor([segment_ids(ids, boundary("requery", rag.generator.text, 2))])
    assert segments.tolist() == [[0, 0, 1, 1]]
    expected = marginal.segment_log_likelihood(torch.stack(rows)[None], torch.tensor([table]), segments)
    assert scored.log_prob == pytest.approx(float(expected), abs=1e-4)
    assert scored.sentences[0].basis == "mean"


def test_requery_with_fresh_passages_reads_the_union(collection):
    rag = Rag(collection, generator=FakeGenerator("cats. dogs. the park cat sat on mat dog ran to"), k=1)
    answer = rag.ask("cats dogs", scheme="requery", requery_retrieve=True, max_tokens=12)
    assert answer.text.startswith("cats. dogs.")
    ids = [hit.passage.id for hit in answer.hits]
    assert len(set(ids)) == len(ids) >= 1
    for row in [answer.weights, *(sentence.weights for sentence in answer.sentences)]:
        assert len(row) == len(ids)
    for sentence in answer.sentences:
        assert sum(sentence.weights) + sentence.no_passage == pytest.approx(1, abs=1e-5)
        assert sentence.basis == "posterior"
    assert sum(answer.weights) + answer.no_passage == pytest.approx(1, abs=1e-5)


def test_requery_needs_an_encoder_and_fresh_passages_a_collection(rag):
    own = [{"text": "the cat"}]
    with pytest.raises(UsageError, match="needs an encoder"):
        Rag(generator=FakeGenerator(VOCABULARY)).ask(QUESTION, passages=own, scheme="requery")
    assert rag.ask(QUESTION, passages=own, scheme="requery").text == "the cat"
    with pytest.raises(UsageError, match="leave out passages"):
        rag.ask(QUESTION, passages=own, scheme="requery", requery_retrieve=True)
    with pytest.raises(UsageError, match="an answer that is given is not decoded"):
        rag.score(QUESTION, "the cat", scheme="requery", requery_retrieve=True)


# ---- warming ----


def test_warming_takes_passages_and_ids(rag):
    warmed = []
    rag.generator.warm = lambda passages, *, style, max_tokens: warmed.append((list(passages), style, max_tokens))
    first = next(iter(rag.collection.passages()))
    rag.warm([first.id, Passage("own", "text")], style="short")
    assert warmed == [([first, Passage("own", "text")], "short", 128)]
    with pytest.raises(NotFoundError, match="nothing-like-it"):
        rag.warm(["nothing-like-it"])
    with pytest.raises(UsageError, match="no collection"):
        Rag(generator=FakeGenerator(VOCABULARY)).warm(["x"])
