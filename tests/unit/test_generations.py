"""Generations: history, swaps, tags, differences, compaction, following, and another encoder for the same passages."""

import threading
import time

import numpy as np
import pytest

from bifolio.collection import Collection
from bifolio.errors import CollectionDamagedError, NotFoundError, UsageError
from crashing import OtherEncoder
from fakes import FakeEncoder, bag, write_files


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "docs", {"a.txt": "Text a one.\n", "b.txt": "Text b one.\n"})
    return tmp_path


def build(**options):
    return Collection.build(["docs"], "c", **{"encoder": FakeEncoder(), **options})


def texts(collection):
    return sorted(passage.text for passage in collection.passages())


def three(here):
    """1: a, b. 2: a changed, c new. 3: b gone."""
    collection = build()
    write_files(here / "docs", {"a.txt": "Text a two.\n", "c.txt": "Text c one.\n"})
    collection.sync(["docs"])
    (here / "docs/b.txt").unlink()
    collection.sync(["docs"])
    return collection


STATES = {
    1: ["Text a one.", "Text b one."],
    2: ["Text a two.", "Text b one.", "Text c one."],
    3: ["Text a two.", "Text c one."],
}


def test_every_change_is_a_generation_that_stays(here):
    with three(here) as collection:
        assert (texts(collection), collection.generation) == (STATES[3], "3")
        facts = ("number", "parent", "action", "changes", "documents", "passages", "live")
        assert [tuple(getattr(one, fact) for fact in facts) for one in collection.log()] == [
            (3, 2, "sync", {"added": 0, "changed": 0, "removed": 1}, 2, 2, True),
            (2, 1, "sync", {"added": 1, "changed": 1, "removed": 0}, 3, 3, False),
            (1, 0, "ingest", {"added": 2, "changed": 0, "removed": 0}, 2, 2, False),
        ]  # fmt: skip
        for number, expected in STATES.items():
            with Collection.open("c", encoder=FakeEncoder(), generation=number) as old:
                assert (texts(old), old.generation, old.counts()) == (expected, str(number), (len(expected),) * 2)
                for mode in ("dense", "lexical", "hybrid"):
                    found = sorted(
                        hit.passage.text for hit in old.retrieve("text one two", 9, mode=mode, collapse=False)
                    )
                    assert found == expected
        assert collection.sync(["docs"]).generation == "3"  # nothing new: no generation
        assert len(collection.log()) == 3


def test_a_difference(here):
    with three(here) as collection:
        found = collection.diff(1, 3)
        assert (found.added, found.changed, found.removed) == (("docs/c.txt",), ("docs/a.txt",), ("docs/b.txt",))
        assert (found.passages_added, found.passages_removed, found.encoders) == (2, 2, None)
        back = collection.diff(3, 1)
        assert (back.added, back.changed, back.removed) == (found.removed, found.changed, found.added)
        assert collection.diff(2) == collection.diff(2, 3)


def test_a_swap_and_what_is_written_after_it(here):
    with three(here) as collection:
        assert (collection.swap(1), texts(collection)) == ("1", STATES[1])
        write_files(here / "docs", {"d.txt": "Text d one.\n"})
        assert collection.ingest(["docs/d.txt"]).generation == "4"
        assert texts(collection) == [*STATES[1], "Text d one."]
        assert collection.log()[0].parent == 1
        assert collection.swap(3) == "3"
        assert texts(collection) == STATES[3]
        (here / "docs/a.txt").unlink()
        collection.sync(["docs"])
        assert (texts(collection), collection.generation) == (["Text c one.", "Text d one."], "5")
        for number, expected in {**STATES, 4: [*STATES[1], "Text d one."]}.items():
            with Collection.open("c", generation=number) as old:
                assert texts(old) == expected
        assert collection.verify() == []


