"""What the benchmark scripts share: measuring, and the last line that says where a number came from."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Meter:
    """CPU and wall seconds, added up over several stretches."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.wall_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure what is inside, all threads of this process included."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu_s += time.process_time() - cpu
        self.wall_s += time.perf_counter() - wall

    def figures(self) -> dict[str, float]:
        """As the JSON lines have them."""
        return {"cpu_s": round(self.cpu_s, 3), "wall_s": round(self.wall_s, 3), "peak_mb": peak_mb()}


def peak_mb() -> float:
    """Peak resident memory of this process so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def say(line: dict[str, Any], as_json: bool) -> None:
    """One case: a JSON line, or the same for a person."""
    print(json.dumps(line) if as_json else "  ".join(f"{key}={value}" for key, value in line.items()), flush=True)


def provenance(as_json: bool) -> None:
    """The closing line: machine, versions, commit and command."""
    versions = {name: importlib.metadata.version(name) for name in ("bifolio", "torch", "transformers", "numpy")}
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}"
    command = " ".join(["python", str(Path(sys.argv[0])), *sys.argv[1:]])
    say({"machine": machine, "versions": versions, "commit": commit, "command": command}, as_json)
