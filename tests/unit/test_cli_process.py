"""The command line as a process: pipes, locales, terminals, what is imported."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from bifolio.collection import Collection
from bifolio.write_lock import write_lock
from fakes import FakeEncoder, write_files

TESTS = Path(__file__).parents[1]
SCRIPT = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, {tests!r})
    import bifolio.collection, bifolio.loading
    from bifolio import cli
    from fakes import TEXTS, FakeEncoder, FakeGenerator

    bifolio.collection.load_encoder = lambda *_, **__: FakeEncoder(no_passage_logit=0.0)
    bifolio.loading.load_generator = lambda *_, **__: FakeGenerator(" ".join(TEXTS.values()), languages=("en",))
    cli.main()
    """
).format(tests=str(TESTS))
PLAIN = {
    key: value
    for key, value in os.environ.items()
    if key not in ("LANG", "LC_ALL", "PYTHONIOENCODING", "PYTHONUTF8", "FORCE_COLOR", "COLUMNS", "PYTHONWARNINGS")
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a collection ``c``: some texts, and one with letters that ASCII lacks."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "docs")
    write_files(tmp_path / "docs", {"ünï.md": "# Größe 🦉\n\nDas Öl ist heiß — sehr.\n"})
    Collection.build(["docs"], "c", encoder=FakeEncoder(no_passage_logit=0.0)).close()
    return tmp_path


def run(*arguments, **options):
    options = {"capture_output": True, "env": PLAIN | {"LC_ALL": "C.UTF-8"}, "timeout": 60, **options}
    return subprocess.run([sys.executable, "-c", SCRIPT, *arguments], check=False, **options)


def shell(line, **options):
    """A line of bash in which $BIFOLIO is the command; the exit code is that of the first part of the pipe."""
    environment = PLAIN | {"LC_ALL": "C.UTF-8", "SCRIPT": SCRIPT, "PYTHON": sys.executable, **options}
    bifolio = '"$PYTHON" -c "$SCRIPT"'
    command = f"{line.replace('$BIFOLIO', bifolio)}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", command], check=False, capture_output=True, env=environment, timeout=60)


