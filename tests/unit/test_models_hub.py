"""Pulling from a hub: a loopback server that answers what huggingface_hub asks for."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from bifolio import models
from bifolio.errors import MissingExtraError, ModelError
from bifolio.models import hub, store, wheels
from unit.models_fakes import LURES, MODEL, WEIGHTS, make_wheel, manifest, model_folder, pin

huggingface_hub = pytest.importorskip("huggingface_hub", reason="comes with the [models] extra")
constants = pytest.importorskip("huggingface_hub.constants")

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """What the server has and what it was asked for."""

    def __init__(self):
        self.name = "org/name"
        self.files = {**MODEL, **LURES, "README.md": b"# a model"}
        self.lfs_sha256 = hashlib.sha256(WEIGHTS).hexdigest()
        self.card = {"license": "mit", "language": ["en", "de"]}
        self.status = 200
        self.asked = []

    def lfs(self, path):
        return {"sha256": self.lfs_sha256, "size": len(self.files[path]), "pointerSize": 130, "oid": self.lfs_sha256}

    def info(self):
        siblings = [
            {"rfilename": path, "size": len(data), **({"lfs": self.lfs(path)} if path.endswith(".safetensors") else {})}
            for path, data in self.files.items()
        ]
        return {"id": self.name, "sha": COMMIT, "siblings": siblings, "cardData": self.card, "tags": []}

    def tree(self):
        return [
            {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for path, data in self.files.items()
        ]


def handler(fake):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            fake.asked.append(self.command + " " + urlsplit(self.path).path)

        def answer(self, body, status=200, **headers):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self):
            path = urlsplit(self.path).path
            if fake.status != 200:
                self.answer(b"{}", fake.status)
            elif path == f"/api/models/{fake.name}":
                self.answer(json.dumps(fake.info()).encode(), Content_Type="application/json")
            elif path.startswith(f"/api/models/{fake.name}/tree/"):
                self.answer(json.dumps(fake.tree()).encode(), Content_Type="application/json")
            elif path.startswith(f"/{fake.name}/resolve/{COMMIT}/"):
                data = fake.files[path.split("/", 5)[5]]
                self.answer(data, ETag=f'"{hashlib.sha1(data).hexdigest()}"', X_Repo_Commit=COMMIT)
            else:
                self.answer(b"{}", 404)

        do_HEAD = do_GET

    return Handler


@pytest.fixture
def online(tmp_path, monkeypatch):
    """The hub is allowed, and its library keeps to a folder of the test."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    # The library reads the variable when it is imported, and the tests' conftest has set it.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("BIFOLIO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def fake_hub(online, monkeypatch):
    fake = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(fake))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()


def entries(home):
    return sorted(path.name for path in (home / "models").iterdir() if not path.name.endswith(".lock"))


def test_settings_and_safetensors_are_fetched_and_nothing_else(online, fake_hub, capfd):
    reports = []
    folder = models.pull("org/name", on_progress=reports.append)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {*MODEL, store.MANIFEST}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    record = models.verify("org/name")
    assert (record.origin, record.revision, record.license) == ("hub", COMMIT, "mit")
    assert models.languages("org/name") == ("en", "de")
    assert manifest(folder)["source_sha256"] == hashlib.sha256(WEIGHTS).hexdigest()
    assert [line for line in fake_hub.asked if any(lure in line for lure in LURES)] == []
    total = sum(len(data) for data in MODEL.values())
    assert [(r.done, r.total) for r in reports if r.stage == "download" and r.done] == [(total, total)]
    assert entries(online) == ["org--name"]
    assert capfd.readouterr() == ("", "")


def test_resolve_asks_nobody(online, fake_hub):
    models.pull("org/name")
    fake_hub.asked.clear()
    assert models.resolve("org/name") == models.pull("org/name")
    assert fake_hub.asked == []


def test_a_repository_with_pickles_only_is_refused_before_the_download(online, fake_hub):
    del fake_hub.files["model.safetensors"]
    with pytest.raises(ModelError, match="org/name has no safetensors on the hub"):
        models.pull("org/name")
    assert [line for line in fake_hub.asked if "resolve" in line] == []
    assert entries(online) == []


