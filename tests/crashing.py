"""Kill a writer anywhere, and look at what it left.

    python tests/crashing.py [--points 200] [--seed 1]

A writer process carries out one action on a copy of a collection and kills itself (SIGKILL) at its n-th call of a
function of bifolio. Afterwards the collection must be the one of before or the one of after the action, byte by byte in
order, and the same action, carried out again, must bring it to the one of after, without encoding again what had been
committed. ``tests/unit/test_collection_crash.py`` does this at a few points of each action; this script at as many as
wanted, at random, in every stage.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from bifolio.collection import Collection
from fakes import FakeEncoder, bag, write_files

ACTIONS = ("build", "ingest", "sync", "rm", "reencode", "swap", "compact", "import")
OLD = {f"old{i}.txt": f"Old text number {i} of the valve and pump{i}.\n" for i in range(6)}
NEW = {f"new{i}.txt": f"New text number {i} of the bridge and river{i}.\n" for i in range(6)}
QUESTION = "which valve and which bridge"


class OtherEncoder(FakeEncoder):
    """Another model: the opposite vectors, so that a mixture of two would show."""

    def __init__(self):
        super().__init__("other")

    def encode_questions(self, questions):
        return -super().encode_questions(questions)

    def encode_passages(self, passages, on_batch=None):
        return -super().encode_passages(passages, on_batch)


def encoder_of(collection):
    return OtherEncoder() if collection.snapshot().meta["encoder"]["model"].endswith("other") else FakeEncoder()


def prepare(folder, index="exact"):
    """A collection of three generations with a backup, and files that have changed since."""
    write_files(folder / "docs", OLD)
    with Collection.build([folder / "docs"], folder / "c", encoder=FakeEncoder(), index=index) as collection:
        write_files(folder / "docs", {"old0.txt": "Old text number 0 has changed.\n"})
        collection.ingest([folder / "docs"])
        collection.tag("second")
        (folder / "docs" / "old1.txt").unlink()
        collection.sync([folder / "docs"])
        collection.export(folder / "backup.tar")
    write_files(folder / "docs", {**NEW, "old2.txt": "Old text number 2 has changed.\n"})
    (folder / "docs" / "old3.txt").unlink()


def act(folder, action, encoder=None):
    """Carry out an action; returns the passages that were encoded."""
    if action == "build":
        encoder = FakeEncoder()
        if not Collection.exists(folder / "n"):
            Collection.build([folder / "docs"], folder / "n", encoder=encoder).close()
        return len(encoder.seen)
    if action == "import":
        from bifolio.backup import restore

        if not Collection.exists(folder / "i"):
            restore(folder / "backup.tar", folder / "i")
        return 0
    encoder = OtherEncoder() if action == "reencode" else FakeEncoder()
    with Collection.open(folder / "c") as collection:
        if action != "reencode":
            collection._encoder = encoder
        if action in ("ingest", "sync"):
            getattr(collection, action)([folder / "docs"])
        elif action == "rm":
            if any(file.source.endswith("old4.txt") for file in collection.files()):
                collection.remove(["*/old4.txt"])
        elif action == "reencode":
            if collection.snapshot().meta["encoder"]["fingerprint"] != encoder.spec.fingerprint:
                collection.reencode(encoder)
        elif action == "swap":
            collection.swap("second")
        elif action == "compact":
            collection.compact()
    return len(encoder.seen)


def place(action):
    return {"build": "n", "import": "i"}.get(action, "c")


def state(folder, action):
    """Everything that a reader sees; None where there is no collection."""
    path = folder / place(action)
    if not Collection.exists(path):
        return None
    with Collection.open(path) as collection:
        encoder = encoder_of(collection)
        collection._encoder = encoder
        sign = -1 if isinstance(encoder, OtherEncoder) else 1
        now = collection.snapshot()
        passages = sorted((p.id, p.text) for p in collection.passages())
        for passage, vector in zip(passages, now.vectors([name for name, _ in passages]), strict=True):
            assert (vector == sign * bag(passage[1])).all(), f"{passage} has another vector"
        dense = collection.retrieve(QUESTION, 50, mode="dense")
        lexical = collection.retrieve(QUESTION, 50, mode="lexical")
        assert collection.verify() == []
        return {
            "generation": collection.generation,
            "passages": passages,
            "dense": [(hit.passage.id, round(hit.score, 5)) for hit in dense],
            "lexical": sorted(hit.passage.id for hit in lexical),
            "files": sorted((file.source, file.status, file.passages) for file in collection.files()),
        }


def count_calls(until, stop):
    """Count calls of functions of bifolio in this thread, and do ``stop`` at the one of number ``until``."""
    package = str(Path(sys.modules["bifolio"].__file__).parent)
    calls = 0

    def profile(frame, event, _):
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(package):
            calls += 1
            if calls == until:
                stop()

    threading.setprofile(profile)
    sys.setprofile(profile)
    return lambda: calls


def child(folder, action, until):
    """What the writer process does; prints how many calls there were and passages were encoded."""
    calls = count_calls(until, lambda: os.kill(os.getpid(), signal.SIGKILL))
    encoded = act(Path(folder), action)
    sys.setprofile(None)
    sys.stdout.write(json.dumps({"calls": calls(), "encoded": encoded}))


def writer(folder, action, until=0):
    """Run a writer process; its exit status and what it printed."""
    command = [sys.executable, __file__, "--child", str(folder), action, str(until)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def copied(template, scratch):
    """The template where it always is, since a collection knows the absolute paths of its files."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(template, scratch, symlinks=True)
    return scratch


class Trial:
    """An action, with what it makes of the template and how many calls it takes."""

    def __init__(self, template, scratch, action):
        self.template, self.scratch, self.action = template, scratch, action
        folder = copied(template, scratch)
        self.before = state(folder, action)
        status, told = writer(folder, action)
        assert status == 0, told
        self.calls, self.encoded = told["calls"], told["encoded"]
        self.after = state(folder, action)

    def kill_at(self, until):
        """Kill the writer, check what it left, finish the work, and check again; returns which state it was."""
        folder = copied(self.template, self.scratch)
        status, told = writer(folder, self.action, until)
        assert status == -signal.SIGKILL, (status, told)
        left = state(folder, self.action)
        assert left in (self.before, self.after), f"{self.action} killed at {until} left a third state"
        encoded = act(folder, self.action)
        assert encoded <= self.encoded
        assert state(folder, self.action) == self.after, f"{self.action} killed at {until} cannot be finished"
        return "before" if left == self.before else "after"


def trials(folder):
    """A template in a folder, where its files stay, and a trial of every action."""
    scratch = folder / "work"
    prepare(scratch)
    template = folder / "template"
    shutil.copytree(scratch, template)
    return {action: Trial(template, scratch, action) for action in ACTIONS}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], options.child[1], int(options.child[2]))
        return
    drawn = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        made = trials(Path(scratch))
        outcomes = {action: {"calls": trial.calls, "before": 0, "after": 0} for action, trial in made.items()}
        for point in range(options.points):
            action = ACTIONS[point % len(ACTIONS)]
            outcome = made[action].kill_at(drawn.randint(1, made[action].calls - 1))
            outcomes[action][outcome] += 1
            sys.stderr.write(f"\r{point + 1} of {options.points}")
        sys.stdout.write(
            json.dumps({"points": options.points, "seed": options.seed, "failures": 0, "actions": outcomes}) + "\n"
        )


if __name__ == "__main__":
    main()
