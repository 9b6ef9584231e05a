"""What a person sees in a terminal: bars, tables, snippets. No decisions are made here."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from bifolio.answer import Answer
    from bifolio.catalogue import FileRow
    from bifolio.history import Difference, Generation
    from bifolio.ingest_report import FileReport, IngestProgress, IngestReport
    from bifolio.models import ModelRecord
    from bifolio.models import Progress as PullProgress
    from bifolio.types import Hit, Passage

_BAR = 12
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SNIPPET = 220
_ALIKE = 3  # files with the same remark that are still named one by one
_UNWRAPPED = 1_000_000  # columns: a table would be laid out for 80, whatever soft_wrap says
_WRITTEN = "The generator wrote these numbers itself: they are no probabilities, and nothing proves them."
_DIRECTION = "\u202a\u202b\u202d\u202e\u2066\u2067\u2068"
_COMMON = frozenset(
    "the of and to in is was for on that by with are what which who whom when where why how does did do it from at as "
    "an a be this have has can not or i you".split()
)


class _Output(Console):
    """A console that leaves it to the command line what happens when its reader has left."""

    def on_broken_pipe(self) -> None:
        """Rich would end the process with 1, which means something here."""
        raise BrokenPipeError


def output() -> Console:
    """Standard output. Into a pipe or a file no line is wrapped."""
    console = _Output(highlight=False, emoji=False)
    if console.is_terminal:
        return console
    return _Output(highlight=False, emoji=False, soft_wrap=True, width=_UNWRAPPED)


def messages() -> Console:
    """Standard error, for progress, warnings and errors."""
    return Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def printable(text: str) -> str:
    """Text without characters that command a terminal: a file name or a document must not."""
    return "".join("\ufffd" if _commands(c) else c for c in text.replace("\t", "    "))


def on_one_line(text: str) -> str:
    """A name for one line of a terminal: line ends in it must not pass for the end of our line."""
    return re.sub(r"[\n\u2028\u2029]", "\ufffd", printable(text))


def _commands(character: str) -> bool:
    # Controls, lone surrogates, and marks that reverse the direction of what follows them.
    return character != "\n" and (unicodedata.category(character) in {"Cc", "Cs"} or character in _DIRECTION)


def bar(share: float) -> str:
    """A share of 1 as a bar of twelve cells, in eighths of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * _BAR * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR, "·")


def snippet(text: str, question: str, width: int = _SNIPPET) -> Text:
    """The part of a passage with most of the question's words, which are set bold."""
    flat = printable(re.sub(r"\s+", " ", text)).strip()
    words = {word for word in re.findall(r"\w+", question.lower()) if word not in _COMMON}
    places = [m.span() for m in re.finditer(r"\w+", flat) if m.group().lower() in words]
    start = 0
    if len(flat) > width:
        begins, ends = [a for a, _ in places], [b for _, b in places]  # both ascend: words do not overlap
        starts = [max(0, min(a - 30, len(flat) - width)) for a in begins] or [0]
        start = max(starts, key=lambda s: (bisect_right(ends, s + width) - bisect_left(begins, s), -s))
        start = flat.find(" ", start) + 1 if start else 0
    shown = Text(("…" if start else "") + flat[start : start + width] + ("…" if start + width < len(flat) else ""))
    for a, b in places:
        if start <= a and b <= start + width:
            shift = (1 if start else 0) - start
            shown.stylize("bold", a + shift, b + shift)
    return shown


def show_answer(console: Console, answer: Answer) -> None:
    """The answer with its markers, one entry per cited passage, and a line about the whole."""
    console.print(Text(printable(answer.marked()) or "(the model answered with nothing)", style="bold"))
    console.print()
    cited = sorted((c for c in answer.citations() if c.marker is not None), key=lambda c: c.marker or 0)
    for citation in cited:
        remark = "  cut to fit" if citation.truncated else ""
        head = Text(f"[{citation.marker}] ", style="bold cyan")
        if citation.weight is not None:
            head = Text.assemble(head, (bar(citation.weight), "cyan"), f" {citation.weight:.2f}  ")
        _entry(console, head, citation.passage, snippet(citation.passage.text, answer.question), remark)
    if answer.basis == "heuristic":
        console.print(Text(_WRITTEN if cited else "The generator named no passage.", style="yellow"))
    elif not cited:
        console.print(Text("No passage carries a tenth of any sentence.", style="yellow"))
    if answer.no_passage is not None:
        memory = f"    {bar(answer.no_passage)} {answer.no_passage:.2f}  no passage (the model's own memory)"
        console.print(Text(memory, style="dim"))
    console.print()
    for rank, other in enumerate(answer.alternatives, start=2):
        line = f"{rank:>2}. log p {other.log_prob:.2f}  {on_one_line(other.text) or '(nothing)'}"
        console.print(Text(line, style="dim"))
    if answer.alternatives:
        console.print()
    console.print(_facts(answer))
    for note in answer.notes:
        console.print(Text(f"note: {on_one_line(note)}", style="yellow"))


