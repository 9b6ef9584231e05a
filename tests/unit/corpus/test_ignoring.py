"""Which files are meant: .gitignore as git reads it, and globs."""

import shutil
import subprocess

import pytest

from bifolio.corpus.ignoring import Ignoring
from bifolio.errors import UsageError

FILES = [
    "a.md", "a.txt", "notes.log", "keep.log", "old/a.md", "old/deep/b.md", "docs/a.md", "docs/draft-1.md",
    "docs/x/draft-2.md", "docs/build/out.md", "build/out.md", "build/keep.md", "src/build.md", "weird [x].md",
    "weird x.md", "#hash.md", "!bang.md", "trail .md", "sub/only.md", "sub/inner/only.md", "sub/inner/other.md",
    "deep/er/est/c.md", "Ünï/ö.md",
]  # fmt: skip
RULES = {
    "suffix": {".gitignore": "*.log\n"},
    "negation": {".gitignore": "*.log\n!keep.log\n"},
    "folder": {".gitignore": "build/\n"},
    "anchored": {".gitignore": "/build/\n"},
    "what is in a folder that is shut cannot come back": {".gitignore": "build/\n!build/keep.md\n"},
    "what is in an open one can": {".gitignore": "build/*\n!build/keep.md\n"},
    "two stars": {".gitignore": "docs/**/draft-*\n"},
    "two stars first": {".gitignore": "**/only.md\n"},
    "two stars last": {".gitignore": "sub/**\n"},
    "middle slash": {".gitignore": "docs/build\n"},
    "classes and escapes": {".gitignore": "weird \\[x\\].md\n\\#hash.md\n\\!bang.md\ntrail\\ .md\n"},
    "question mark": {".gitignore": "?.txt\n"},  # of a letter beyond ASCII git sees bytes, we the letter
    "comments and blanks": {".gitignore": "# *.md\n\n   \na.txt\n"},
    "nested": {".gitignore": "*.md\n", "sub/.gitignore": "!only.md\n", "sub/inner/.gitignore": "only.md\n"},
    "nested anchored": {"sub/.gitignore": "/only.md\n", "docs/.gitignore": "build/\n"},
    "all but": {".gitignore": "*\n!*/\n!*.txt\n"},
    "all": {".gitignore": "*\n"},
    "letters": {".gitignore": "Ünï/\n"},
    "crlf": {".gitignore": "*.log\r\nold/\r\n"},
}


@pytest.fixture
def tree(tmp_path):
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


def left_out(root, **options):
    ignoring = Ignoring(root, **options)
    return {name for name in FILES if ignoring.leaves_out(root / name)}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is what it is compared with")
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
def test_gitignore_is_read_as_git_reads_it(tree, rules):
    for name, text in rules.items():
        (tree / name).write_bytes(text.encode())
    git = ["git", "-C", str(tree), "-c", "core.quotePath=false", "-c", "core.excludesFile="]
    subprocess.run([*git, "init", "-q"], check=True, capture_output=True)
    done = subprocess.run(
        [*git, "check-ignore", "--stdin", "-z"],
        input="\0".join(FILES).encode(), capture_output=True, check=False,
    )  # fmt: skip
    ignored = {name for name in done.stdout.decode().split("\0") if name}
    assert left_out(tree) == ignored
    assert left_out(tree, gitignore=False) == set()


def test_include_and_exclude(tree):
    (tree / ".gitignore").write_text("*.txt\n")
    assert left_out(tree, include=["*.txt", "*.log"], gitignore=False) == {
        name for name in FILES if not name.endswith((".txt", ".log"))
    }
    assert left_out(tree, include=["*.txt"]) == set(FILES)  # .gitignore counts as well
    assert left_out(tree, exclude=["old/"], gitignore=False) == {"old/a.md", "old/deep/b.md"}
    assert left_out(tree, include=["docs/"], exclude=["draft-*"], gitignore=False) == set(FILES) - {
        "docs/a.md", "docs/build/out.md",
    }  # fmt: skip


def test_a_glob_that_is_none(tmp_path):
    for options in ({"include": ["!"]}, {"exclude": ["a/!", "!"]}):
        with pytest.raises(UsageError, match="globs"):
            Ignoring(tmp_path, **options)


def test_a_gitignore_that_cannot_be_read_says_nothing(tree):
    (tree / ".gitignore").write_bytes(b"\xff\xfe\n*.log\n")
    (tree / "sub/.gitignore").mkdir()
    (tree / "docs/.gitignore").write_text("*.md\n" + "x" * (1 << 20))
    assert left_out(tree) == {"notes.log", "keep.log"}