@pytest.mark.parametrize("command", [[], ["ingest"], ["search"], ["ask"], ["show"], ["ls"], ["models"], ["doctor"]])
def test_help_loads_nothing_heavy(command):
    code = (
        "import sys\nfrom bifolio import cli\n"
        f"sys.argv = ['bifolio', *{command!r}, '--help']\n"
        "try:\n    cli.main()\nfinally:\n"
        "    heavy = {'torch', 'transformers', 'faiss', 'numpy', 'rich'}\n"
        "    print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("Usage: bifolio")
    assert done.stderr == "[]\n"


def test_what_needs_no_model_loads_none(here):
    code = SCRIPT.replace(
        "cli.main()", "try:\n    cli.main()\nfinally:\n    print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "ls", "c", "--json"], check=True, capture_output=True, text=True, timeout=60
    )
    assert len(json.loads(done.stdout)["documents"]) == 4
    assert done.stderr == "False\n"


def test_a_pipe_has_no_colours_no_progress_and_whole_lines(here):
    done = run("ingest", "docs", "-c", "d")
    assert (done.returncode, done.stderr) == (0, b"")
    for command in (["ls", "c"], ["ask", "c", "which valve"]):
        done = run(*command)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"\x1b" not in done.stdout
        assert done.stdout.decode().endswith("\n")


@pytest.mark.parametrize("arguments", ["search c valve -k 4", "ls c --json", "ls c", "--help", "ls --help"])
def test_a_reader_that_leaves_is_no_error(here, arguments):
    done = shell(f"(sleep 0.3; $BIFOLIO {arguments}) | true")
    assert (done.returncode, done.stderr) == (0, b"")
    if not arguments.startswith("search"):
        done = shell(f"$BIFOLIO {arguments} | head -n 1")
        assert (done.returncode, done.stderr, done.stdout.count(b"\n")) == (0, b"", 1)


def test_the_exit_code_survives_a_reader_that_leaves(here):
    assert shell("$BIFOLIO show c nobody | true").returncode == 1
    assert shell("$BIFOLIO ls nowhere | true").returncode == 2


def test_a_full_disk_under_the_output_is_told(here):
    for arguments in ("ls c", "ls c --json", "--help"):
        done = shell(f"$BIFOLIO {arguments} > /dev/full")
        assert done.returncode == 2
        assert done.stderr.startswith(b"error: ")
        assert b"No space left on device" in done.stderr
        assert done.stderr.count(b"\n") == 1


def test_closed_outputs_are_no_reason_to_fail(here):
    for closed in (">&-", "2>&-", ">&- 2>&-", "<&-"):
        for arguments in ("ls c", "ls c --json"):
            done = shell(f"$BIFOLIO {arguments} {closed}")
            assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("trouble", ["2>/dev/full", "2> >(true)", "2>&-"])
def test_trouble_with_stderr_changes_no_exit_code(here, trouble):
    slow = "" if "true" not in trouble else "sleep 0.3; "  # until nobody reads there
    for arguments, code in (
        ("ls c", 0),
        ("search c valve -k 50", 0),  # a warning
        ("show c nobody", 1),
        ("ls nowhere", 2),
        ("--nonsense", 2),
        ("", 2),
        ("ingest docs -c c --strict", 0),
    ):
        done = shell(f"(({slow}$BIFOLIO {arguments}) {trouble})")
        assert (done.returncode, done.stderr) == (code, b""), arguments
    done = shell(f"($BIFOLIO search c valve -k 50 --json {trouble})", PYTHONIOENCODING="ascii")
    assert (done.returncode, len(json.loads(done.stdout)["hits"])) == (0, 4)


def test_threads_that_wait_sleep(here):
    code = SCRIPT.replace("cli.main()", "try:\n    cli.main()\nfinally:\n    print(os.environ['OMP_WAIT_POLICY'])")
    code = "import os\n" + code
    for given, expected in ({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"):
        environment = {key: value for key, value in PLAIN.items() if key != "OMP_WAIT_POLICY"} | given
        command = [sys.executable, "-c", code, "show", "c", "nobody"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=60)
        assert done.stdout == f"{expected}\n"


LOCALES = [
    {"LC_ALL": "C"},
    {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"PYTHONIOENCODING": "cp1252:strict"},
]


@pytest.mark.parametrize("locale", LOCALES, ids=lambda v: ",".join(f"{key}={value}" for key, value in v.items()))
def test_a_charset_without_our_letters(here, locale):
    with Collection.open("c", encoder=FakeEncoder()) as collection:
        (owl,) = [hit.passage.id for hit in collection.retrieve("sehr", 9) if "sehr" in hit.passage.text]
    for command in (["ls", "c"], ["show", "c", owl]):
        done = run(*command, env=PLAIN | locale)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout
    done = run("show", "c", owl, "--json", env=PLAIN | locale)
    assert (done.returncode, done.stderr) == (0, b"")
    charset = locale.get("PYTHONIOENCODING", "utf-8").split(":")[0]
    assert json.loads(done.stdout.decode(charset))["text"] == "# Größe 🦉\n\nDas Öl ist heiß — sehr."


def test_bars_in_a_charset_without_blocks(here):
    done = run("ask", "c", "oil?", env=PLAIN | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"log p(y|x)" in done.stdout


def until(condition, seconds=30.0):
    """Wait until something is so; what it gave then."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"still not so after {seconds} s"
        time.sleep(0.05)
    return found


def test_watching_keeps_in_step_tells_what_fails_and_goes_on(here):
    """A file that changes, a writer in the way, a folder that goes and comes back; the end is by Ctrl-C."""
    script = SCRIPT.replace(
        "cli.main()",
        "import functools, bifolio.watching\n"
        "bifolio.watching.changes = functools.partial(bifolio.watching.changes, tick_ms=300, look=1.0)\n"
        "cli.main()",
    )
    command = [sys.executable, "-c", script, "sync", "docs", "-c", "c", "--watch", "--wait", "0"]
    with open("out", "wb") as out, open("err", "wb") as err:
        watching = subprocess.Popen(command, stdout=out, stderr=err, env=PLAIN | {"LC_ALL": "C.UTF-8"})
    try:

        def texts():
            with Collection.open("c", encoder=FakeEncoder()) as collection:
                return {passage.text for passage in collection.passages()}

        until(lambda: b"4 unchanged" in Path("out").read_bytes())
        write_files(here / "docs", {"new.txt": "The pump is new.\n"})
        until(lambda: "The pump is new." in texts())
        with write_lock(here / "c", "ingest"):
            write_files(here / "docs", {"new.txt": "The pump is old.\n"})
            until(lambda: b"error: " in Path("err").read_bytes())
            assert "The pump is new." in texts()
        until(lambda: "The pump is old." in texts())
        os.rename("docs", "away")
        until(lambda: b"no such file or folder: docs" in Path("err").read_bytes())
        assert "The pump is old." in texts()
        write_files(here / "docs", {"only.txt": "Another disk.\n"})
        until(lambda: texts() == {"Another disk."})
        time.sleep(1.5)  # looks that find nothing are not told
    finally:
        watching.send_signal(signal.SIGINT)
        code = watching.wait(30)
    errors = [line for line in Path("err").read_text().splitlines() if line]
    assert code == 130, errors
    assert [line.split(" ")[0] for line in errors] == ["error:", "error:", "interrupted:"], errors
    assert Path("out").read_text().count(" files: ") == 4


def test_bytes_that_are_no_text(here):
    for command in ([b"ask", b"c"], [b"search", b"c"]):
        done = run(*command, b"valve \xff\xfe")
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.decode() == (
            "error: the question is no text from character 7 on: expected UTF-8 (and a locale that uses it)\n"
        )
    done = run(b"show", b"c", b"\xff")
    assert (done.returncode, done.stdout) == (1, b"")
    done = run(b"ls", b"no\xffwhere")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    done = run(b"ingest", b"docs", b"-c", b"odd\xff", b"--json")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().endswith("odd\ufffd is no UTF-8: choose another name for the collection\n")
    assert done.stderr.count(b"\n") == 1
    assert not Path(os.fsdecode(b"odd\xff")).exists()


def test_an_unfamiliar_language_is_a_warning(here):
    done = run("ask", "c", "Welches Ventil ist das und warum?", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["question"] == "Welches Ventil ist das und warum?"
    assert done.stderr.decode() == (
        "warning: the question looks like German, and the generator fake-generator was made for en: expect poor "
        "answers, or choose another model\n"
    )


def on_terminal(*arguments):
    """Exit code, stdout and what a terminal on stderr gets to see."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=PLAIN | {"LC_ALL": "C.UTF-8", "TERM": "xterm"},
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end was closed
        while part := os.read(ours, 65536):
            seen += part
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    return process.returncode, out, seen.decode()


def test_progress_is_for_terminals(here):
    write_files(here / "many", {f"{i:03}.txt": f"Text {i}.\n" for i in range(60)})
    code, out, seen = on_terminal("ingest", "many", "-c", "m")
    assert code == 0
    assert "60/60" in seen
    assert "encoding passages" in seen
    assert "passages/s" in seen
    assert b"m: 60 documents, 60 passages" in out
    assert b"\x1b" not in out
    code, out, seen = on_terminal("ingest", "many", "-c", "n", "--json")
    assert (code, seen) == (0, "")
    assert json.loads(out)["passages"] == 60


def test_file_names_never_command_the_progress_bar(here):
    write_files(here / "evil", {"\x1b]0;owned\x07.txt": "Text.\n", "[bold]x[/].txt": "More.\n"})
    code, out, seen = on_terminal("ingest", "evil", "-c", "e")
    assert code == 0
    assert "owned" not in seen
    assert b"\x1b" not in out
