"""Every command in this process: documents, exit codes, and errors of one line. Processes are in test_cli_process.

Over 400 lines, so that the fixtures that run a command stay with everything that uses them.
"""

import json
import os
import re
import sqlite3
import sys
import warnings
from pathlib import Path

import pytest

import bifolio
from bifolio import cli, loading, models, seals
from bifolio.collection import Collection
from bifolio.retriever import Retriever
from fakes import TEXTS, FakeEncoder, FakeGenerator, write_files
from unit.test_answer import check_ask_document
from unit.wrong_usage import WRONG_USAGE

VOCABULARY = " ".join(TEXTS.values())
REAL = {"load_encoder": loading.load_encoder, "load_generator": loading.load_generator}
QUESTION = "which valve has closed"


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    """What was loaded; models are the fakes."""
    found = {"encoder": FakeEncoder(no_passage_logit=2.0), "generator": FakeGenerator(VOCABULARY)}
    asked = []

    def loader(kind):
        def load(model="", *, device="auto", dtype="auto", **_):
            asked.append((kind, device, dtype))
            return found[kind]

        return load

    monkeypatch.setattr("bifolio.collection.load_encoder", loader("encoder"))
    monkeypatch.setattr("bifolio.loading.load_generator", loader("generator"))
    monkeypatch.setattr("bifolio.rag.load_generator", loader("generator"))
    return found | {"asked": asked}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "docs")
    return tmp_path


@pytest.fixture
def run(here, monkeypatch, capsys):
    def run(*arguments):
        """Exit code, stdout and stderr of one command."""
        monkeypatch.setattr(sys, "argv", ["bifolio", *arguments])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back afterwards
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return stop.value.code, out, err

    return run


@pytest.fixture
def built(run):
    """The runner, with a collection ``c`` in its folder."""
    assert run("ingest", "docs", "-c", "c")[0] == 0
    return run


def document(result, code=0):
    """The one JSON document on stdout; nothing is on stderr."""
    assert (result[0], result[2]) == (code, "")
    assert result[1].count("\n") == 1
    return json.loads(result[1])


def error(result, code=2):
    """The one line on stderr; nothing is on stdout."""
    assert (result[0], result[1]) == (code, "")
    assert re.fullmatch(r"error: .+\n", result[2])
    return result[2]


# ---- documents ----


def test_ingest(run):
    made = document(run("ingest", "docs", "-c", "c", "--json"))
    assert sorted(made) == ["added", "collection", "documents", "files", "generation", "notes", "passages", "seconds"]
    assert (made["collection"], made["generation"], made["documents"], made["passages"]) == ("c", "1", 3, 3)
    assert made["files"] == [
        {"path": f"docs/{name}", "status": "ok", "reason": "", "passages": 1} for name in sorted(TEXTS)
    ]
    write_files(Path("docs"), {"bad.bin": bytes(range(256)), "b.jsonl": "{"})
    made = document(run("ingest", "docs", "-c", "c", "--json"))
    assert {file["path"]: file["status"] for file in made["files"]} == {
        "docs/b.jsonl": "failed",
        "docs/bad.bin": "skipped",
        **{f"docs/{name}": "unchanged" for name in TEXTS},
    }
    assert made["added"] == 0


def test_strict(run, here):
    write_files(here / "docs", {"b.jsonl": "{"})
    code, out, err = run("ingest", "docs", "-c", "c", "--strict", "--json")
    assert (code, err) == (2, "error: 1 of 4 files failed (--strict)\n")
    assert json.loads(out)["passages"] == 3
    (here / "docs/b.jsonl").unlink()
    write_files(here / "docs", {"skipped.bin": bytes(range(256))})
    assert run("ingest", "docs", "-c", "c", "--strict")[0] == 0  # skipped is not failed


def test_search(built):
    found = document(built("search", "c", QUESTION, "-k", "2", "--json"))
    assert sorted(found) == ["generation", "hits", "question", "seconds"]
    assert (found["question"], found["generation"], len(found["hits"])) == (QUESTION, "1", 2)
    for hit in found["hits"]:
        assert sorted(hit) == sorted("id source place span heading text score log_prior duplicates".split())
    best = found["hits"][0]
    assert (best["source"], best["place"], best["span"]) == ("docs/pump.md", "docs/pump.md:1-7", [0, 95])
    assert (best["heading"], best["text"]) == ("Pump", TEXTS["pump.md"].strip())


