"""Arrays that are written to while they wait in a pipeline.

Theory of operation. A pipeline reads ahead. So a function or a source that fills one buffer, and gives it for each
item, changes the items that wait. Nobody would see it: the consumer gets the right number of wrong items. So an item
with arrays is marked with their content in the thread that made it, before the next one is made. Whoever takes the item
compares. Memory that comes again with the same content is legal, as are views of different parts of one array.

A mark costs a microsecond or two: it has all bytes of a small array, and of a large one some numbers from all over it.
So it may miss a change of few numbers. Not marked are arrays that nobody can write to; files mapped into memory, which
would have to be read; arrays deeper in an item; and items of a list that is the source, since nobody fills them again.
What `flat_map` lists is marked part by part, as it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .position import Origin, describe

PLAIN: Final[set[type[Any]]] = {int, float, str, bytes, type(None)}  # types without arrays, known by one look-up
NESTED = (tuple, list, dict)
_SMALL = 4096  # bytes
_SAMPLES = 64
_FEW = 8  # parts of an item that are looked at

Content = list[tuple[np.ndarray[Any, Any], bytes]]


@dataclass(slots=True)  # no tuple, which would be looked into as an item's
class Marked:
    """An item, and the content of its arrays when the stage of this name gave it."""

    item: Any
    content: Content
    maker: str

    def check(self, origin: Origin) -> Any:
        """The item.

        Raises:
            RuntimeError: if its content is another now.
        """
        for array, content in self.content:
            if _sample(array) != content:
                raise RuntimeError(
                    f"an array that stage {self.maker} gave, for {describe(origin)}, was written to while it waited in"
                    " the pipeline: give a new array each time, as by `buffer.copy()`, and write to none that was given"
                )
        return self.item


def marked(item: Any, maker: str) -> Any:
    """An item with its mark, if it has arrays that somebody could write to."""
    kind = type(item)
    if kind in PLAIN:
        return item
    if kind is np.ndarray:
        arrays = [item]
    elif isinstance(item, NESTED) and len(item) <= _FEW:
        parts = item.values() if isinstance(item, dict) else item
        arrays = [part for part in parts if type(part) is np.ndarray]
    else:
        return item
    content = [(array, _sample(array)) for array in arrays if _may_change(array) and not array.dtype.hasobject]
    return Marked(item, content, maker) if content else item


def _may_change(array: Any) -> bool:
    """Whether somebody could write to an array, directly or through what it is a view of."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return False


def _sample(array: np.ndarray[Any, Any]) -> bytes:
    if array.nbytes <= _SMALL:
        return array.tobytes()
    numbers: Any = array.reshape(-1) if array.flags.c_contiguous else array.flat
    return bytes(numbers[:: array.size // _SAMPLES | 1].tobytes())
