"""A collection as one file, for backup and moving: a tar of its catalogue and vectors with a list of checksums.

Only the live generation and those with a tag go along; indexes are made again from them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
import tarfile
import tempfile
from pathlib import Path

from bifolio import upkeep
from bifolio.building import CATALOGUE
from bifolio.catalogue import Catalogue
from bifolio.errors import BifolioError, CollectionDamagedError, CollectionExistsError, MissingPathError
from bifolio.ingest_report import OnProgress
from bifolio.staging import beside, check_free

_LIST = "bifolio-backup.json"
_VERSION = 1


def export(catalogue: Catalogue, target: Path, on_progress: OnProgress) -> Path:
    """Write a backup; nothing is at ``target`` before all of it is there.

    Raises:
        CollectionExistsError: something is at ``target``.
        CollectionDamagedError: what would be written is not as it was; a backup of it would be no backup.
    """
    target = target.absolute()
    if target.exists():
        raise CollectionExistsError(f"{target} exists already and will not be overwritten: choose another name")
    if not target.parent.is_dir():
        raise MissingPathError(f"no such folder: {target.parent}")
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        folder = Path(scratch)
        (folder / "vectors").mkdir()
        catalogue.copy_to(folder / CATALOGUE)
        for (name,) in catalogue.query("SELECT DISTINCT file FROM blocks"):
            source = catalogue.path.parent / "vectors" / name
            try:  # never changed, only appended to: a second name is a copy
                os.link(source, folder / "vectors" / name)
            except OSError:
                shutil.copyfile(source, folder / "vectors" / name)
        copy = Catalogue.open(folder / CATALOGUE)
        try:
            upkeep.reduce(copy, keep_newest=0, on_progress=on_progress)
            if damage := upkeep.verify(copy, on_progress, indexes=False):
                raise CollectionDamagedError(f"the collection is damaged: {damage[0]}")
        finally:
            copy.close()
        try:
            _write(part, folder)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    return target


def _write(part: Path, folder: Path) -> None:
    files = [CATALOGUE, *sorted(f"vectors/{path.name}" for path in (folder / "vectors").iterdir())]
    facts = {
        "bifolio_backup": _VERSION,
        "files": {name: {"size": (folder / name).stat().st_size, "sha256": _sha256(folder / name)} for name in files},
    }
    with part.open("xb") as raw:
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
            head = json.dumps(facts).encode()
            entry = tarfile.TarInfo(_LIST)
            entry.size = len(head)
            tar.addfile(entry, io.BytesIO(head))
            for name in files:
                entry = tarfile.TarInfo(name)
                entry.size = facts["files"][name]["size"]  # type: ignore[index]
                with (folder / name).open("rb") as file:
                    tar.addfile(entry, file)
        raw.flush()
        os.fsync(raw.fileno())


def restore(source: Path, path: Path) -> None:
    """Make a collection of a backup; nothing is at ``path`` before all of it is there and was checked.

    Raises:
        MissingPathError: there is no such file.
        CollectionExistsError: something is at ``path``.
        CollectionDamagedError: the file is no backup, or not as it was written.
    """
    if not source.is_file():
        raise MissingPathError(f"no such file: {source}")
    target = check_free(path)
    with beside(target) as folder:
        try:
            with tarfile.open(source, mode="r:") as tar:
                _read(tar, folder, source)
        except (tarfile.TarError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, BifolioError):
                raise
            raise CollectionDamagedError(f"{source} is no backup of a collection, or is damaged: {error}") from error
        catalogue = Catalogue.open(folder / CATALOGUE)
        try:
            if damage := upkeep.verify(catalogue, lambda _: None, indexes=False):
                raise CollectionDamagedError(f"{source}: {damage[0]}")
            upkeep.derive(catalogue, lambda _: None)
        finally:
            catalogue.close()


def _read(tar: tarfile.TarFile, folder: Path, source: Path) -> None:
    """Unpack what the list names and nothing else: names come from outside."""
    first = tar.next()
    listed = tar.extractfile(first) if first is not None and first.name == _LIST else None
    if listed is None:
        raise CollectionDamagedError(f"{source} is no backup of a collection")
    facts = json.loads(listed.read(1 << 24))
    if facts.get("bifolio_backup") != _VERSION:
        raise CollectionDamagedError(
            f"{source} is a backup of format {facts.get('bifolio_backup')}; this bifolio reads {_VERSION}"
        )
    (folder / "vectors").mkdir()
    wanted = dict(facts["files"])
    for entry in tar:
        if entry.name == _LIST:
            continue
        here = wanted.pop(entry.name, None)
        plain = entry.name == CATALOGUE or (
            entry.name.startswith("vectors/") and Path(entry.name).name == entry.name.removeprefix("vectors/")
        )
        content = tar.extractfile(entry) if entry.isreg() else None
        if here is None or not plain or content is None or entry.size != here["size"]:
            raise CollectionDamagedError(f"{source} has {entry.name!r}, which its list does not name so")
        digest = hashlib.sha256()
        with (folder / entry.name).open("xb") as file:
            while data := content.read(1 << 20):
                digest.update(data)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != here["sha256"]:
            raise CollectionDamagedError(f"{source}: {entry.name} is not as it was written")
    if wanted:
        raise CollectionDamagedError(f"{source} lacks {', '.join(sorted(wanted))}: it was cut")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()
