"""Ingest against its own encoder: what reading, splitting, storing and committing cost on top of encoding.

    python benchmarks/ingest.py PATH... [--quick] [--parts 4] [--threads N] [--dtype T] [--json]

The files are dealt into parts. For each part in turn: build a collection of it, then encode exactly its passages with
sentence-transformers' own ``encode`` (same weights, dtype, threads and batch size). ``ratio_wall`` is peer / ours: 1
would mean that everything but encoding is free.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from common import Meter, provenance, say
from sentence_transformers import SentenceTransformer

from bifolio import Collection, models
from bifolio.corpus.files import find_files
from bifolio.loading import load_encoder
from bifolio.weights import pick_dtype


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quick", action="store_true", help="forty files")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    files = [path for path, _ in find_files(options.paths)]
    if options.quick:
        files = files[:: max(1, len(files) // 40)][:40]
    ours, peer = Meter(), Meter()
    encoder = load_encoder(dtype=options.dtype)
    raw = SentenceTransformer(
        str(models.resolve(models.DEFAULT_ENCODER)),
        device="cpu",
        model_kwargs={"dtype": pick_dtype(options.dtype, torch.device("cpu"))},
    )
    documents = passages = 0
    for part in range(min(options.parts, len(files))):
        with tempfile.TemporaryDirectory() as scratch:
            with ours.running():
                collection = Collection.build(
                    files[part :: options.parts], Path(scratch) / "collection", encoder=encoder
                )
            texts = [f"{p.label}\n{p.text}" if p.label else p.text for p in collection.passages()]
            with peer.running():
                raw.encode(texts, batch_size=32, show_progress_bar=False)
            counted = collection.counts()
            documents, passages = documents + counted[0], passages + counted[1]
    rates = {name: round(passages / meter.wall_s, 1) for name, meter in (("ours", ours), ("peer", peer))}
    line = {
        "case": f"ingest of {len(files)} files, {documents} documents, {passages} passages",
        "ours": {**ours.figures(), "passages_per_s": rates["ours"]},
        "peer": {"name": "SentenceTransformer.encode", **peer.figures(), "passages_per_s": rates["peer"]},
        "ratio_cpu": round(peer.cpu_s / ours.cpu_s, 3),
        "ratio_wall": round(peer.wall_s / ours.wall_s, 3),
        "ratio_memory": None,  # one process holds both
    }
    say(line, options.json)
    provenance(options.json)


if __name__ == "__main__":
    main()