def test_show_and_ls(built):
    (hit,) = document(built("search", "c", QUESTION, "-k", "1", "--json"))["hits"]
    shown = document(built("show", "c", hit["id"], "--json"))
    assert sorted(shown) == sorted("id source place span heading text before after metadata".split())
    assert {key: shown[key] for key in ("id", "source", "place", "span", "text")} == {
        key: hit[key] for key in ("id", "source", "place", "span", "text")
    }
    assert (shown["before"], shown["after"]) == ("", "\n")
    files = document(built("ls", "c", "--json"))
    assert list(files) == ["documents"]
    assert [(f["source"], f["passages"], f["status"]) for f in files["documents"]] == [
        (f"docs/{name}", 1, "ok") for name in sorted(TEXTS)
    ]
    for file in files["documents"]:
        assert sorted(file) == sorted("source passages documents hash added status reason".split())
        assert re.fullmatch("[0-9a-f]{64}", file["hash"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", file["added"])


@pytest.mark.parametrize("scheme", ["token", "sentence", "sequence"])
def test_ask(built, scheme):
    found = document(built("ask", "c", QUESTION, "-k", "2", "--scheme", scheme, "--max-tokens", "40", "--json"))
    check_ask_document(found)
    assert (found["question"], found["scheme"], found["decoder"]) == (QUESTION, scheme, "exact")
    assert len(found["passages"]) == 2
    assert found["no_passage"]["posterior"] + found["support"] == pytest.approx(1)
    assert found["model"] == {"generator": "fake-generator", "encoder": "fake-encoder-fake", "adapter": ""}
    assert found["generation"] == "1"


def test_ask_copies_the_passage_and_cites_it(built):
    found = document(built("ask", "c", "the river under the bridge", "--without-no-passage", "-k", "3", "--json"))
    assert found["answer"] == TEXTS["river.txt"].strip()
    assert found["marked"] == "A river runs under the stone bridge [1]."
    (first, *_) = found["passages"]
    assert (first["source"], first["marker"], first["posterior"] > 0.999) == ("docs/river.txt", 1, True)
    assert [found[key] for key in ("no_passage", "support", "evidence")] == [None, None, None]


def test_ask_with_options(built, loaded):
    ask = (
        "ask",
        "c",
        QUESTION,
        "--json",
        "--style",
        "short",
        "--max-tokens",
        "5",
        "--device",
        "cpu",
        "--dtype",
        "float32",
    )
    sampled = [document(built(*ask, "--temperature", "2", "--top-p", "0.9", "--seed", "3"))["answer"] for _ in range(2)]
    assert sampled[0] == sampled[1]
    assert loaded["generator"].reads[-1][2:] == ("short", 5, True)
    assert sorted(loaded["asked"][-2:]) == [("encoder", "cpu", "float32"), ("generator", "cpu", "float32")]
    # The same words through the library: the options arrive as they were given.
    beam = document(built(*ask, "--beam", "3", "--length-penalty", "1"))
    with Collection.open("c", encoder=loaded["encoder"]) as collection:
        rag = bifolio.Rag(collection, generator=loaded["generator"])
        wide = rag.ask(QUESTION, style="short", max_tokens=5, beam=3, length_penalty=1.0)
        greedy = rag.ask(QUESTION, style="short", max_tokens=5)
    assert (beam["answer"], beam["log_prob"]) == (wide.text, pytest.approx(wide.log_prob))
    assert (wide.text, wide.log_prob) != (greedy.text, greedy.log_prob)


def test_more_than_there_is_is_a_warning(built):
    for command in ("search", "ask"):
        code, out, err = built(command, "c", QUESTION, "-k", "50", "--json")
        assert (code, err) == (0, "warning: k is 50 and the collection has 3 passages: all are taken\n")
        assert len(json.loads(out)["hits" if command == "search" else "passages"]) == 3


def test_models_and_doctor(run, here, monkeypatch):
    monkeypatch.setenv("BIFOLIO_HOME", str(here / "home"))
    assert document(run("models", "list", "--json")) == {"cache": str(models.cache_dir()), "models": []}
    assert "bifolio models pull" in run("models", "list")[1]
    assert "is not in the cache" in error(run("models", "path", "org/name"), 3)
    facts = document(run("doctor", "--json"))
    assert sorted(facts) == ["bifolio", "machine", "models", "packages"]
    assert all(isinstance(values, dict) and values for values in facts.values())
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert facts["bifolio"]["version"] in out


# ---- for people ----


def test_what_people_see(built):
    code, out, err = built("ask", "c", "the river under the bridge", "--without-no-passage", "-k", "3")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "A river runs under the stone bridge [1]."
    assert re.search(r"^\[1\] █{12} 1\.00  docs/river\.txt:1  [0-9a-f]{16}-1$", out, re.M)
    assert "log p(y|x)" in lines[-1]
    assert re.search(r"retrieve \d+\.\d\d s, prefill \d+\.\d\d s, decode \d+\.\d\d s", lines[-1])

    code, out, err = built("search", "c", QUESTION)
    assert (code, len(re.findall(r"^ \d\. ", out, re.M))) == (0, 3)
    code, out, _ = built("ls", "c")
    assert (code, out.splitlines()[-1]) == (0, "3 files, 3 passages")
    code, out, err = built("ingest", "docs", "-c", "c")
    assert (code, err) == (0, "")
    assert "c: 3 documents, 3 passages" in out
    assert "3 files: 3 unchanged" in out


def test_nothing_is_wrapped_into_a_pipe(run, here):
    long = "x" * 200
    write_files(here / "docs", {f"{long}/{long}.txt": "A long name. " * 30})
    run("ingest", "docs", "-c", "c")
    assert f"docs/{long}/{long}.txt" in run("ls", "c")[1]
    assert f"docs/{long}/{long}.txt:1" in run("search", "c", "long name")[1]


def test_nothing_commands_the_terminal(run, here):
    evil = "\x1b]0;owned\x07\x1b[31m\x9b2J\x08\x00\u202e"
    names = [f"{evil[:1]}[31mred.md", "fake\nline.txt", "title.jsonl"]
    write_files(
        here / "docs",
        {
            names[0]: f"# Head {evil}\n\nRed {evil} text.\n",
            names[1]: "Another text.\n",
            names[2]: json.dumps({"id": f"id{evil}", "title": f"T{evil}", "text": f"Title {evil} text.", "m": evil})
            + "\n",
            "\x1b[1mbad.jsonl": "{",
        },
    )
    seen = []
    for command in (
        ("ingest", "docs", "-c", "c"),
        ("ls", "c"),
        ("search", "c", f"red {evil} text"),
        ("ask", "c", f"red{evil}?"),
    ):
        code, out, err = run(*command)
        assert code == 0, err
        seen.append(out + err)
    with Collection.open("c", encoder=FakeEncoder(no_passage_logit=2.0)) as collection:
        ids = [hit.passage.id for hit in collection.retrieve("text", 99)]
    seen += ["".join(run("show", "c", name)[1:]) for name in ids]
    seen += [run("show", "c", evil)[2], run("ls", evil)[2], run("ingest", f"no{evil}", "-c", "c")[2]]
    for text in seen:
        assert not set(text) & set("\x1b\x07\x9b\x08\x00\u202e")
    assert not any(line.startswith("line.txt") for text in seen for line in text.splitlines())


# ---- what goes wrong ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    WRONG_USAGE,
    ids=lambda value: (
        " ".join(value)[:60].encode("ascii", "backslashreplace").decode() if isinstance(value, list) else ""
    ),
)
def test_wrong_usage_is_one_line_and_2(built, here, arguments, message):
    (here / "empty").mkdir()
    write_files(here / "bin", {"x.bin": bytes(range(256)) * 4})
    assert message in error(built(*arguments))
    assert sorted(os.listdir(here)) == ["bin", "c", "docs", "empty"]


def test_no_passage_of_that_id_is_1(built):
    assert "no passage 'nobody' in c" in error(built("show", "c", "nobody"), 1)
    assert r"no passage '\udcff'" in error(built("show", "c", "\udcff"), 1)


def test_a_damaged_collection_is_2(built, here):
    (here / "c/catalogue.sqlite").write_bytes(b"garbage" * 1000)
    for command in (
        ["search", "c", "q"],
        ["ask", "c", "q"],
        ["show", "c", "q"],
        ["ls", "c"],
        ["ingest", "docs", "-c", "c"],
    ):
        assert "is damaged: file is not a database" in error(built(*command))


def test_another_encoder_is_2(built, loaded):
    loaded_before = FakeEncoder("b")
    loaded["encoder"].spec = loaded_before.spec
    write_files(Path("docs"), {"cat.txt": "Another cat.\n"})
    for command in (["search", "c", "q"], ["ask", "c", "q"], ["ingest", "docs", "-c", "c"]):
        message = error(built(*command))
        assert "sha256:fake" in message
        assert "sha256:b" in message


@pytest.mark.parametrize("command", [["search", "c", "q"], ["ask", "c", "q"], ["ingest", "docs", "-c", "d"]])
def test_a_missing_model_is_3_and_names_the_command(built, here, monkeypatch, command):
    monkeypatch.setenv("BIFOLIO_HOME", str(here / "home"))
    for name in ("collection.load_encoder", "loading.load_generator", "rag.load_generator"):
        monkeypatch.setattr(f"bifolio.{name}", REAL[name.split(".")[1]])
    connection = sqlite3.connect("c/catalogue.sqlite")
    seals.register(connection)
    connection.execute("UPDATE encoders SET spec = replace(spec, 'fake-encoder-fake', 'org/model')")
    connection.commit()
    connection.close()
    assert "bifolio models pull" in error(built(*command), 3)
    assert sorted(os.listdir(here)) == ["c", "docs"]


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (OSError(28, "No space left on device"), 2, "error: [Errno 28] No space left on device\n"),
        (MemoryError(), 2, "error: MemoryError:  (this is a fault of bifolio; BIFOLIO_TRACEBACK=1 shows where)\n"),
        (ZeroDivisionError("a\nb\x1b"), 2, None),
    ],
    ids=["interrupt", "disk", "memory", "bug"],
)
def test_whatever_happens_is_one_line(built, monkeypatch, raised, code, line):
    def retrieve(*_):
        raise raised

    monkeypatch.setattr(Retriever, "retrieval", retrieve)
    found, out, err = built("search", "c", "q")
    assert (found, out) == (code, "")
    assert len(err.strip().splitlines()) == 1
    assert "\x1b" not in err
    if line is not None:
        assert err.lstrip("\n") == " ".join(line.split()) + "\n"


