"""A dense index as somebody else would write it: brute force, with the checks and the scoring of ``bifolio.topk``."""

from pathlib import Path

import numpy as np

from bifolio.errors import CollectionDamagedError, UsageError
from bifolio.topk import Letting, Part, UsedIds, as_ids, as_queries, as_vectors, best, inner_products, largest_norm


class PlainIndex:
    """Every allowed vector is scored for every question."""

    def __init__(self, dimension, argument=""):
        if dimension < 1 or argument:
            raise UsageError(f"dimension is {dimension}, argument {argument!r}; expected at least 1, and no argument")
        self.vectors, self.ids = np.empty((0, dimension), np.float32), np.empty(0, np.int64)
        self.used = UsedIds()

    def add(self, vectors, ids):
        vectors = as_vectors(vectors, self.vectors.shape[1], "vectors").astype(np.float32)
        largest_norm(vectors, "vectors")
        ids = as_ids(ids, len(vectors), self.used)
        self.used.add(ids)
        self.vectors, self.ids = np.concatenate([self.vectors, vectors]), np.concatenate([self.ids, ids])

    def search(self, queries, k, allowed=None):
        queries, _ = as_queries(queries, self.vectors.shape[1], k, largest_norm(self.vectors, "vectors"))
        kept, count = Letting().through([Part(self.vectors, self.ids, 0.0)], allowed)
        vectors, ids = (self.vectors, self.ids) if kept is None else (self.vectors[kept[0]], self.ids[kept[0]])
        rows = [best(inner_products(query, vectors), ids, k) for query in queries]
        shape = len(queries), min(k, count)
        scores = np.array([row[0] for row in rows], np.float32).reshape(shape)
        return scores, np.array([row[1] for row in rows], np.int64).reshape(shape)

    def save(self, path):
        with Path(path).open("wb") as file:
            np.savez(file, vectors=self.vectors, ids=self.ids)

    @classmethod
    def load(cls, path):
        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as stored:
                index = cls(stored["vectors"].shape[1])
                index.add(stored["vectors"], stored["ids"])
        except Exception as error:  # zip, numpy and the operating system have many ways to say that a file is broken
            raise CollectionDamagedError(f"{path}: no such index ({error})") from error
        return index

    def __len__(self):
        return len(self.ids)
