"""Every scheme against the enumeration of all answers, in plain floats: the oracle has no tensor of bifolio's.

The generators are tables (``toy.py``) and tiny decoder-only models of transformers, run one string at a time.
"""

import math
import random
from itertools import product

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import tiny
from bifolio import decode, passagewise
from bifolio.generators.causal import CausalGenerator
from bifolio.hypotheses import Mixture
from bifolio.protocols import Reading
from bifolio.segments import boundary
from bifolio.types import Passage
from toy import EOS, Several, ToyBranches, text

RULES = [("token", 1), ("sentence", 1), ("sequence", 1), ("requery", 1), ("requery", 2), ("requery", 3)]
"""Schemes, and after how many tokens the prior is renewed."""
rules = pytest.mark.parametrize(("scheme", "every"), RULES, ids=lambda value: str(value))


def prior_of(scheme, k, seed):
    """p(z | x, prefix) as plain floats: with ``requery`` another one for every prefix."""

    def prior(prefix):
        dice = random.Random(repr((seed, prefix if scheme == "requery" else ())))
        weights = [dice.expovariate(1) for _ in range(k)]
        return [weight / sum(weights) for weight in weights]

    return prior


def mixture(prior, starts, eos=EOS):
    """The same prior for bifolio, which asks for it where a segment begins."""
    return Mixture(
        lambda prefixes: torch.tensor([prior(tuple(prefix)) for prefix in prefixes], dtype=torch.float64).log(),
        starts,
        eos,
    )


def probability(prior, starts, conditionals, answer):
    """Prod_segments sum_z pi_z prod_i p(y_i | x, z, y_<i); ``conditionals(prefix)[z][token]`` are probabilities."""
    total, joint = 1.0, prior(())
    for i, token in enumerate(answer):
        prefix = answer[:i]
        if i and starts(prefix):
            total *= sum(joint)
            joint = prior(prefix)
        joint = [weight * row[token] for weight, row in zip(joint, conditionals(prefix), strict=True)]
    return total * sum(joint)


def table(scheme, every, seed, k=3, impossible=0.0):
    """A toy with four tokens and answers of up to four, its mixture, and the probability of every answer."""
    toy = ToyBranches(k, 4, 3, seed, impossible)
    prior, starts = prior_of(scheme, k, seed), boundary(scheme, text, every)

    def conditionals(prefix):
        return [[math.exp(value) for value in toy.conditional(z, prefix)] for z in range(k)]

    exact = {answer: probability(prior, starts, conditionals, answer) for answer in toy.answers()}
    return toy, mixture(prior, starts), exact


SEEDS = range(6)


@rules
def test_probabilities_of_all_answers_sum_to_one(scheme, every):
    for seed in SEEDS:
        for impossible in (0.0, 0.3):
            _, _, exact = table(scheme, every, seed, impossible=impossible)
            assert sum(exact.values()) == pytest.approx(1, abs=1e-12)


@rules
def test_scoring_gives_the_enumerated_probability_of_every_answer(scheme, every):
    for seed in SEEDS:
        toy, wanted, exact = table(scheme, every, seed, impossible=0.3 * (seed % 2))
        (scored,) = passagewise.score(toy, [wanted], [list(exact)])
        for answer, p in zip(scored, exact.values(), strict=True):
            assert math.exp(answer.log_prob) == pytest.approx(p, abs=1e-12)


@rules
def test_a_wide_exact_beam_finds_the_best_in_order(scheme, every):
    for seed in SEEDS:
        toy, wanted, exact = table(scheme, every, seed, impossible=0.3 * (seed % 2))
        (found,) = decode.run(toy, [decode.beam(wanted, max_tokens=9, beams=60, n_best=5)])
        best = sorted(exact.values(), reverse=True)[:5]
        assert [math.exp(answer.log_prob) for answer in found] == pytest.approx(best, abs=1e-12)
        assert [exact[answer.tokens] for answer in found] == pytest.approx(best, abs=1e-12)


@rules
def test_a_narrow_beam_reports_the_enumerated_probability(scheme, every):
    for seed in SEEDS:
        toy, wanted, exact = table(scheme, every, seed)
        for beams in (1, 2, 3):
            (found,) = decode.run(toy, [decode.beam(wanted, max_tokens=9, beams=beams, n_best=beams)])
            for answer in found:
                assert math.exp(answer.log_prob) == pytest.approx(exact[answer.tokens], abs=1e-12)


@rules
def test_what_was_decoded_is_what_scoring_makes_of_it(scheme, every):
    for seed in SEEDS:
        toy, wanted, _ = table(scheme, every, seed)
        (found,) = decode.run(toy, [decode.beam(wanted, max_tokens=9, beams=3, n_best=3)])
        drawn = decode.run(toy, [decode.draw(wanted, max_tokens=9, n_best=3, seed=seed)])[0]
        (scored,) = passagewise.score(toy, [wanted], [[answer.tokens for answer in [*found, *drawn]]])
        for mine, again in zip([*found, *drawn], scored, strict=True):
            torch.testing.assert_close(mine.log_probs, again.log_probs)
            torch.testing.assert_close(mine.token_log_probs, again.token_log_probs)
            torch.testing.assert_close(mine.log_priors, again.log_priors)
            assert (mine.segment_ids, mine.finished) == (again.segment_ids, again.finished)


