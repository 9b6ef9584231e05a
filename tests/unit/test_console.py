"""What a person sees: grouped remarks, bars, snippets, and nothing that commands a terminal."""

import io

import pytest
from rich.console import Console

from bifolio import console
from bifolio.ingest import FileReport, IngestReport


def shown(show, *args):
    out = Console(file=io.StringIO(), width=200, color_system=None, soft_wrap=True, highlight=False)
    show(out, *args)
    return out.file.getvalue()


def report(*files):
    return IngestReport("manuals", "3", 12, 50, 20, files, 2.0)


def test_what_many_files_share_is_said_once():
    files = [FileReport(f"{i}.html", "warning", f"{i} of 9 passages are longer", 9) for i in range(1, 6)]
    text = shown(console.show_report, report(*files, FileReport("a.bin", "skipped", "binary data (ELF)", 0)))
    assert text.splitlines() == [
        "  skipped  a.bin: binary data (ELF)",
        "  warning  5 files, such as 1.html: 1 of 9 passages are longer",
        "manuals: 12 documents, 50 passages",
        "6 files: 5 warning, 1 skipped · 20 passages encoded in 2.0 s, 10.0 passages/s",
    ]


def test_three_alike_are_named_and_a_long_list_is_cut():
    few = [FileReport(f"{i}.txt", "failed", f"line {i}", 0) for i in range(3)]
    assert [line.split(":")[0].strip() for line in shown(console.show_report, report(*few)).splitlines()[:3]] == [
        "failed  0.txt",
        "failed  1.txt",
        "failed  2.txt",
    ]
    many = [FileReport(f"{i}.txt", "failed", "x" * i, 0) for i in range(25)]
    assert "and 5 more; --json lists all" in shown(console.show_report, report(*many))


@pytest.mark.parametrize(
    ("share", "cells"), [(0.0, ""), (1.0, "█" * 12), (0.5, "█" * 6), (1 / 96, "▏"), (7.0, "█" * 12)]
)
def test_bar(share, cells):
    assert console.bar(share) == cells.ljust(12, "·")


def test_snippet_shows_the_part_with_the_questions_words_in_bold():
    text = "Nothing here. " * 40 + "The valve closes first. " + "Nothing there. " * 40
    found = console.snippet(text, "Which valve closes first?")
    assert "The valve closes first." in found.plain
    assert found.plain.startswith("…")
    assert found.plain.endswith("…")
    assert {found.plain[span.start : span.end] for span in found.spans} == {"valve", "closes", "first"}


def test_nothing_commands_the_terminal():
    hostile = "a\x1b[2Jb\x07c\x9bd\u202ee\nf"
    assert console.printable(hostile) == "a\ufffd[2Jb\ufffdc\ufffdd\ufffde\nf"
