"""How far the consumer of a pipeline has got, in which epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .origin import Origin, numbers_of


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

    def receive(self, origin: Origin) -> None:
        """Count what was made of these items as received."""
        self.ahead.update(numbers_of(origin))
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


class Progress:
    """Which epoch of a pipeline is open or the next, and where it begins."""

    def __init__(self) -> None:
        self.position = Position()
        self._open = False
        self._left = False  # an epoch was begun, and neither read to its end nor taken up again by `load`

    def must_rest(self) -> None:
        if self._open:
            raise RuntimeError("an epoch of this pipeline is open: leave its block first, or make another pipeline")

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.must_rest()
        self.position = Position.of(state)
        self._left = False

    def begin(self) -> Position:
        """An epoch is opened. Returns where it begins."""
        if self._left:
            self._next()
        self._left = self._open = True
        return self.position

    def finish(self) -> None:
        """The consumer has reached the end of an epoch."""
        if self._left:
            self._next()

    def close(self) -> None:
        """The epoch was closed."""
        self._open = False

    def undo(self) -> None:
        """The epoch could not be opened: it is still to come."""
        self._left = False

    def _next(self) -> None:
        self.position = Position(self.position.epoch + 1)
        self._left = False
