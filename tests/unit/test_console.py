"""What a person sees: grouped remarks, bars, snippets, and nothing that commands a terminal."""

import io
import random
import re

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
        "6 files: 5 warning, 1 skipped · 20 passages encoded in 2.0 s, 10.0 passages/s · generation 3",
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


def best_by_brute_force(text, words, width):
    """Where a window with most of the words begins, the earliest of them."""
    places = [m.span() for m in re.finditer(r"\w+", text) if m.group() in words]
    starts = [max(0, min(a - 30, len(text) - width)) for a, _ in places] or [0]
    return max(starts, key=lambda s: (sum(s <= a and b <= s + width for a, b in places), -s))


def test_snippet_takes_the_window_with_most_of_the_words():
    dice = random.Random(3)
    for _ in range(200):
        text = " ".join(dice.choice(["valve", "pump", "x", "longer", "words"]) for _ in range(120))
        found = console.snippet(text, "valve pump", width=60).plain
        begin = best_by_brute_force(text, {"valve", "pump"}, 60)
        begin = text.find(" ", begin) + 1 if begin else 0
        assert found.strip("…") == text[begin : begin + 60]


def test_snippet_of_a_long_passage_does_not_compare_every_match_with_every_other():
    """200,000 matches: pairs of them would outlast the time limit of the tests."""
    found = console.snippet("valve " * 200_000, "valve")
    assert found.plain == ("valve " * 37)[:220] + "…"


def test_nothing_commands_the_terminal():
    hostile = "a\x1b[2Jb\x07c\x9bd\u202ee\nf"
    assert console.printable(hostile) == "a\ufffd[2Jb\ufffdc\ufffdd\ufffde\nf"
