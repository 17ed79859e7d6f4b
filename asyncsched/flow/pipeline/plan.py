"""What a pipeline is made of, and how many items come of it."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from .order import arranged, is_iterable
from .position import Position
from .stages import StagePlan

_UNKNOWN = "the length of this pipeline is not known"


class Plan(NamedTuple):
    """A source, how many items may be read ahead of the first stage, in which order, and the stages."""

    source: Any
    buffer: int
    order: Any = None
    stages: tuple[StagePlan, ...] = ()

    def read(self, epoch: int) -> Any:
        """What an epoch reads, from functions of its number. Raises TypeError if they return nothing that can be."""
        source = self.source
        if not is_iterable(source):
            source = source(epoch)
            if not is_iterable(source):
                if inspect.iscoroutine(source):
                    source.close()
                raise TypeError(f"the pipeline's source returned a {type(source).__name__}, which is not iterable")
        return arranged(source, self.order, epoch)

    def readable(self, epoch: int) -> Any:
        """The same, where that does not take making a source, which may wait. Raises TypeError elsewhere."""
        if not is_iterable(self.source):
            raise TypeError(f"{_UNKNOWN}: a function of the epoch makes its source; in its block `len(items)` may be")
        return self.read(epoch)

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
