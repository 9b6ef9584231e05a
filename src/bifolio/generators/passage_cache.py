"""Passages that a decoder-only model has read, kept: exact, bounded in bytes, least recently used first out.

Every passage is read alone and first in its prompt, so its keys and values depend on nothing but its own tokens and the
model (MATH section 7): what is kept is what would be computed again. Impossible where passages are concatenated.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from bifolio.errors import UsageError

KeysValues = tuple[tuple[Tensor, Tensor], ...]
"""For each layer keys and values, (key heads, L, d) each."""


@dataclass(frozen=True)
class CacheStatistics:
    """What a passage cache has done so far.

    Attributes:
        hits: Passages that were there.
        misses: Passages that had to be read.
        evicted: Passages that made room for others.
        passages: Passages that it holds now.
        bytes: What they take.
        capacity: What they may take.
    """

    hits: int
    misses: int
    evicted: int
    passages: int
    bytes: int
    capacity: int


class PassageCache:
    """Keys and values by token ids. Safe to use from many threads; entries are never changed."""

    def __init__(self, capacity: int) -> None:
        """Hold at most ``capacity`` bytes; 0 keeps nothing.

        Raises:
            UsageError: the capacity is negative.
        """
        if capacity < 0:
            raise UsageError(f"cache of {capacity} bytes: expected 0 (none) or more")
        self._capacity = capacity
        self._entries: OrderedDict[Hashable, KeysValues] = OrderedDict()
        self._bytes = self._hits = self._misses = self._evicted = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> KeysValues | None:
        """What is kept under ``key``, which becomes the most recently used; None if it must be read."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._entries.move_to_end(key)
            self._hits += 1
            return entry

    def put(self, key: Hashable, entry: KeysValues) -> None:
        """Keep an entry, if it fits at all, at the cost of the least recently used ones."""
        size = _size(entry)
        with self._lock:
            if size > self._capacity:
                return
            if key in self._entries:
                self._bytes -= _size(self._entries.pop(key))
            while self._bytes + size > self._capacity:
                self._bytes -= _size(self._entries.popitem(last=False)[1])
                self._evicted += 1
            self._entries[key] = entry
            self._bytes += size

    def clear(self) -> None:
        """Forget all entries, for weights that have changed; the statistics go on."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    @property
    def statistics(self) -> CacheStatistics:
        """What it has done so far."""
        with self._lock:
            return CacheStatistics(
                self._hits, self._misses, self._evicted, len(self._entries), self._bytes, self._capacity
            )


def _size(entry: KeysValues) -> int:
    return sum(keys.nbytes + values.nbytes for keys, values in entry)