@rules
def test_thorough_ranks_its_candidates_exactly_and_fast_is_a_lower_bound(scheme, every):
    for seed in SEEDS:
        toy, wanted, exact = table(scheme, every, seed)
        for beams in (1, 2):
            (thorough,) = passagewise.thorough(toy, [wanted], max_tokens=9, beams=beams)
            (fast,) = passagewise.fast(toy, [wanted], max_tokens=9, beams=beams)
            assert {answer.tokens for answer in thorough} == {answer.tokens for answer in fast}
            ordered = [exact[answer.tokens] for answer in thorough]
            assert ordered == sorted(ordered, reverse=True)
            for answer in thorough:
                assert math.exp(answer.log_prob) == pytest.approx(exact[answer.tokens], abs=1e-12)
            for answer in fast:
                assert math.exp(answer.log_prob) <= exact[answer.tokens] + 1e-12
            assert thorough[0].log_prob >= fast[0].log_prob - 1e-12
            (wide,) = decode.run(toy, [decode.beam(wanted, max_tokens=9, beams=60)])
            assert wide[0].log_prob >= thorough[0].log_prob - 1e-12


def test_fast_adds_up_the_passages_that_found_an_answer():
    toy, wanted, _ = table("sequence", 1, 5)
    prior = wanted.prior([()])[0].exp().tolist()
    (fast,) = passagewise.fast(toy, [wanted], max_tokens=9, beams=1)
    expected = {}
    for z, branch in enumerate(toy.apart().toys):
        plain = mixture(lambda prefix: [1.0], lambda prefix: False)
        ((alone,),) = decode.run(branch, [decode.beam(plain, max_tokens=9)])
        expected[alone.tokens] = expected.get(alone.tokens, 0) + prior[z] * math.exp(alone.log_prob)
    assert {answer.tokens: math.exp(answer.log_prob) for answer in fast} == pytest.approx(expected)


def test_many_questions_at_once_are_each_alone():
    problems = [table(scheme, every, seed, k=1 + seed) for seed, (scheme, every) in enumerate(RULES)]
    together = Several([toy for toy, _, _ in problems])
    wanted = [one for _, one, _ in problems]
    searches = [decode.beam(one, max_tokens=9, beams=1 + q % 3, n_best=1 + q % 3) for q, one in enumerate(wanted)]
    found = decode.run(together, searches)
    for q, (toy, one, _) in enumerate(problems):
        (alone,) = decode.run(toy, [decode.beam(one, max_tokens=9, beams=1 + q % 3, n_best=1 + q % 3)])
        assert [answer.tokens for answer in found[q]] == [answer.tokens for answer in alone]
        assert [answer.log_prob for answer in found[q]] == [answer.log_prob for answer in alone]
    for method in (passagewise.thorough, passagewise.fast):
        for (toy, one, _), mine in zip(problems, method(together, wanted, max_tokens=9, beams=2), strict=True):
            (alone,) = method(toy, [one], max_tokens=9, beams=2)
            assert [answer.tokens for answer in mine] == [answer.tokens for answer in alone]


# ---- decoder-only models: no library computes a true marginal for them ----

WORDS = 6
DEPTH = 3


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def decoder(request, tmp_path_factory):
    """A generator over six tokens, and the conditionals of plain transformers for one question of three branches."""
    folder = tmp_path_factory.mktemp(request.param)
    names = ["</s>", *(f"w{i}" for i in range(WORDS - 1))]
    core = Tokenizer(tokenizer_models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="w0")
    tiny.causal(folder, family=request.param, words=made, window=96)
    generator = CausalGenerator(folder, dtype="float64", form="plain")
    reading = Reading("w1 w2", (Passage("1", "w3 w4 w3", title="w4"), Passage("2", "w2")), "short", 4, True)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    parts = generator._parts(reading)
    known = {}

    @torch.no_grad()
    def conditionals(prefix):
        if len(prefix) >= DEPTH:  # the end of the strings that are enumerated: all of them may go on
            return [[1.0] * WORDS] * 3
        if prefix not in known:
            rows = [plain(input_ids=torch.tensor([[*p, *parts.tail, *prefix]])).logits[0, -1] for p in parts.prefixes]
            known[prefix] = torch.stack(rows).softmax(-1).tolist()
        return known[prefix]

    return generator, reading, conditionals


@rules
def test_decoder_only_models_are_enumerated_too(decoder, scheme, every):
    generator, reading, conditionals = decoder
    prior, starts = prior_of(scheme, 3, 1), boundary(scheme, lambda ids: "Yes. " * (len(ids) // 2), every)
    wanted = mixture(prior, starts, generator.spec.eos)
    ended = [(*body, generator.spec.eos) for length in range(DEPTH) for body in product(range(1, WORDS), repeat=length)]
    going = list(product(range(1, WORDS), repeat=DEPTH))
    exact = {answer: probability(prior, starts, conditionals, answer) for answer in [*ended, *going]}
    assert sum(exact.values()) == pytest.approx(1, abs=1e-12)
    branches = generator.read([reading])
    (scored,) = passagewise.score(branches, [wanted], [list(exact)])
    for answer, p in zip(scored, exact.values(), strict=True):
        assert math.exp(answer.log_prob) == pytest.approx(p, rel=1e-9)
    (found,) = decode.run(branches, [decode.beam(wanted, max_tokens=DEPTH, beams=300, n_best=300)])
    assert {answer.tokens: math.exp(answer.log_prob) for answer in found} == pytest.approx(exact, rel=1e-9)
    best = sorted((answer for answer in ended), key=lambda answer: -exact[answer])
    assert [answer.tokens for answer in found[: len(ended)]] == best