def _facts(answer: Answer) -> Text:
    import math

    facts = [f"scheme {answer.scheme}" if answer.scheme else answer.decoder]
    if answer.log_prob is not None:
        facts.insert(0, f"log p(y|x) {answer.log_prob:.2f} (p = {math.exp(answer.log_prob):.2g})")
    if answer.basis != "exact":
        facts.append(f"{answer.basis} citations")
    if answer.support is not None:
        facts.insert(0, f"support {answer.support:.2f}")
    if answer.evidence is not None:
        facts.append(f"evidence {answer.evidence:+.2f} nats/token")
    t = answer.timings
    facts.append(f"retrieve {t.retrieve_s:.2f} s, prefill {t.prefill_s:.2f} s, decode {t.decode_s:.2f} s")
    return Text(" · ".join(facts), style="dim")


def show_hits(console: Console, hits: Sequence[Hit], question: str) -> None:
    """Retrieved passages, best first."""
    import math

    for rank, hit in enumerate(hits, start=1):
        prior = math.exp(hit.log_prior)
        head = Text.assemble((f"{rank:>2}. ", "bold cyan"), (bar(prior), "cyan"))
        head.append(f" {prior:.2f}  score {hit.score:.3f}  ")
        _entry(console, head, hit.passage, snippet(hit.passage.text, question), "")


def _entry(console: Console, head: Text, passage: Passage, shown: Text, remark: str) -> None:
    """A passage in three parts: where it is, under which headings, and what it says."""
    head.append(on_one_line(passage.place), style="underline")
    head.append(f"  {on_one_line(passage.id)}", style="dim")
    console.print(head.append(remark, style="yellow"))
    label = Text(on_one_line(passage.label), style="dim")
    for part in (label, shown) if passage.label else (shown,):
        # A terminal wraps within the indentation; elsewhere a line stays whole.
        console.print(Padding(part, (0, 0, 0, 4)) if console.is_terminal else Text("    ").append_text(part))


def show_passage(console: Console, passage: Passage, before: str, after: str) -> None:
    """A passage within its document."""
    console.print(Text(f"{on_one_line(passage.place)}  {on_one_line(passage.label)}", style="bold"))
    console.print(Text(("…" if before else "") + printable(before), style="dim"), end="")
    console.print(Text(printable(passage.text), style="reverse" if console.is_terminal else ""), end="")
    console.print(Text(printable(after) + ("…" if after else ""), style="dim"))


