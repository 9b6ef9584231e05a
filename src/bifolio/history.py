"""Generations: which versions of which files make up the collection, now and before.

A version of a file is part of the generations from its birth to its death, so a generation costs what changed in it and
not what there is. Generations are numbered from 1 and never change; ``live`` is the one that readers read, and moving
it is a swap. What is written after a swap to an older generation becomes a new generation of its own, the newest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
from jaxtyping import Bool

from bifolio.catalogue import Catalogue, FileRow
from bifolio.errors import NotFoundError, UsageError

_ALIVE = "l.born <= :g AND (l.died IS NULL OR l.died > :g)"
_TAG = re.compile(r"[^\W\d][\w.-]{0,99}")


@dataclass(frozen=True)
class Generation:
    """A committed state of a collection.

    Attributes:
        number: From 1 on.
        parent: The generation that it was made from; 0 for the first.
        encoder: Model id of the encoder of its vectors.
        at: When, UTC, ISO 8601.
        action: What made it: ``ingest``, ``sync``, ``rm``, ``reencode``.
        changes: Files added, changed and removed.
        documents: Documents in it.
        passages: Passages in it.
        tags: Its names.
        live: Whether it is the one that readers read.
    """

    number: int
    parent: int
    encoder: str
    at: str
    action: str
    changes: Mapping[str, int]
    documents: int
    passages: int
    tags: tuple[str, ...] = ()
    live: bool = False


@dataclass(frozen=True)
class Difference:
    """What is in one generation and not in another.

    Attributes:
        added: Sources that only the second one has.
        removed: Sources that only the first one has.
        changed: Sources that both have, in different versions.
        passages_added: Passages that only the second one has.
        passages_removed: Passages that only the first one has.
        encoders: Model ids of both, where they are not the same.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    passages_added: int
    passages_removed: int
    encoders: tuple[str, str] | None = None


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# ---- reading ----


def live(catalogue: Catalogue) -> int:
    """The generation that readers read; 0 if there is none yet."""
    return int(json.loads(catalogue.scalar("SELECT value FROM meta WHERE key = 'live'") or "0"))


def state(catalogue: Catalogue, generation: int | None = None) -> tuple[int, int]:
    """What tells that readers should move on: the generation (the live one when left out) and the compactions."""
    compactions = catalogue.scalar("SELECT value FROM meta WHERE key = 'compactions'")
    return live(catalogue) if generation is None else generation, int(compactions or 0)


def newest(catalogue: Catalogue) -> int:
    """The largest number that a generation ever had; 0 if there was none yet."""
    last = json.loads(catalogue.scalar("SELECT value FROM meta WHERE key = 'last'") or "0")
    return max(int(last), int(catalogue.scalar("SELECT max(id) FROM generations") or 0))


def encoder_of(catalogue: Catalogue, generation: int) -> int:
    """Number of the encoder of a generation; before the first generation, of the one that it will have."""
    found = catalogue.scalar("SELECT encoder FROM generations WHERE id = ?", [generation])
    return int(found if found is not None else catalogue.scalar("SELECT min(id) FROM encoders"))


def generations(catalogue: Catalogue) -> list[Generation]:
    """All generations, the newest first."""
    tags: dict[int, list[str]] = {}
    for name, number in catalogue.query("SELECT name, generation FROM tags ORDER BY name"):
        tags.setdefault(number, []).append(name)
    current = live(catalogue)
    query = """
    SELECT g.id, g.parent, e.spec, g.at, g.action, g.changes, g.documents, g.passages
    FROM generations g JOIN encoders e ON e.id = g.encoder ORDER BY g.id DESC
    """
    return [
        Generation(
            number, parent, json.loads(spec)["model"], at, action, json.loads(changes), documents, passages,
            tuple(tags.get(number, ())), number == current,
        )
        for number, parent, spec, at, action, changes, documents, passages in catalogue.query(query)
    ]  # fmt: skip


def resolve(catalogue: Catalogue, name: str | int) -> int:
    """The number of a generation, given that or a tag.

    Raises:
        NotFoundError: there is no such generation.
    """
    text = str(name)
    found = catalogue.scalar("SELECT generation FROM tags WHERE name = ?", [text])
    if found is None and text.isascii() and text.isdigit() and len(text) < 19:
        found = catalogue.scalar("SELECT id FROM generations WHERE id = ?", [int(text)])
    if found is None:
        have = [number for (number,) in catalogue.query("SELECT id FROM generations ORDER BY id")]
        tags = [tag for (tag,) in catalogue.query("SELECT name FROM tags ORDER BY name")]
        shown = f"{have[0]} to {have[-1]}" if len(have) > 1 else ", ".join(map(str, have)) or "none"
        raise NotFoundError(
            f"no generation {text!r} in {catalogue.path.parent}; there are {shown}"
            + (f", with the tags {', '.join(tags[:20])}" if tags else "")
            + "; see: bifolio log"
        )
    return int(found)


