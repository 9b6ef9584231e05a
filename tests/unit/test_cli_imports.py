"""The command line's options for what others made: data sets with vectors, compressed passages, pickled weights."""

import gzip
import json
import sys
import warnings

import pytest
import torch

from bifolio import cli, models
from bifolio.collection import Collection
from fakes import FakeEncoder
from unit.rag_checkpoints import to_bin, write_rag

pytest.importorskip("pyarrow", reason="comes with the [datasets] extra")

from unit.datasets_fakes import rows, save_to_disk, table


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BIFOLIO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("bifolio.collection.load_encoder", lambda *_, **__: FakeEncoder())

    def run(*arguments):
        """Exit code, the document on stdout, and stderr."""
        monkeypatch.setattr(sys, "argv", ["bifolio", *arguments, "--json"])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back afterwards
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return stop.value.code, json.loads(out) if out else None, err

    return run


def test_a_data_set_with_vectors(run, tmp_path):
    save_to_disk(tmp_path / "data", table(rows(5)))
    code, report, _ = run("ingest", "data", "-c", "c", "--vectors", "embeddings")
    assert (code, report["passages"], report["added"]) == (0, 5, 5)
    assert report["files"] == [{"path": "data/data-00000-of-00001.arrow", "status": "ok", "reason": "", "passages": 5}]
    save_to_disk(tmp_path / "more", table(rows(5, first=6)))
    assert run("ingest", "more", "-c", "c", "--vectors", "embeddings", "--as-passages")[1]["passages"] == 10
    code, document, _ = run("show", "c", "p7")
    assert (code, document["text"]) == (0, rows(1, first=7)["text"][0])
    assert run("search", "c", "river under the stone bridge", "-k", "2")[1]["hits"][0]["id"] in {"p2", "p7"}


def test_a_column_that_is_not_there(run, tmp_path):
    save_to_disk(tmp_path / "data", table(rows(5)))
    code, document, err = run("ingest", "data", "-c", "c", "--vectors", "vectors")
    assert (code, document) == (2, None)
    assert "no column 'vectors': its columns are id, title, text, embeddings" in err
    assert not Collection.exists("c")


def test_dpr_s_file_in_gzip(run, tmp_path):
    text = "id\ttext\ttitle\n" + "".join(f'{n}\t"Passage ""{n}"" of many."\t"T{n}"\n' for n in range(1, 31))
    (tmp_path / "psgs_w100.tsv.gz").write_bytes(gzip.compress(text.encode()))
    code, report, _ = run("ingest", "psgs_w100.tsv.gz", "-c", "c", "--as-passages")
    assert (code, report["documents"], report["passages"]) == (0, 30, 30)
    document = run("show", "c", "7")[1]
    assert (document["text"], document["place"]) == ('Passage "7" of many.', "psgs_w100.tsv.gz:8")
    (tmp_path / "cut.tsv.gz").write_bytes(gzip.compress(text.replace("\n", "\nx", 1).encode())[:-9])
    code, report, _ = run("ingest", "cut.tsv.gz", "-c", "c", "--as-passages", "--strict")
    (found,) = report["files"]
    assert (code, found["status"], report["passages"]) == (2, "failed", 30)
    assert found["reason"].startswith("damaged gzip, or cut short")


def test_a_pickle_is_converted_when_the_option_says_so(run, tmp_path):
    write_rag(tmp_path / "rag")
    weights = to_bin(tmp_path / "rag")
    code, document, err = run("models", "pull", "./rag")
    assert (code, document) == (2, None)
    assert "bifolio models pull --convert-bin ./rag" in err
    code, document, _ = run("models", "pull", "--convert-bin", "./rag", "./rag#generator")
    assert (code, document["models"][0]) == (0, {"id": "./rag", "path": "rag"})
    assert document["models"][1]["path"] == str(models.resolve("./rag#generator"))
    assert run("models", "path", "./rag#question_encoder")[1]["id"] == "./rag#question_encoder"
    assert [found["id"] for found in run("models", "list")[1]["models"]] == [
        "./rag#generator",
        "./rag#question_encoder",
    ]
    found = models.tensors.read_all([tmp_path / "rag/model.safetensors"])
    assert found.keys() == weights.keys()
    name = "rag.generator.final_logits_bias"
    assert b"".join(found[name].read()) == weights[name].to(torch.float32).numpy().tobytes()
