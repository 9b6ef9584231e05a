"""Many threads and one collection: whoever reads sees one generation, and is not kept waiting by who writes."""

import threading

import pytest

from bifolio.errors import BifolioError, CollectionError
from bifolio.retriever import Retriever
from fakes import TEXTS, FakeEncoder, write_files
from unit.test_collection import INDEXES, answers, build


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "docs")
    return tmp_path


@pytest.mark.parametrize("index", INDEXES[:2])
def test_readers_in_threads_see_one_generation_at_a_time(here, index):
    """Each generation has its own number in every text, so that a mixture of two would show."""

    def write(turn):
        write_files(here / "docs", {f"{name}.txt": f"Text {name} of turn{turn}.\n" for name in "abcd"})

    for name in TEXTS:
        (here / "docs" / name).unlink()
    write(0)
    wrong, seen, done = [], set(), threading.Event()
    with build(index=index) as collection:

        def read():
            retriever = Retriever(collection)
            while True:
                last = done.is_set()
                try:
                    found = retriever.retrieval("text of the turn", 3, collapse=False)
                    turns = {hit.passage.text.split()[-1] for hit in found.hits}
                    now = collection.snapshot()
                    whole = [(p.id, p.text) for p in now.passages()]
                    same = [now.passage(name).text for name, _ in whole] == [text for _, text in whole]
                    turns_now = {text.split()[-1] for _, text in whole}
                except BifolioError as error:
                    wrong.append(repr(error))
                    return
                if turns != {f"turn{int(found.generation) - 1}."} or turns_now != {f"turn{int(now.generation) - 1}."}:
                    wrong.append((found.generation, turns, now.generation, turns_now))
                if not same or len(found.hits) != 3 or len(whole) != 4:
                    wrong.append((same, len(found.hits), len(whole)))
                seen.add(found.generation)
                if last:
                    return

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for turn in range(1, 21):
            write(turn)
            collection.ingest(["docs"])
        done.set()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert "21" in seen  # every thread's last look came after the last ingest
        assert (collection.generation, len(collection)) == ("21", 4)


def test_readers_are_not_blocked_by_an_ingest(here):
    with build() as collection:
        before = answers(collection)
        first = next(iter(collection.passages()))
        found = {}

        def told(step):
            def read():
                found[step.stage, step.done] = answers(collection), collection.generation, len(collection)

            thread = threading.Thread(target=read)
            thread.start()
            thread.join(60)
            assert not thread.is_alive()

        write_files(here / "docs", {"cat.txt": "Which valve has closed?\n", "new.txt": "New.\n"})
        passages = collection.passages()
        assert next(passages) == first
        collection.ingest(["docs"], on_progress=told)
        indexed = [("index", n) for n in (2,)]
        assert sorted(found) == [*(("encode", n) for n in range(3)), *indexed, *(("read", n) for n in range(5))]
        assert all(seen == (before, "1", 3) for seen in found.values())
        assert [p.source for p in passages] == ["docs/pump.md", "docs/river.txt"]  # as they were when it began
        assert (collection.generation, len(collection)) == ("2", 4)


def test_two_threads_ingest_one_after_the_other(here):
    write_files(here / "x", {"x.txt": "Text of x.\n"})
    write_files(here / "y", {"y.txt": "Text of y.\n"})
    wrong = []
    with build(encoder=FakeEncoder(delay=0.02)) as collection:

        def add(name):
            try:
                collection.ingest([name])
            except BifolioError as error:
                wrong.append(error)

        threads = [threading.Thread(target=add, args=[name]) for name in "xy"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (wrong, collection.generation, len(collection)) == ([], "3", 5)


def test_a_closed_collection_says_so(here):
    collection = build()
    collection.close()
    with pytest.raises(CollectionError, match="was closed: open it again"):
        collection.files()