def mask(catalogue: Catalogue, generation: int, rows: int) -> Bool[np.ndarray, " R"]:
    """Which rows below ``rows`` have a passage in a generation."""
    query = f"SELECT f.first_row, f.rows FROM lives l JOIN files f ON f.id = l.file WHERE {_ALIVE} AND f.rows > 0"
    return _ranges(catalogue.query(query.replace(":g", "?"), [generation, generation]), rows)


def hidden(catalogue: Catalogue, labels: Collection[str], rows: int) -> Bool[np.ndarray, " R"]:
    """Which rows belong to documents that carry access labels and none of ``labels``, in any generation."""
    query = "SELECT DISTINCT access FROM documents WHERE access != ''"
    shut = [access for (access,) in catalogue.query(query) if not _may_see(access, labels)]
    found: list[tuple[Any, ...]] = []
    for access in shut:
        found += catalogue.query("SELECT first_row, rows FROM documents WHERE access = ? AND rows > 0", [access])
    return _ranges(found, rows)


def _ranges(ranges: list[tuple[Any, ...]], rows: int) -> Bool[np.ndarray, " R"]:
    """The mask of ranges (first, length) that do not overlap."""
    steps = np.zeros(rows + 1, dtype=np.int8)
    if ranges:
        array = np.array(ranges, dtype=np.int64)
        np.add.at(steps, array[:, 0], 1)
        np.add.at(steps, array.sum(axis=1), -1)
    return np.cumsum(steps[:-1], dtype=np.int8).astype(bool)


def files(catalogue: Catalogue, generation: int, labels: Collection[str] | None = None) -> list[FileRow]:
    """The files of a generation, by source, with their documents counted.

    With ``labels`` only those of which somebody with these labels may see a document, and only what they see counts.
    """
    query = f"""
    SELECT f.id, f.path, f.source, f.hash, f.options, f.added, f.status, f.reason, f.size, f.mtime, f.first_row, f.rows,
           (SELECT count(*) FROM documents d WHERE d.file = f.id)
    FROM lives l JOIN files f ON f.id = l.file WHERE {_ALIVE} ORDER BY f.source
    """
    found = [FileRow(*row) for row in catalogue.query(query.replace(":g", "?"), [generation, generation])]
    if labels is None:
        return found
    query = "SELECT file, access, count(*), sum(rows) FROM documents WHERE access != '' GROUP BY file, access"
    shut: dict[int, tuple[int, int]] = {}
    for file, access, documents, rows in catalogue.query(query):
        if not _may_see(access, labels):
            before = shut.get(file, (0, 0))
            shut[file] = before[0] + documents, before[1] + rows
    seen = []
    for one in found:
        documents, rows = shut.get(one.id, (0, 0))
        if documents < one.documents or not documents:
            # What else is known of the file may speak of what is hidden in it.
            left, more = one.documents - documents, one.passages - rows
            cut = replace(one, documents=left, passages=more, reason="", hash="", size=0)
            seen.append(cut if documents else one)
    return seen


def _may_see(access: str, labels: Collection[str]) -> bool:
    return bool(set(access.strip(",").split(",")) & set(labels))


def is_alive(catalogue: Catalogue, file: int, generation: int) -> bool:
    """Whether a version of a file is part of a generation."""
    query = f"SELECT count(*) FROM lives l WHERE l.file = ? AND {_ALIVE}".replace(":g", "?")
    return bool(catalogue.scalar(query, [file, generation, generation]))


def count_documents(catalogue: Catalogue, generation: int) -> int:
    """Documents of a generation."""
    query = f"SELECT count(*) FROM lives l JOIN documents d ON d.file = l.file WHERE {_ALIVE}".replace(":g", "?")
    return int(catalogue.scalar(query, [generation, generation]))


