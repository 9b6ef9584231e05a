"""Data sets on disk, in the layouts that the ``datasets`` library (5.2) writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fakes import bag

SENTENCES = [
    ("Valves", "The valve closes before the pump starts."),
    ("Valves", "The valve is made of brass."),
    ("Rivers", "A river runs under the stone bridge."),
    ("Cats", "The cat slept on the mat until noon."),
    ("Cats", "A cat drinks milk and water."),
]


def rows(count=5, *, first=1, ids=True):
    """Columns of passages with the vectors that ``FakeEncoder`` gives them."""
    numbers = range(first, first + count)
    pairs = [SENTENCES[n % len(SENTENCES)] for n in numbers]
    texts = [f"{text} Number {n}." for n, (_, text) in zip(numbers, pairs, strict=True)]
    columns = {"id": [f"p{n}" for n in numbers]} if ids else {}
    return columns | {
        "title": [title for title, _ in pairs],
        "text": texts,
        "embeddings": [bag(text) for text in texts],
    }


def table(columns, **types):
    """An Arrow table; ``types`` are those of columns that should not be strings, or float32 lists."""
    known = {"embeddings": pa.list_(pa.float32())} | types
    arrays = {}
    for name, values in columns.items():
        values = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
        arrays[name] = pa.array(values, type=known.get(name))
    return pa.table(arrays)


def write_stream(path: Path, found: pa.Table, batch: int = 1000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, found.schema) as stream:
        for part in found.to_batches(max_chunksize=batch):
            stream.write_batch(part)
    return path


def save_to_disk(folder: Path, *tables: pa.Table, batch: int = 1000) -> Path:
    """What ``Dataset.save_to_disk`` leaves, with one file for each table."""
    names = [f"data-{n:05}-of-{len(tables):05}.arrow" for n in range(len(tables))]
    for name, found in zip(names, tables, strict=True):
        write_stream(folder / name, found, batch)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "f", "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}, "description": ""}))
    return folder


def save_dict(folder: Path, **splits: pa.Table) -> Path:
    """What ``DatasetDict.save_to_disk`` leaves."""
    for name, found in splits.items():
        save_to_disk(folder / name, found)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return folder


def write_parquet(path: Path, found: pa.Table, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(found, path, **options)
    return path