def test_tags(here):
    with three(here) as collection:
        assert (collection.tag("first", 1), collection.tag("now")) == ("1", "3")
        assert [g.tags for g in collection.log()] == [("now",), (), ("first",)]
        assert collection.swap("first") == "1"
        assert collection.tag("first", 2) == "2"  # it moves
        assert (collection.swap("first"), texts(collection)) == ("2", STATES[2])
        collection.untag("now")
        with pytest.raises(NotFoundError, match="no generation 'now' in .*there are 1 to 3, with the tags first"):
            collection.swap("now")
        with pytest.raises(NotFoundError, match="no tag 'now'"):
            collection.untag("now")
        for name in ("", "7", "a b", "-x", "x" * 101):
            with pytest.raises(UsageError, match="expected a letter"):
                collection.tag(name)
        for name in ("99", "0", "-1", "9" * 30, "1.0", ""):
            with pytest.raises(NotFoundError):
                collection.swap(name)


def test_compaction_keeps_what_is_live_tagged_or_new(here):
    with three(here) as collection:
        collection.tag("first", 1)
        collection.swap(3)
        done = collection.compact()
        assert (done.generations, done.passages) == ((2,), 0)  # its passages are in one of the others
        assert (texts(collection), collection.verify()) == (STATES[3], [])
        with Collection.open("c", generation="first") as old:
            assert texts(old) == STATES[1]
        collection.untag("first")
        done = collection.compact()
        assert (done.generations, done.passages) == ((1,), 2)
        assert [b.rows for b in collection.snapshot().catalogue.blocks(1)] == [2]
        assert texts(collection) == STATES[3]
        with pytest.raises(NotFoundError):
            collection.swap(1)
        write_files(here / "docs", {"b.txt": "Text b one.\n"})
        assert collection.sync(["docs"]).generation == "4"  # numbers are never given again
        for mode in ("dense", "lexical"):
            found = sorted(hit.passage.text for hit in collection.retrieve("text one two", 9, mode=mode))
            assert found == STATES[2]
        for keep in (0, True, 1.5):
            with pytest.raises(UsageError, match="expected a whole number from 1 on"):
                collection.compact(keep)


def test_compaction_behind_an_older_live_generation(here):
    with three(here) as collection:
        collection.swap(1)
        assert collection.compact().generations == (2,)  # 3 is the newest
        collection.swap(3)
        assert texts(collection) == STATES[3]
        collection.swap(1)
        write_files(here / "docs", {"d.txt": "Text d.\n"})
        collection.ingest(["docs/d.txt"])
        assert texts(collection) == [*STATES[1], "Text d."]
        assert collection.verify() == []


def test_readers_keep_what_they_opened_through_a_compaction(here):
    with three(here) as collection, Collection.open("c", encoder=FakeEncoder(), generation=1) as old:
        collection.compact()
        assert texts(old) == STATES[1]
        hits = old.retrieve("text a one", 2, mode="dense")
        assert sorted(hit.passage.text for hit in hits) == STATES[1]
        assert np.array_equal(old.snapshot().vectors([hits[0].passage.id])[0], bag(hits[0].passage.text))


def test_who_follows_is_there_within_a_second_and_never_mixes(here):
    build().close()
    wrong, seen, done = [], set(), threading.Event()
    with (
        Collection.open("c", encoder=FakeEncoder(), follow=True) as reader,
        Collection.open("c", encoder=FakeEncoder()) as writer,
    ):
        write_files(here / "docs", {"a.txt": "Text a two.\n", "b.txt": "Text b two.\n"})
        writer.ingest(["docs"])

        def ask():
            while not done.is_set():
                now = reader.snapshot()
                hits = reader.retrieve("text a b", 2, collapse=False)
                kinds = {hit.passage.text.split()[-1] for hit in hits}
                if len(kinds) != 1 or len(hits) != 2:
                    wrong.append([hit.passage.text for hit in hits])
                seen.add(now.generation)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        waited = []
        for turn in range(6):
            number = writer.swap(1 + turn % 2)
            started = time.monotonic()
            while reader.generation != number and time.monotonic() - started < 30:
                time.sleep(0.01)
            waited.append(time.monotonic() - started)
        done.set()
        for thread in threads:
            thread.join()
        assert (wrong, seen) == ([], {"1", "2"})
        assert sorted(waited)[2] < 5  # a second on an idle machine
        with pytest.raises(UsageError, match="leave one of them out"):
            Collection.open("c", generation=1, follow=True)


