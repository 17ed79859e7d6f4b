"""How long batches take, and so by when an item can be computed.

Theory of operation. A batch of an item may take as long as one of a hundred, or a hundredth of it. So there is a time
for each size, in powers of two. A size that was never seen takes as long as the nearest one that was. An item waits for
the batches that are computed now, for the batches before its own, and for its own. Items that could not be in time are
refused when they come (`Queue.check_time`). Items that can no longer be in time, since batches took longer than before,
are refused after a batch (`Queue.shed`), the later ones first, so that those before them can be. A batch takes no item
with which those in it would be late (`Queue.form`).

Nothing is refused without a measurement. One item is let through if nothing else waits or is computed, so that a single
stall is forgotten. A batch needs no more for each item than smaller ones did that were computed later: else a size that
was slow once would never be tried again.

Alternatives. The rate of items: after a quiet time it is the rate of lone items. Not to begin what would be late, and
nothing else: then the queue is full of items that are just too late, and each that is in time takes the place of
several that could have been. The newest item first: half of those that were let in are never computed.
"""

from __future__ import annotations

from math import ceil, frexp
from typing import Final

from ...errors import QueueFull
from ...runtime.rates import Took

SAFE: Final = 0.9  # of the time to a deadline is given away, since times vary


class Size(Took):
    """How long batches of a size take, for a cost of 1."""

    at: float = 0.0  # when that was last measured


class Pace:
    """The time that batches take, by their cost, and the batches that are computed now.

    Args:
        most: the most that a batch may cost.
        concurrency: how many batches are computed at a time.
        weights: of the last time, and of one that is longer: see `Took`.
    """

    def __init__(self, most: float, concurrency: int, *weights: float) -> None:
        self.full: float = most  # what a batch costs that leaves items behind
        self.running: dict[int, tuple[float, float]] = {}  # the cost of each batch, and when it began
        self._concurrency = concurrency
        self._weights = weights
        self._took: dict[int, Size] = {}

    def add(self, cost: float, seconds: float, now: float) -> None:
        """A batch took so long."""
        if cost:
            took = self._took.setdefault(_size(cost), Size(*self._weights))
            if took.add(seconds / cost):
                self._took = {_size(cost): took}  # what was known of the others is true no longer
            took.at = now

    def formed(self, cost: float, leaves: bool) -> None:
        """A batch of this cost begins. `leaves`: it leaves items behind."""
        if cost and (leaves or cost > self.full):
            self.full += (cost - self.full) / 8

    def seconds(self, cost: float, now: float) -> float:
        """How long a batch of this cost takes; 0 before the first."""
        if not self._took:
            return 0.0
        size = _size(cost)
        known = size if size in self._took else min(self._took, key=lambda one: abs(one - size))
        each, at = self._took[known].mean, self._took[known].at
        if len(self._took) > 1:
            each = min([each, *[one.mean for size, one in self._took.items() if size < known and one.at > at]])
        return each * min(max(cost, 2.0 ** (known - 1)), 2.0**known)

    def expected(self, cost: float, now: float) -> float:
        """Seconds until the last of items of this cost, all together, is computed; 0 before the first measurement."""
        running = sum([max(0.0, self.seconds(one, now) - (now - began)) for one, began in self.running.values()])
        before = ceil(cost / self.full) - 1
        if before <= 0:
            return running / self._concurrency + self.seconds(cost, now)
        full = self.seconds(self.full, now)
        return (running + before * full) / self._concurrency + full


def _size(cost: float) -> int:
    return frexp(cost)[1]


def too_late(seconds: float, left: float) -> QueueFull:
    """The error for an item whose result would come after its deadline."""
    full = QueueFull(
        f"the items before it and its own batch are likely to take {seconds:.3g} s, and its deadline is in {left:.3g} s"
        ": come back later, or allow more with `s.scope(deadline=)`"
    )
    full.retry_after = max(0.0, seconds - SAFE * left)
    return full