def test_bytes_other_than_the_hub_states_are_refused(online, fake_hub):
    fake_hub.lfs_sha256 = "0" * 64
    with pytest.raises(ModelError, match=f"model.safetensors of org/name came with sha256 .*, expected {'0' * 64}"):
        models.pull("org/name")
    assert entries(online) == []


@pytest.mark.parametrize(
    ("status", "words"),
    [(404, "has no model org/name"), (401, r"HF_TOKEN does not open it \(HTTP 401\)"), (503, "answered HTTP 503")],
)
def test_what_the_hub_refuses(online, fake_hub, status, words):
    fake_hub.status = status
    with pytest.raises(ModelError, match=words):
        models.pull("org/name")
    assert entries(online) == []


def test_a_hub_that_does_not_have_a_default_model_leads_to_its_wheel(online, fake_hub, monkeypatch, tmp_path):
    monkeypatch.setattr(wheels, "run_pip_download", lambda requirement, folder, on_wait: make_wheel(folder))
    with pytest.raises(
        ModelError, match="the hub has no model .*, and its wheel cannot be used: .* not the one that was"
    ):
        models.pull(models.DEFAULT_ENCODER)
    pin(monkeypatch, models.DEFAULT_ENCODER, make_wheel(tmp_path))
    models.pull(models.DEFAULT_ENCODER)
    assert models.record(models.DEFAULT_ENCODER).origin == "wheel"


def test_a_default_model_on_the_hub_has_the_weights_that_are_known(online, fake_hub, monkeypatch, tmp_path):
    fake_hub.name = models.DEFAULT_ENCODER
    known = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    with pytest.raises(ModelError, match=f"on the hub, revision {COMMIT}, .* has sha256 .*, expected .* with {known}"):
        models.pull(models.DEFAULT_ENCODER)  # no wheel either: what the hub sent is wrong, not missing
    assert entries(online) == []
    pin(monkeypatch, models.DEFAULT_ENCODER, make_wheel(tmp_path))
    models.pull(models.DEFAULT_ENCODER)
    record = models.record(models.DEFAULT_ENCODER)
    assert (record.origin, record.revision, record.source_file) == ("hub", COMMIT, "model.safetensors")
    del fake_hub.files["model.safetensors"]
    fake_hub.files["other.safetensors"] = WEIGHTS
    with pytest.raises(ModelError, match="model.safetensors has sha256 none"):
        models.pull(models.DEFAULT_ENCODER, force=True)
    assert models.verify(models.DEFAULT_ENCODER) == record


def test_the_generator_on_the_hub_is_taken_at_the_hub_s_word(online, fake_hub):
    pytest.importorskip("gguf", reason="comes with the [models] extra")
    fake_hub.name = models.DEFAULT_GENERATOR
    models.pull(models.DEFAULT_GENERATOR)  # its wheel's hash is that of other, quantised weights
    record = models.record(models.DEFAULT_GENERATOR)
    assert (record.origin, record.source_file) == ("hub", "model.safetensors")


def test_a_hub_that_does_not_have_it_and_a_folder_of_that_name(online, fake_hub, tmp_path):
    model_folder(tmp_path / "other" / "name", MODEL)
    with pytest.raises(
        ModelError, match=r"has no model other/name.*for the folder of that name here, write \./other/name"
    ):
        models.pull("other/name")
    assert entries(online) == []


def test_a_download_that_breaks_off_leaves_nothing(online, fake_hub, monkeypatch):
    def broken(*args, **kwargs):
        raise ConnectionResetError("gone")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    with pytest.raises(
        hub.HubUnavailableError, match=r"cannot be reached to fetch org/name \(ConnectionResetError: gone\)"
    ):
        models.pull("org/name")
    assert entries(online) == []


@pytest.mark.timeout(60)  # it gives up; it does not hang
def test_nobody_listens(online, monkeypatch):
    with socket.socket() as taken:  # bound, not listening: a connection is refused
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(hub.HubUnavailableError, match="cannot be reached to fetch org/name"):
            models.pull("org/name")
    assert entries(online) == []


@pytest.mark.timeout(60)
def test_somebody_listens_and_never_answers(online, monkeypatch):
    monkeypatch.setattr(hub, "_CONNECT_SECONDS", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(hub.HubUnavailableError, match="cannot be reached to fetch org/name"):
            models.pull("org/name")
    assert entries(online) == []


def test_without_the_extra(online, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bifolio\[models\]'"):
        models.pull("org/name")
