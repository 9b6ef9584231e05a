"""What a decoder-only generator keeps of the passages that it read: exact, bounded, shared."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tiny
from bifolio.errors import UsageError
from bifolio.generators.causal import CausalGenerator
from bifolio.generators.passage_cache import CacheStatistics, PassageCache
from bifolio.protocols import Move, Reading
from bifolio.types import Passage

PASSAGES = tuple(Passage(str(i), f"Passage {i} says that valve {i} closes.", title=f"Part {i}") for i in range(5))
MOVES = [Move([0, 0], [5, 6]), Move([1, 1, 0], [7, 8, 9])]


def entry(columns, layers=2):
    """Keys and values of so many columns: 64 bytes a column and layer."""
    return tuple((torch.zeros(2, columns, 4), torch.zeros(2, columns, 4)) for _ in range(layers))


SIZE = 64 * 2 * 10  # of entry(10)


# ---- the store ----


def test_the_least_recently_used_goes_first():
    cache = PassageCache(3 * SIZE)
    kept = {name: entry(10) for name in "abcd"}
    for name in "abc":
        cache.put(name, kept[name])
    assert cache.get("a") is kept["a"]
    cache.put("d", kept["d"])
    assert [cache.get(name) is not None for name in "abcd"] == [True, False, True, True]
    assert cache.statistics == CacheStatistics(4, 1, 1, 3, 3 * SIZE, 3 * SIZE)


def test_what_does_not_fit_is_not_kept_and_drives_nothing_out():
    cache = PassageCache(3 * SIZE)
    cache.put("a", entry(10))
    cache.put("huge", entry(31))
    assert cache.get("huge") is None
    assert cache.statistics == CacheStatistics(0, 1, 0, 1, SIZE, 3 * SIZE)
    cache.put("wide", entry(25))  # fits alone
    assert cache.get("a") is None
    assert cache.statistics.bytes == 25 * 128


def test_the_same_key_again_takes_the_place_of_the_first():
    cache = PassageCache(3 * SIZE)
    cache.put("a", entry(10))
    second = entry(20)
    cache.put("a", second)
    assert cache.get("a") is second
    assert cache.statistics == CacheStatistics(1, 0, 0, 1, 2 * SIZE, 3 * SIZE)


def test_clearing_forgets_the_entries_and_not_the_counts():
    cache = PassageCache(SIZE)
    cache.put("a", entry(10))
    assert cache.get("a") is not None
    cache.clear()
    assert cache.get("a") is None
    assert cache.statistics == CacheStatistics(1, 1, 0, 0, 0, SIZE)


def test_capacities():
    empty = PassageCache(0)
    empty.put("a", entry(1))
    assert empty.get("a") is None
    with pytest.raises(UsageError, match="cache of -1 bytes"):
        PassageCache(-1)


def test_many_threads_never_exceed_the_bound_or_lose_count():
    cache = PassageCache(5 * SIZE)

    def work(seed):
        dice = random.Random(seed)
        for _ in range(200):
            key = dice.randrange(12)
            if cache.get(key) is None:
                cache.put(key, entry(1 + key))
            statistics = cache.statistics
            assert 0 <= statistics.bytes <= statistics.capacity
        return 200

    with ThreadPoolExecutor(8) as pool:
        asked = sum(pool.map(work, range(8)))
    end = cache.statistics
    assert end.hits + end.misses == asked
    held = [key for key in range(12) if cache.get(key) is not None]
    assert end.passages == len(held)
    assert end.bytes == sum(128 * (1 + key) for key in held)


# ---- with a generator ----


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def folder(request, tmp_path_factory):
    return tiny.causal(tmp_path_factory.mktemp(request.param), family=request.param)


@pytest.fixture
def generator(folder):
    return CausalGenerator(folder, dtype="float32")


def reading(passages=PASSAGES[:3], question="Which one?", **changes):
    return Reading(question, tuple(passages), **{"style": "short", "max_tokens": 8, "no_passage": True, **changes})


def values(generator, *readings):
    """All that these questions give: first tokens, two steps, scores."""
    branches = generator.read(readings)
    found = list(branches.start())
    for move in MOVES:
        found += branches.advance([move for _ in readings])
    return [*found, *(rows for mine in branches.score([[[5, 6, 7]] for _ in readings]) for rows in mine)]


def cached(branches):
    return [[one.cached for one in mine] for mine in branches.kept]


def test_a_warm_passage_is_bit_for_bit_the_cold_one(generator):
    cold, warm = values(generator, reading()), values(generator, reading())
    assert all(torch.equal(a, b) for a, b in zip(cold, warm, strict=True))
    assert (generator.cache_statistics.hits, generator.cache_statistics.misses) == (4, 4)


def test_kept_says_which_passages_cost_nothing(generator):
    assert cached(generator.read([reading()])) == [[False] * 3]
    assert cached(generator.read([reading(PASSAGES[1:5])])) == [[True, True, False, False]]
    assert cached(generator.read([reading(PASSAGES[:1], "Why?", style="long")])) == [[True]]  # the same before it


def test_without_a_cache_it_is_the_same(folder, generator):
    none = CausalGenerator(folder, dtype="float32", cache_bytes=0)
    for a, b in zip(values(none, reading()), values(generator, reading()), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    assert none.cache_statistics == CacheStatistics(0, 4, 0, 0, 0, 0)
    assert cached(none.read([reading()])) == [[False] * 3]


def passes(generator):
    """Shapes of all that the model reads from now on."""
    shapes = []
    generator._model.register_forward_pre_hook(
        lambda module, args, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def test_a_passage_that_two_questions_share_is_read_once(generator):
    shapes = passes(generator)
    first, second = reading(PASSAGES[:2], "Why?"), reading(PASSAGES[1:3], "What for?", no_passage=False)
    branches = generator.read([first, second])
    assert sum(rows for rows, _ in shapes) == 4  # three passages, and what is before every passage
    assert cached(branches) == [[False, False], [True, False]]
    together = branches.start()
    for rows, one in zip(together, (first, second), strict=True):
        torch.testing.assert_close(rows, generator.read([one]).start()[0], atol=1e-5, rtol=0)
    shapes.clear()
    generator.read([second]).start()
    assert shapes == [(2, len(generator._parts(second).tail))]  # a warm passage costs the question's tokens


def test_memory_is_bounded_and_evicted_passages_are_read_again(folder, generator):
    values(generator, reading(PASSAGES))
    one = generator.cache_statistics.bytes // 6
    small = CausalGenerator(folder, dtype="float32", cache_bytes=2 * one + one // 2)
    for _ in range(2):
        for passage in PASSAGES:
            mine = values(small, reading([passage], no_passage=False))
            for a, b in zip(mine, values(generator, reading([passage], no_passage=False)), strict=True):
                torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
            assert small.cache_statistics.bytes <= small.cache_statistics.capacity
    assert small.cache_statistics.misses == 10
    assert small.cache_statistics.passages == 2
    assert small.cache_statistics.evicted == 8


def test_a_passage_that_is_cut_otherwise_is_another_entry(generator):
    long = Passage("l", "x" * 2000)
    readings = [reading([long], "why " * n, no_passage=False) for n in (1, 40, 1)]
    branches = [generator.read([one]) for one in readings]
    reads = [one.kept[0][0] for one in branches]
    assert reads[0].read == reads[1].read + 4 * 39
    assert [one.cached for one in reads] == [False, False, True]
    assert torch.equal(branches[0].start()[0], branches[2].start()[0])
    alone = CausalGenerator.__new__(CausalGenerator)
    alone.__dict__ = {**generator.__dict__, "_cache": PassageCache(0)}
    torch.testing.assert_close(branches[1].start()[0], alone.read([readings[1]]).start()[0], atol=1e-5, rtol=0)


def test_the_text_and_not_the_id_is_the_key(generator):
    generator.read([reading([Passage("1", "one text")])])
    assert cached(generator.read([reading([Passage("1", "another text")])])) == [[False]]
    assert cached(generator.read([reading([Passage("2", "one text")])])) == [[True]]
    assert cached(generator.read([reading([Passage("2", "one text", title="t")])])) == [[False]]


def test_many_threads_get_what_one_gets(folder, generator):
    readings = [reading([PASSAGES[i % 5], PASSAGES[(i + 1) % 5]], f"Question {i % 3}?") for i in range(15)]
    alone = [values(generator, one) for one in readings]
    shared = CausalGenerator(folder, dtype="float32", cache_bytes=generator.cache_statistics.bytes // 2)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: values(shared, one), readings * 2))
    for mine, theirs in zip(found, alone * 2, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=0)
    assert shared.cache_statistics.bytes <= shared.cache_statistics.capacity


def test_warming_reads_passages_before_anybody_asks(generator):
    shapes = passes(generator)
    generator.warm(PASSAGES[:2], style="short", max_tokens=8)
    generator.warm(PASSAGES[:2], style="short", max_tokens=8)
    assert sum(rows for rows, _ in shapes) == 2
    assert cached(generator.read([reading()])) == [[True, True, False]]
    generator.warm([Passage("l", "x" * 2000)], style="short")  # how it is cut depends on the question
    assert generator.cache_statistics.passages == 4
    with pytest.raises(UsageError, match="unknown style 'epic'"):
        generator.warm(PASSAGES, style="epic")


def test_what_was_read_is_not_changed_by_what_follows(generator):
    branches = generator.read([reading()])
    first = branches.start()[0].clone()
    for _ in range(80):  # more columns than there was room for at first
        branches.advance([Move([0], [5])])
    branches.score([[[5] * 90]])
    again = generator.read([reading()])
    assert cached(again) == [[True] * 3]
    assert torch.equal(again.start()[0], first)


def test_passages_are_read_anew_when_trained_weights_have_changed(folder):
    trained = CausalGenerator(folder, dtype="float32", trainable=True)
    before = trained.read([reading()]).start()[0]
    optimiser = torch.optim.SGD(trained._model.parameters(), lr=0.05)
    log_p, mask = trained.token_log_probs([reading()], [[5, 6, trained.spec.eos]])
    (-(log_p * mask[:, None]).sum()).backward()
    optimiser.step()
    branches = trained.read([reading()])
    assert cached(branches) == [[False] * 3]
    after = branches.start()[0]
    assert float((after - before).abs().max()) > 1e-3
    trained.clear_cache()
    torch.testing.assert_close(trained.read([reading()]).start()[0], after)