def test_refresh_moves_on_when_asked(here):
    with build() as reader, Collection.open("c", encoder=FakeEncoder()) as writer:
        assert reader.refresh() is False
        write_files(here / "docs", {"a.txt": "Text a two.\n"})
        writer.ingest(["docs"])
        assert reader.generation == "1"
        assert (reader.refresh(), reader.generation, reader.refresh()) == (True, "2", False)


def test_another_encoder_for_the_same_passages(here):
    with three(here) as collection:
        other = OtherEncoder()
        report = collection.reencode(other)
        assert (report.generation, report.added, len(other.seen)) == ("4", 2, 2 + 2)  # and a sample is checked
        assert (texts(collection), collection.encoder.spec.model) == (STATES[3], "fake-encoder-other")
        (hit, *_) = collection.retrieve("Text a two.", 1, mode="dense")
        assert (hit.passage.text, hit.score) == ("Text a two.", pytest.approx(1))
        assert collection.diff(3, 4).encoders == ("fake-encoder-fake", "fake-encoder-other")
        write_files(here / "docs", {"b.txt": "Text b three.\n"})
        collection.sync(["docs"])
        assert np.array_equal(
            collection.snapshot().vectors([collection.retrieve("three", 1)[0].passage.id])[0], -bag("Text b three.")
        )
        with pytest.raises(UsageError, match="has the encoder fake-encoder-other already"):
            collection.reencode(OtherEncoder())
        collection.swap(3)  # back, vectors and all
        collection._encoder = FakeEncoder()
        assert np.array_equal(
            collection.snapshot().vectors([collection.retrieve("two", 1)[0].passage.id])[0], bag("Text a two.")
        )
        assert collection.verify() == []


def test_another_encoder_that_fails_its_check_does_not_go_live(here):
    class Fickle(OtherEncoder):
        """Another vector each time."""

        turn = 0

        def encode_passages(self, passages, on_batch=None):
            self.turn += 1
            return np.roll(super().encode_passages(passages, on_batch), self.turn, axis=1)

    with three(here) as collection:
        with pytest.raises(CollectionDamagedError, match="2 of 2 passages do not find themselves"):
            collection.reencode(Fickle())
        assert (texts(collection), collection.generation) == (STATES[3], "3")
        assert collection.encoder.spec.model == "fake-encoder-fake"


def test_nothing_is_encoded_twice(here):
    encoder = FakeEncoder()
    write_files(here / "docs", {"copy.txt": "Text a one.\n"})
    with Collection.build(["docs"], "c", encoder=encoder) as collection:
        assert len(encoder.seen) == 2  # the copy has the vector of the first
        write_files(here / "docs", {"a.txt": "Text a two.\n"})
        collection.ingest(["docs"])
        write_files(here / "docs", {"a.txt": "Text a one.\n", "copy.txt": "Text a two.\n"})
        collection.ingest(["docs"])
        assert len(encoder.seen) == 3
        assert sorted(texts(collection)) == ["Text a one.", "Text a two.", "Text b one."]
        for passage in collection.passages():
            assert np.array_equal(collection.snapshot().vectors([passage.id])[0], bag(passage.text))


def test_half_precision_is_stored_in_half_the_bytes(here):
    with build(precision="float16") as collection:
        (path,) = (here / "c/vectors").iterdir()
        assert (path.suffix, path.stat().st_size) == (".f16", 2 * 32 * 2)
        assert collection.retrieve("Text a one.", 1, mode="dense")[0].score == pytest.approx(1, abs=2e-3)
    with pytest.raises(UsageError, match="precision 'int8': expected float32 or float16"):
        Collection.build(["docs"], "d", encoder=FakeEncoder(), precision="int8")


def test_writing_with_labels_is_refused(here):
    build().close()
    with Collection.open("c", encoder=FakeEncoder(), labels=["x"]) as collection:
        for change in (
            collection.log,
            collection.stats,
            collection.verify,
            lambda: collection.swap(1),
            lambda: collection.ingest(["docs"]),
        ):
            with pytest.raises(UsageError, match="access labels"):
                change()
