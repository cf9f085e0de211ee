"""A heap of ids from which any id may be removed.

Rule: an entry is alive while its id maps to exactly its key; dead ones are dropped when they surface, and all at once when they
outnumber the living, so memory stays within twice what is alive. push, pop, discard: O(log n) amortised.
"""

from __future__ import annotations

import heapq

Key = tuple[int, ...]

_SLACK = 64


class RemovableHeap:
    """Smallest key first. Keys of living entries must differ."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, str]] = []
        self._alive: dict[str, Key] = {}

    def __len__(self) -> int:
        return len(self._alive)

    def push(self, key: Key, entry_id: str) -> None:
        """Adds an id that is not in the heap."""
        self._alive[entry_id] = key
        heapq.heappush(self._heap, (key, entry_id))

    def discard(self, entry_id: str) -> None:
        """Removes the id if it is there."""
        if self._alive.pop(entry_id, None) is not None and len(self._heap) > 2 * len(self._alive) + _SLACK:
            self._heap = [(key, alive_id) for alive_id, key in self._alive.items()]
            heapq.heapify(self._heap)

    def peek(self) -> tuple[Key, str] | None:
        """The smallest entry; `None` when empty."""
        while self._heap and self._alive.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop(self) -> tuple[Key, str] | None:
        """Removes and returns the smallest entry; `None` when empty."""
        smallest = self.peek()
        if smallest is not None:
            heapq.heappop(self._heap)
            del self._alive[smallest[1]]
        return smallest
