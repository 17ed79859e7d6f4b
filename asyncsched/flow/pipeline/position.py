"""How far the consumer of a pipeline has got, in which epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .origin import Origin, numbers_of


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

    def has(self, number: int) -> bool:
        """Whether the item of this number was received."""
        return number < self.taken or number in self.ahead

    def copy(self) -> Position:
        """What it is now, for another thread."""
        return replace(self, ahead=set(self.ahead))

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
    """Which epoch of a pipeline is open, or the next, and where it begins."""

    def __init__(self) -> None:
        self.position = Position()
        self.open = False
        self.unread = False  # the epoch has begun; it was neither read to its end nor taken up again by `load`

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a position that was saved."""
        self.must_rest()
        self.position, self.unread = Position.of(state), False

    def begin(self) -> Position:
        """An epoch is opened. Returns where it begins."""
        self.finish()
        self.open = True
        return self.position

    def finish(self) -> None:
        """This epoch will not be read any more: the next is another."""
        if self.unread:
            self.position, self.unread = Position(self.position.epoch + 1), False

    def must_rest(self) -> None:
        if self.open:
            raise RuntimeError("an epoch of this pipeline is open: leave its block first, or make another pipeline")
