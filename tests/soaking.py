"""Readers in other processes while a writer swaps and syncs: no failed request, no mixed generation.

    python tests/soaking.py [--readers 8] [--seconds 300] [--every 2]

All files say which edition they are of, so an answer that mixes two shows. The writer flips between tagged editions,
and at every fifth turn syncs a new edition, encoded anew. Readers follow, and ask in every mode without a pause.
Printed are the questions answered, errors, mixed answers, and how long readers took to see a flip.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from bifolio import Retriever
from bifolio.collection import Collection
from fakes import FakeEncoder, write_files

FILES = 60
MODES = ("dense", "lexical", "hybrid")


def write_edition(folder, edition):
    write_files(folder, {f"{i}.txt": f"The valve {i} in edition{edition} of the manual.\n" for i in range(FILES)})


def editions(hits):
    return {next(word for word in hit.passage.text.split() if word.startswith("edition")) for hit in hits}


def read(path, seconds):
    """A reader process: what it saw, as JSON."""
    asked, errors, mixed, seen = 0, [], [], []
    with Collection.open(path, encoder=FakeEncoder(), follow=True) as collection:
        retriever = Retriever(collection)
        for mode in MODES:
            retriever.retrieve("which valve", 20, mode=mode)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        end = time.time() + seconds
        known = {}
        while time.time() < end:
            try:
                found = retriever.retrieval(f"which valve {asked % FILES}", 20, mode=MODES[asked % 3], candidates=20)
                of = editions(found.hits)
                if len(of) != 1 or len(found.hits) != 20 or known.setdefault(found.generation, of) != of:
                    mixed.append([found.generation, sorted(of), len(found.hits)])
                if not seen or seen[-1][1] != found.generation:
                    seen.append([time.time(), found.generation])
            except Exception as error:
                errors.append(repr(error))
            asked += 1
    told = {"asked": asked, "errors": errors, "mixed": mixed, "seen": seen, "until": end}
    sys.stdout.write(json.dumps(told) + "\n")


def soak(folder, readers, seconds, every):
    """Run it in an empty folder; returns the counts."""
    docs, path = folder / "docs", folder / "c"
    write_edition(docs, 0)
    with Collection.build([docs], path, encoder=FakeEncoder()) as collection:
        collection.tag("e0")
        write_edition(docs, 1)
        collection.sync([docs])
        collection.tag("e1")
        command = [sys.executable, __file__, "--reader", str(path), "--seconds", str(seconds)]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(readers)]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        flips, newest, turn, end = [], 1, 0, time.time() + seconds - every
        while time.time() < end:
            began = time.time()
            if turn % 5 == 4:
                newest += 1
                write_edition(docs, newest)
                collection.sync([docs])
                collection.tag(f"e{newest}")
            else:
                collection.swap(f"e{newest - 1}" if turn % 5 % 2 == 0 else f"e{newest}")
            flips.append([began, time.time(), collection.generation])
            turn += 1
            time.sleep(every)
        told = [json.loads(process.communicate(timeout=seconds + 60)[0]) for process in processes]
        assert [process.returncode for process in processes] == [0] * readers
        assert collection.verify() == []
    waits, missed = [], []
    for one in told:
        for began, at, generation in flips:
            if at > one["until"] - every:  # readers begin, and so end, one after the other
                continue
            later = [when for when, what in one["seen"] if what == generation and began <= when < at + every]
            waits.append(max(0.0, later[0] - at) if later else float("inf"))
            if not later:
                missed.append([round(at - flips[0][0], 1), generation])
    return {
        "readers": readers,
        "asked": sum(one["asked"] for one in told),
        "errors": [error for one in told for error in one["errors"]],
        "mixed": [answer for one in told for answer in one["mixed"]],
        "flips": len(flips),
        "to be seen": len(waits),
        "missed": missed,  # seconds into the run, and which generation
        "seen after, s": {q: round(sorted(waits)[int(q * (len(waits) - 1))], 3) for q in (0.5, 0.95, 1.0)},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--every", type=float, default=2)
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        return read(options.reader, options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        found = soak(Path(folder), options.readers, options.seconds, options.every)
    sys.stdout.write(json.dumps({**found, "errors": len(found["errors"]), "mixed": len(found["mixed"])}) + "\n")
    sys.exit(bool(found["errors"] or found["mixed"] or found["missed"]))


if __name__ == "__main__":
    main()