@pytest.mark.parametrize(
    ("target", "arguments"),
    [("collection.run", ["ingest", "docs", "-c", "c"]), ("models.pull", ["models", "pull", "o/m"])],
)
def test_what_becomes_of_an_interruption_is_said(built, monkeypatch, target, arguments):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"bifolio.{target}", stop)
    code, out, err = built(*arguments)
    kept = "the collection is as it was; what was done is kept, and the same command goes on with it"
    said = kept if arguments[0] == "ingest" else "what was being written was undone"
    assert (code, out, err.lstrip("\n")) == (130, "", f"interrupted: {said}\n")


def test_an_interrupted_answer_undoes_nothing(built, loaded, monkeypatch):
    def read(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(loaded["generator"], "read", read)
    code, out, err = built("ask", "c", QUESTION)
    assert (code, out, err.lstrip("\n")) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    "arguments", [["search", "c", ""], ["search", "c", "q", "-k", "0"], ["ask", "c", ""], ["ask", "c", "q", "-k", "0"]]
)
def test_a_wrong_question_loads_no_model(built, loaded, arguments):
    loaded["asked"].clear()
    error(built(*arguments))
    assert loaded["asked"] == []


def test_an_ingest_without_news_loads_no_model(built, loaded, here):
    loaded["asked"].clear()
    write_files(here / "docs", {"picture.png": bytes(range(256)) * 4})
    made = document(built("ingest", "docs", "-c", "c", "--json"))
    assert sorted(file["status"] for file in made["files"]) == ["skipped", *["unchanged"] * 3]
    assert loaded["asked"] == []