def difference(catalogue: Catalogue, first: int, second: int) -> Difference:
    """What changed from one generation to another."""
    alive = f"SELECT l.file FROM lives l WHERE {_ALIVE}"
    query = f"""
    SELECT source, rows FROM files WHERE id IN ({alive.replace(":g", ":a")} EXCEPT {alive.replace(":g", ":b")})
    ORDER BY source
    """.replace(":a", "?1").replace(":b", "?2")
    only_first = dict(catalogue.query(query, [first, second]))
    only_second = dict(catalogue.query(query, [second, first]))
    both = only_first.keys() & only_second.keys()
    models = {g.number: g.encoder for g in generations(catalogue) if g.number in (first, second)}
    same = encoder_of(catalogue, first) == encoder_of(catalogue, second)
    return Difference(
        tuple(source for source in only_second if source not in both),
        tuple(source for source in only_first if source not in both),
        tuple(source for source in only_second if source in both),
        sum(only_second.values()),
        sum(only_first.values()),
        None if same else (models[first], models[second]),
    )


# ---- writing, inside Catalogue.writing() ----


def commit(
    catalogue: Catalogue,
    *,
    parent: int,
    encoder: int,
    action: str,
    add: Collection[int] = (),
    drop: Collection[int] = (),
    changes: Mapping[str, int] | None = None,
) -> int:
    """A new generation: that of ``parent`` without the files ``drop`` and with the files ``add``; it becomes live."""
    last = newest(catalogue)
    number = last + 1
    if parent != last:  # after a swap to an older one: what came later ends here, what ended later comes back
        alive = "SELECT l.file FROM lives l WHERE l.born <= ? AND (l.died IS NULL OR l.died > ?)"
        back = catalogue.query(f"{alive} EXCEPT SELECT file FROM lives WHERE died IS NULL", [parent, parent])
        catalogue.change(
            f"UPDATE lives SET died = ? WHERE died IS NULL AND file NOT IN ({alive})", [number, parent, parent]
        )
        catalogue.change_many("INSERT INTO lives VALUES (?, ?, NULL)", [(file, number) for (file,) in back])
    catalogue.change_many(
        "UPDATE lives SET died = ? WHERE file = ? AND died IS NULL", [(number, file) for file in drop]
    )
    catalogue.change("DELETE FROM lives WHERE died = ?1 AND born = ?1", [number])  # came back, and dropped at once
    catalogue.change_many("INSERT INTO lives VALUES (?, ?, NULL)", [(file, number) for file in add])
    totals = """
    SELECT coalesce(sum((SELECT count(*) FROM documents d WHERE d.file = f.id)), 0), coalesce(sum(f.rows), 0)
    FROM files f WHERE f.id IN (SELECT file FROM lives WHERE {where})
    """
    if parent == last and parent:  # in proportion to the change
        before = catalogue.query("SELECT documents, passages FROM generations WHERE id = ?", [parent])[0]
        plus = catalogue.query(totals.format(where="born = ?"), [number])[0]
        minus = catalogue.query(totals.format(where="died = ?"), [number])[0]
        documents, passages = (b + p - m for b, p, m in zip(before, plus, minus, strict=True))
    else:
        documents, passages = catalogue.query(totals.format(where="died IS NULL"))[0]
    catalogue.change(
        "INSERT INTO generations VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (number, parent, encoder, now(), action, json.dumps(dict(changes or {})), documents, passages),
    )
    catalogue.set_meta({"live": number})
    record(catalogue, action, number)
    return number


def record(catalogue: Catalogue, action: str, generation: int, note: str = "") -> None:
    """Write down what was done."""
    values = (now(), action, generation, note)
    catalogue.change("INSERT INTO events (at, action, generation, note) VALUES (?, ?, ?, ?)", values)


def swap(catalogue: Catalogue, generation: int) -> None:
    """Let readers read another generation."""
    before = live(catalogue)
    if generation != before:
        catalogue.set_meta({"live": generation})
        record(catalogue, "swap", generation, f"from {before}")


def tag(catalogue: Catalogue, name: str, generation: int) -> None:
    """Name a generation; a name that another one had moves.

    Raises:
        UsageError: it is no name.
    """
    if not _TAG.fullmatch(name):
        raise UsageError(f"tag {name!r}: expected a letter, then up to 99 letters, digits, dots and dashes")
    catalogue.change("INSERT OR REPLACE INTO tags VALUES (?, ?)", (name, generation))
    record(catalogue, "tag", live(catalogue), f"{name}: {generation}")


def untag(catalogue: Catalogue, name: str) -> None:
    """Take a name away.

    Raises:
        NotFoundError: there is no such tag.
    """
    if catalogue.scalar("SELECT count(*) FROM tags WHERE name = ?", [name]) == 0:
        raise NotFoundError(f"no tag {name!r} in {catalogue.path.parent}; see: bifolio log")
    catalogue.change("DELETE FROM tags WHERE name = ?", [name])
    record(catalogue, "untag", live(catalogue), name)
