"""What a batch that failed is tried again in: halves, until what makes it fail is alone.

Theory of operation. A batch of n items that fails is cut into two parts, which are computed like batches of their own;
a part that fails is cut again, and a single item that fails keeps its error. So one guilty item takes two runs for each
halving, 2 * ceil(log2(n)) in all; k of them take at most 2k * ceil(log2(n)), since no more than k parts of a size can
fail; and when all are guilty, since the model is broken say, each part there is has been run: 2n - 2, in which each
item was computed ceil(log2(n)) times more. There is no other limit: with one, a client that sends several bad items
would fail others again.

The parts are computed in the order in which they were cut, the large ones first, so whoever is innocent hears soon.
They take turns with the batches that form anew: those who wait in the queue go on, at half the pace at the worst.

What nobody wants any more, since its caller has left or its deadline has passed, is left out of the next part.
"""

from __future__ import annotations

from collections import deque

from .queue import Waiting


class Parts:
    """The parts that are to be computed, the oldest first."""

    def __init__(self) -> None:
        self._parts: deque[list[Waiting]] = deque()
        self._had_turn = False  # a part went last

    def __len__(self) -> int:
        return len(self._parts)

    def cut(self, items: list[Waiting]) -> None:
        """Compute these again: in halves, where there are several."""
        middle = (len(items) + 1) // 2
        self._parts += [part for part in (items[:middle], items[middle:]) if part]

    def take(self, others_wait: bool) -> list[Waiting] | None:
        """The next part; None where it is the turn of a batch that forms anew, for which others wait."""
        self._had_turn = bool(self._parts) and not (others_wait and self._had_turn)
        return self._parts.popleft() if self._had_turn else None

    def empty(self) -> list[Waiting]:
        """Drop everything. Returns what it was."""
        items = [waiting for part in self._parts for waiting in part]
        self._parts.clear()
        return items
