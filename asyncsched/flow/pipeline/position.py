"""How far the consumer of a pipeline has got."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .links import Where, flat


class Received(NamedTuple):
    """Tells, on any thread, whether an item was received before."""

    taken: int
    ahead: frozenset[int]

    def __call__(self, number: int) -> bool:
        return number < self.taken or number in self.ahead


@dataclass
class Position:
    """Which items of the source the consumer has received, in which epoch."""

    epoch: int = 0
    taken: int = 0
    """All items below this number were received."""
    ahead: set[int] = field(default_factory=set)
    """These were, too: results that came out of order."""

    def receive(self, where: Where) -> None:
        """Count what was made of these items as received."""
        for number in flat(where):
            self.ahead.add(number)
        while self.taken in self.ahead:
            self.ahead.remove(self.taken)
            self.taken += 1

    def received(self) -> Received:
        return Received(self.taken, frozenset(self.ahead))

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": self.taken, "ahead": sorted(self.ahead)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Position:
        """What `state()` gave. Raises ValueError for anything else."""
        try:
            epoch, taken, ahead = state["epoch"], state["taken"], state["ahead"]
            numbers = [epoch, taken, *ahead]
        except (KeyError, TypeError):
            raise ValueError(f"not a state of a pipeline: {state!r}; load what `state_dict()` gave") from None
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError(f"the state of a pipeline is made of counts, not {state!r}: load what `state_dict()` gave")
        return cls(epoch, taken, set(ahead))