def show_files(console: Console, files: Sequence[FileRow]) -> None:
    """The files of a collection."""
    table = Table(box=None, pad_edge=False)
    for name, justify in (("passages", "right"), ("added", "left"), ("status", "left"), ("source", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for file in files:
        reason = f"  ({on_one_line(file.reason)})" if file.reason else ""
        table.add_row(str(file.passages), file.added[:19], file.status, Text(on_one_line(file.source) + reason))
    console.print(table)
    console.print(Text(f"{len(files)} files, {sum(file.passages for file in files)} passages", style="dim"))


def show_report(console: Console, report: IngestReport, most: int = 20) -> None:
    """What an ingest did: the files that need attention, then the totals."""
    colours = {"failed": "red", "skipped": "yellow", "warning": "yellow"}
    alike: dict[tuple[str, str], list[FileReport]] = {}
    for file in report.files:
        if file.status in colours:
            alike.setdefault((file.status, re.sub(r"\d+", "N", file.reason)), []).append(file)
    # What many files share is said once, so that what one file has alone is not lost among it.
    lines = [(file, "") for files in alike.values() if len(files) <= _ALIKE for file in files]
    lines += [(files[0], f"{len(files)} files, such as ") for files in alike.values() if len(files) > _ALIKE]
    lines.sort(key=lambda line: list(colours).index(line[0].status))  # what is cut off below is what matters least
    for file, group in lines[:most]:
        what = f"  {group}{on_one_line(file.path)}: {on_one_line(file.reason)}"
        console.print(Text.assemble((f"{file.status:>9}", colours[file.status]), what))
    if len(lines) > most:
        console.print(Text(f"           and {len(lines) - most} more; --json lists all", style="dim"))
    states = [file.status for file in report.files]
    kinds = ("ok", "warning", "unchanged", "removed", "skipped", "failed")
    counts = ", ".join(f"{states.count(kind)} {kind}" for kind in kinds if kind in states)
    console.print(
        Text(
            f"{on_one_line(report.collection)}: {report.documents} documents, {report.passages} passages", style="bold"
        )
    )
    rate = f", {report.added / report.seconds:.1f} passages/s" if report.added and report.seconds else ""
    done = f"{report.added} passages encoded in {report.seconds:.1f} s{rate}"
    console.print(
        Text(f"{len(states)} files{counts and ': '}{counts} · {done} · generation {report.generation}", style="dim")
    )
    for note in report.notes:
        console.print(Text(on_one_line(note), style="dim"))


def show_generations(console: Console, generations: Sequence[Generation]) -> None:
    """The history of a collection."""
    table = Table(box=None, pad_edge=False)
    for name in ("", "generation", "passages", "made", "by", "changes", "tags", "encoder"):
        table.add_column(name, justify="right" if name in ("generation", "passages") else "left", overflow="fold")
    for one in generations:
        signs = {"added": "+", "changed": "~", "removed": "-"}
        changes = " ".join(f"{signs[kind]}{count}" for kind, count in one.changes.items() if count and kind in signs)
        cells = ("live" if one.live else "", str(one.number), str(one.passages), one.at[:19].replace("T", " "))
        table.add_row(*cells, one.action, changes, Text(", ".join(one.tags)), Text(on_one_line(one.encoder)))
    console.print(table)


def show_difference(console: Console, difference: Difference, most: int = 50) -> None:
    """What changed between two generations."""
    kinds = (("+", "green", difference.added), ("~", "yellow", difference.changed), ("-", "red", difference.removed))
    lines = [(sign, colour, source) for sign, colour, sources in kinds for source in sources]
    for sign, colour, source in lines[:most]:
        console.print(Text.assemble((f"{sign} ", colour), on_one_line(source)))
    if len(lines) > most:
        console.print(Text(f"  and {len(lines) - most} more; --json lists all", style="dim"))
    if difference.encoders:
        console.print(Text(f"encoder {difference.encoders[0]} → {difference.encoders[1]}"))
    added, changed, removed = (len(sources) for _, _, sources in kinds[:1] + kinds[1:])
    passages = f"passages +{difference.passages_added} -{difference.passages_removed}"
    console.print(Text(f"{added} files added, {changed} changed, {removed} removed · {passages}", style="dim"))


def show_facts(console: Console, facts: Mapping[str, Any], indent: str = "") -> None:
    """Names and values, nested."""
    for name, value in facts.items():
        label = name.replace("_", " ")
        if isinstance(value, Mapping):
            console.print(Text(f"{indent}{label}", style="bold"))
            show_facts(console, value, indent + "  ")
        else:
            shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
            console.print(Text(f"{indent}{label:<28} {on_one_line(shown)}"))


def show_models(console: Console, records: Sequence[ModelRecord]) -> None:
    """Models in the cache."""
    for record in records:
        facts = f"  {record.size / 1e6:.0f} MB  from {on_one_line(record.origin)}  {on_one_line(str(record.path))}"
        console.print(Text.assemble((on_one_line(record.id), "bold"), facts))
    if not records:
        console.print("No model is in the cache. Run: bifolio models pull")


@contextmanager
def ingest_progress(quiet: bool) -> Iterator[Callable[[IngestProgress], None]]:
    """A bar for reading and one for encoding, with rate and ETA; nothing where stderr is no terminal."""
    console = messages()
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}
        units = {
            "read": ("reading files", "files/s"),
            "encode": ("encoding passages", "passages/s"),
            "index": ("indexing words", "passages/s"),
            "copy": ("copying vectors", "vectors/s"),
            "verify": ("verifying", "files/s"),
        }

        def told(step: IngestProgress) -> None:
            name, unit = units[step.stage]
            if step.stage not in tasks:
                tasks[step.stage] = progress.add_task(name, total=step.total, rate="")
            task = progress.tasks[tasks[step.stage]]
            rate = f"{step.done / task.elapsed:.0f} {unit}" if task.elapsed else ""
            if step.passages:
                rate = f"{step.passages:,} passages of {on_one_line(step.current)}"
            progress.update(tasks[step.stage], completed=step.done, total=step.total, rate=rate)

        yield told


@contextmanager
def pull_progress(quiet: bool) -> Iterator[Callable[[PullProgress], None]]:
    """A bar per stage of a pull; on a stderr that is no terminal one line per stage."""
    console = messages()
    if quiet:
        yield lambda _: None
        return
    if not console.is_terminal:
        yield lambda step: console.print(Text(f"{step.stage}: {on_one_line(step.message)}")) if step.message else None
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def told(step: PullProgress) -> None:
            if step.message:
                progress.console.print(Text(on_one_line(step.message), style="dim"))
            if step.stage not in tasks:
                tasks[step.stage] = progress.add_task(step.stage, total=step.total)
            progress.update(tasks[step.stage], completed=step.done, total=step.total)

        yield told
