import os
import socket
from pathlib import Path

import pytest

from bifolio.corpus.files import find_files, look
from bifolio.errors import MissingPathError


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def names(found):
    return [name for _, name in found]


def test_folder_is_walked_in_sorted_order_without_hidden_entries(tmp_path, monkeypatch):
    for name in ("docs/b.md", "docs/a.md", "docs/sub/c.txt", "docs/.hidden.md", "docs/.git/config", "docs/a/z.md"):
        write(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    found = find_files(["docs"])
    assert names(found) == ["docs/a/z.md", "docs/a.md", "docs/b.md", "docs/sub/c.txt"]
    assert found[1][0] == (tmp_path / "docs" / "a.md").resolve()


def test_names_are_those_that_the_user_gave(tmp_path, monkeypatch):
    write(tmp_path / "docs" / "a.md")
    monkeypatch.chdir(tmp_path / "docs")
    assert names(find_files(["./a.md"])) == ["a.md"]
    assert names(find_files(["."])) == ["a.md"]
    assert names(find_files(["../docs"])) == ["../docs/a.md"]
    assert names(find_files([tmp_path / "docs"])) == [(tmp_path / "docs" / "a.md").as_posix()]


def test_file_given_twice_is_listed_once_under_its_first_name(tmp_path, monkeypatch):
    write(tmp_path / "docs" / "a.md")
    monkeypatch.chdir(tmp_path)
    assert names(find_files(["docs/a.md", "docs", "./docs/../docs/a.md"])) == ["docs/a.md"]


def test_links_out_of_the_folder_and_cycles_are_not_followed(tmp_path):
    write(tmp_path / "secret" / "s.txt")
    write(tmp_path / "docs" / "b.txt")
    (tmp_path / "docs" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "docs" / "s.txt").symlink_to(tmp_path / "secret" / "s.txt")
    (tmp_path / "docs" / "loop").symlink_to(tmp_path / "docs")
    (tmp_path / "docs" / "self").symlink_to(tmp_path / "docs" / "self")
    (tmp_path / "docs" / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "docs" / "a-link.txt").symlink_to(tmp_path / "docs" / "b.txt")
    assert [path.name for path, _ in find_files([tmp_path / "docs"])] == ["b.txt"]
    assert names(find_files([tmp_path / "docs"]))[0].endswith("docs/b.txt")


def test_links_that_are_not_followed_are_named(tmp_path, monkeypatch):
    write(tmp_path / "secret" / "s.txt")
    write(tmp_path / "docs" / "sub" / "b.txt")
    monkeypatch.chdir(tmp_path)
    Path("docs/sub/out").symlink_to(tmp_path / "secret")
    Path("docs/s.txt").symlink_to(tmp_path / "secret" / "s.txt")
    Path("docs/dangling").symlink_to("nowhere")
    Path("docs/inner.txt").symlink_to("sub/b.txt")
    Path("docs/loop").symlink_to(".")
    secret = (tmp_path / "secret").resolve().as_posix()
    assert look(["docs"]).links == [
        ("docs/dangling", "a dangling link"),
        ("docs/s.txt", f"a link out of the folder, to {secret}/s.txt"),
        ("docs/sub/out", f"a link out of the folder, to {secret}"),
    ]
    assert look(["docs", "secret"]).links == [("docs/dangling", "a dangling link")]
    assert look(["secret/s.txt"]).links == []


def test_links_into_hidden_folders_of_the_same_root_are_followed(tmp_path):
    write(tmp_path / "docs" / "..2024" / "a.md", "mounted")
    (tmp_path / "docs" / "..data").symlink_to("..2024")
    (tmp_path / "docs" / "a.md").symlink_to("..data/a.md")
    ((path, name),) = find_files([tmp_path / "docs"])
    assert name.endswith("docs/a.md")
    assert path.read_text() == "mounted"


def test_a_link_that_the_user_names_is_followed(tmp_path):
    write(tmp_path / "real" / "a.md")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    ((path, name),) = find_files([tmp_path / "link"])
    assert name.endswith("link/a.md")
    assert path == (tmp_path / "real" / "a.md").resolve()


def test_fifos_and_sockets_are_left_out(tmp_path, monkeypatch):
    write(tmp_path / "docs" / "a.md")
    monkeypatch.chdir(tmp_path)
    os.mkfifo("docs/pipe.md")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("docs/socket.md")
        assert names(find_files(["docs"])) == ["docs/a.md"]
    with pytest.raises(MissingPathError, match=r"neither a file nor a folder: docs/pipe\.md"):
        find_files(["docs/pipe.md"])


def test_missing_path_and_empty_folder_are_errors(tmp_path):
    with pytest.raises(MissingPathError, match="no such file or folder: .*nope"):
        find_files([tmp_path / "nope"])
    write(tmp_path / "empty" / ".hidden")
    with pytest.raises(MissingPathError, match="no file in folder: .*empty"):
        find_files([tmp_path / "empty"])


def test_names_that_are_not_utf8_can_be_stored(tmp_path):
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_text("x")
    except OSError as error:
        pytest.skip(f"this file system refuses such a name: {error}")
    ((path, name),) = find_files([tmp_path])
    assert name.endswith("caf\ufffd.txt")
    assert path.read_text() == "x"


def shut(monkeypatch, *names):
    """Folders of these names cannot be listed; tests may run as root, whom no permission keeps out."""
    scandir = os.scandir

    def refuse(path):
        if Path(path).name in names:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)


def test_a_folder_that_cannot_be_listed_is_named_and_the_others_are_read(tmp_path, monkeypatch):
    for name in ("docs/a.md", "docs/shut/b.md", "docs/sub/c.md"):
        write(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    shut(monkeypatch, "shut")
    found = look(["docs"])
    assert names(found.files) == ["docs/a.md", "docs/sub/c.md"]
    assert found.unlisted == [(tmp_path / "docs/shut", "docs/shut", "cannot be listed: Permission denied")]
    with pytest.raises(MissingPathError, match="folder docs/shut cannot be listed: Permission denied"):
        find_files(["docs"])
    with pytest.raises(MissingPathError, match="cannot list folder docs/shut: Permission denied"):
        look(["docs/shut"])
    shut(monkeypatch, "docs")
    with pytest.raises(MissingPathError, match="cannot list folder docs: Permission denied"):
        look(["docs"])