def test_threads_without_torch_name_the_command(built, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert error(built("search", "c", "q", "--threads", "2")) == (
        "error: --threads needs torch, which is not installed. Run: pip install 'bifolio[models]'\n"
    )


def test_the_doctor_survives_a_broken_torch(run, here, monkeypatch):
    write_files(here / "broken", {"torch.py": "raise OSError('libtorch.so: cannot open shared object file')\n"})
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(here / "broken")
    machine = document(run("doctor", "--json"))["machine"]
    assert machine["torch"] == "cannot be used: OSError: libtorch.so: cannot open shared object file"
    assert machine["cpus"] == os.cpu_count()


def test_a_traceback_can_be_asked_for(built, monkeypatch):
    def retrieve(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(Retriever, "retrieval", retrieve)
    monkeypatch.setenv("BIFOLIO_TRACEBACK", "1")
    monkeypatch.setattr(sys, "argv", ["bifolio", "search", "c", "q"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


@pytest.mark.parametrize("command", [[], ["models"]])
def test_without_a_command_there_is_help(run, command):
    code, out, err = run(*command)
    assert (code, out) == (2, "")
    assert err == run(*command, "--help")[1]


def test_help_and_version(run):
    for command in ([], ["ingest"], ["search"], ["ask"], ["show"], ["ls"], ["models"], ["models", "pull"], ["doctor"]):
        code, out, err = run(*command, "--help")
        assert (code, err) == (0, "")
        assert out.startswith("Usage: ")
    assert run("--version")[:2] == (0, f"bifolio, version {bifolio.__version__}\n")
