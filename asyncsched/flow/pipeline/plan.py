"""What a pipeline is made of, and how many items come of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from .position import Position
from .sources import is_iterable
from .stages import StagePlan

_UNKNOWN = "the length of this pipeline is not known"


class Plan(NamedTuple):
    """A source, how many items may be read ahead of the first stage, and the stages."""

    source: Any
    buffer: int
    stages: tuple[StagePlan, ...] = ()

    def readable(self) -> Any:
        """What is read in every epoch. Raises TypeError if each has its own."""
        if not is_iterable(self.source):
            raise TypeError(f"{_UNKNOWN}: a function of the epoch makes its source; in its block `len(items)` may be")
        return self.source

    def length(self, iterable: Any, position: Position) -> int:
        """How many items come of this iterable from a position on. Raises TypeError where nobody knows."""
        try:
            count = len(iterable)
        except TypeError as error:
            raise TypeError(f"{_UNKNOWN}: its source, of type {type(iterable).__name__}, has none ({error})") from None
        count = max(0, count - position.taken - len(position.ahead))
        for stage in self.stages:
            count = stage.length(count)
        return count


def unknown_after(label: str, items: int) -> int:
    """The length of what passes a filter."""
    raise TypeError(f"{_UNKNOWN}: `{label}` tells as it goes which items it keeps")
