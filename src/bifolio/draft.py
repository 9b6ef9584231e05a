"""The generation in the making: which versions of files come in and which go out.

Versions are put into the catalogue while they are read, and belong to no generation until the draft is committed. So a
run that is killed leaves what it has read, and the next one finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bifolio import history
from bifolio.catalogue import Catalogue, FileRow


class Draft:
    """Changes to the live generation, for the one who holds the write lock."""

    def __init__(self, catalogue: Catalogue) -> None:
        """Begin with the live generation."""
        self._catalogue = catalogue
        self.base = history.live(catalogue)
        """The generation that it starts from; 0 for none."""
        self.encoder = history.encoder_of(catalogue, self.base)
        """Number of its encoder."""
        self.added: dict[int, FileRow] = {}
        """Versions that come in."""
        self.dropped: set[int] = set()
        """Versions of the base that go out."""

    def __contains__(self, file: int) -> bool:
        """Whether a version is part of what will be committed."""
        return file in self.added or (file not in self.dropped and history.is_alive(self._catalogue, file, self.base))

    def of_path(self, path: str) -> FileRow | None:
        """The version of a file, by absolute path, that is part of it."""
        return next((v for v in self._catalogue.versions("path = ?", [path]) if v.id in self), None)

    def of_source(self, source: str) -> list[FileRow]:
        """The versions of a source that are part of it: one."""
        return [v for v in self._catalogue.versions("source = ?", [source]) if v.id in self]

    def like(self, source: str, hash: str) -> list[FileRow]:
        """The file of this source, then some files of this content."""
        by_source = self._catalogue.versions("source = ?", [source])
        by_hash = self._catalogue.versions("hash = ?", [hash])[:50]
        return [v for v in (*by_source, *by_hash) if v.id in self]

    def spare(self, path: str, source: str, hash: str, options: str) -> FileRow | None:
        """A version with exactly this content that is not part of it: read before, and not to be read again."""
        values = [path, source, hash, options]
        found = self._catalogue.versions("path = ? AND source = ? AND hash = ? AND options = ?", values)
        return next((v for v in found if v.id not in self and v.passages and not self._clashes(v)), None)

    def free_source(self, source: str, path: str) -> str:
        """The source, or where another file goes by it, the path.

        That is so for the same relative name seen from another folder.
        """
        names = (source, path, *(f"{path} ({number})" for number in range(2, 100)))
        return next(name for name in names if not self._is_taken(name, path))

    def _is_taken(self, source: str, path: str) -> bool:
        return any(v.id in self and v.path != path for v in self._catalogue.versions("source = ?", [source]))

    def holder(self, passage_id: str, file: int, path: str) -> str:
        """The place of the passage that has an id already; else "".

        ``file``, a new version of the file of ``path``, may have it but once; the version before it does not count.
        """
        query = """
        SELECT f.id, f.path, p.place FROM passages p JOIN documents d ON d.id = p.document JOIN files f ON f.id = d.file
        WHERE p.id = ?
        """
        for number, where, place in self._catalogue.query(query, [passage_id]):
            if number == file or (where != path and number in self):
                return str(place)
        return ""

    def _clashes(self, version: FileRow) -> bool:
        """Whether an id of a version's passages is another file's by now."""
        query = """
        SELECT DISTINCT e.file FROM passages p JOIN passages o ON o.id = p.id AND o.row != p.row
        JOIN documents e ON e.id = o.document WHERE p.row >= ? AND p.row < ? AND e.file != ?
        """
        end = version.first_row + version.passages
        others = self._catalogue.query(query, [version.first_row, end, version.id])
        return any(file in self and self._catalogue.file(file).path != version.path for (file,) in others)

    def put(self, version: FileRow) -> None:
        """Let a version come in; another one of the same path goes out."""
        self.take_out(version.path)
        if history.is_alive(self._catalogue, version.id, self.base):
            self.dropped.discard(version.id)
        else:
            self.added[version.id] = version

    def take_out(self, path: str) -> int:
        """Let the file of a path go out; returns its passages."""
        version = self.of_path(path)
        if version is None:
            return 0
        if self.added.pop(version.id, None) is None:
            self.dropped.add(version.id)
        return version.passages

    def files(self) -> Iterator[FileRow]:
        """Every version that is part of it."""
        for version in history.files(self._catalogue, self.base):
            if version.id not in self.dropped:
                yield version
        yield from self.added.values()

    def counts(self) -> tuple[int, int]:
        """Documents and passages that it has."""
        found = self._catalogue.query("SELECT documents, passages FROM generations WHERE id = ?", [self.base])
        documents, passages = found[0] if found else (0, 0)
        for file, sign in (*((f, 1) for f in self.added), *((f, -1) for f in self.dropped)):
            query = "SELECT rows, (SELECT count(*) FROM documents WHERE file = ?) FROM files WHERE id = ?"
            rows, mine = self._catalogue.query(query, [file, file])[0]
            documents, passages = documents + sign * mine, passages + sign * rows
        return documents, passages

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.added or self.dropped) or not self.base

    def commit(self, action: str) -> int:
        """Make it a generation, inside :meth:`Catalogue.writing`; returns its number.

        It becomes live, unless somebody has swapped to another one in the meantime.
        """
        before = history.live(self._catalogue)
        paths = {self._catalogue.file(file).path for file in self.dropped}
        new = {version.path for version in self.added.values()}
        changes = {"added": len(new - paths), "changed": len(new & paths), "removed": len(paths - new)}
        number = history.commit(
            self._catalogue,
            parent=self.base,
            encoder=self.encoder,
            action=action,
            add=list(self.added),
            drop=list(self.dropped),
            changes=changes,
        )
        if before != self.base:
            history.swap(self._catalogue, before)
        return number


def rows_of(versions: Sequence[FileRow]) -> list[range]:
    """Rows of the passages of some versions, ascending."""
    ranges = (range(v.first_row, v.first_row + v.passages) for v in versions if v.passages)
    return sorted(ranges, key=lambda rows: rows.start)


def settings(catalogue: Catalogue) -> dict[str, Any]:
    """How documents of this collection are read and split unless somebody says otherwise."""
    found: dict[str, Any] = catalogue.meta().get("settings", {})
    return found
