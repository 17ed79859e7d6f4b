"""Batches made of items: of a list of them, or as the items come.

Theory of operation. Stacking arrays takes as many bytes again as they have, and meanwhile the arrays of the next batch
come. With the batch that the consumer has, these are the bytes of four batches. So the arrays of a large batch are
copied, a part at a time, into the batch's array (`Packed`), and their memory is free for the items to come: then it is
three at most. A `Row` takes the place of each. If `collate` finds all rows of an array, in order, that array is their
stack. An array that does not fit, or that `numpy.stack` would not just copy, stays as it is; then `collate` stacks all
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ..._tree import find, map_leaves
from ...tensors.handles import Handle
from .marks import PLAIN, Marked
from .position import Origin
from .stages import Numbered

PACKED: Final = object()  # the result of a call that packed a part of a batch, in place of a batch
_PART = 1 << 19  # bytes that are packed at a time, at least: worth a hop to the thread; a guess
_PARTS = 2  # of a batch, at most. With four an epoch took a tenth more time, and the same memory


Collate = Callable[[list[Any]], Any]


class Row(NamedTuple):
    """In place of an item's array: where it is now."""

    whole: np.ndarray[Any, Any]
    number: int


class Packed(list[Any]):
    """The items of a batch, whose arrays are packed as they come, unless the user collates them.

    One thread packs while another adds. Neither touches items of the other.

    Args:
        first: the first item that will be added, which tells the size of others.

    Attributes:
        part: how many items are worth being packed together.
    """

    def __init__(self, size: int, collate: Collate | None, first: Any) -> None:
        super().__init__()
        self._size = size
        self._collate = collate
        self.part: int = size
        if collate is None and type(first) not in PLAIN:
            arrays = find((np.ndarray,), first.item if type(first) is Marked else first)
            nbytes = sum([array.nbytes for array in arrays])
            self.part = max(-(-size // _PARTS), _PART // max(nbytes, 1))
        self._done = 0  # number of items that are packed
        self._wholes: list[np.ndarray[Any, Any] | None] = []  # for each leaf of the first item
        self._leaf = 0
        self._origins: list[Origin] = []
        self._marks: dict[int, Marked] = {}  # by number, of items that may be written to; emptied as they are packed

    def add(self, items: list[Numbered]) -> None:
        """Add some items, which may be marked."""
        for number, (origin, given) in enumerate(items, len(self)):
            self._origins.append(origin)
            if type(given) is Marked:
                self._marks[number] = given
                given = given.item
            self.append(given)

    def origins(self) -> tuple[Origin, ...]:
        """Where its items came from."""
        return tuple(self._origins)

    def pack(self) -> object:
        """Pack the items that came since the last time. Items that cannot be packed stay as they are.

        Raises:
            RuntimeError: if one was written to before it was packed.
        """
        first, end = self._done, len(self)
        try:
            while self._done < end:
                self._leaf = 0
                self[self._done] = map_leaves(self._packed, self[self._done])
                self._done += 1
        except Exception:  # there is no memory, say: perhaps there is some at the end
            self._done = self._size
        self._check(first, min(self._done, end))
        return PACKED

    def _check(self, first: int, end: int) -> None:
        if self._marks:
            for number in range(first, end):
                if (given := self._marks.pop(number, None)) is not None:
                    given.check(self._origins[number])

    def _packed(self, leaf: Any) -> Any:
        place, self._leaf = self._leaf, self._leaf + 1
        if not self._done:
            self._wholes.append(self._whole(leaf))
        whole = self._wholes[place] if place < len(self._wholes) else None
        if whole is None or type(leaf) is not np.ndarray or (leaf.shape, leaf.dtype) != (whole.shape[1:], whole.dtype):
            return leaf
        whole[self._done] = leaf
        return Row(whole, self._done)

    def _whole(self, leaf: Any) -> np.ndarray[Any, Any] | None:
        """Room for all arrays like this one."""
        if type(leaf) is not np.ndarray or not leaf.flags.c_contiguous:
            return None
        return np.empty((self._size, *leaf.shape), leaf.dtype) if leaf.dtype.isbuiltin == 1 else None

    def collate(self) -> Any:
        """The batch."""
        if self._collate is not None:  # which may write to the items
            self._check(0, len(self))
            return self._collate([*self])
        if self._done and len(self) == self._size:
            self.pack()
        batch = collate(self)
        self._check(0, len(self))
        return batch


def collate(items: Sequence[Any]) -> Any:
    """Stack items along a new first axis, as PyTorch's DataLoader does by default.

    Arrays, objects that NumPy takes for arrays (PyTorch's tensors on the CPU) and Python or NumPy numbers become one
    array of shape (len(items), ...), in NumPy's dtype for them. Tuples and lists become a tuple, named tuples one of
    their kind, dicts and other mappings a dict, with each field collated. Anything else (text, bytes, None, tensors of
    a scheduler) becomes a list. PyTorch differs: it refuses types that it does not know, and makes a list also of
    tuples.

    Raises:
        ValueError: if shapes, lengths or keys differ between items.
    """
    if Row in map(type, items):
        whole = items[0].whole if type(items[0]) is Row else ()
        if len(items) == len(whole) and all(type(row) is Row and row.whole is whole for row in items):
            return whole
        items = [item.whole[item.number] if type(item) is Row else item for item in items]
    first = items[0]
    if isinstance(first, Mapping):
        _must_agree("keys", [item.keys() for item in items])
        return {key: collate([item[key] for item in items]) for key in first}
    if isinstance(first, tuple | list):
        _must_agree("length", [len(item) for item in items])
        fields = [collate(field) for field in zip(*items, strict=True)]
        return type(first)(*fields) if hasattr(first, "_fields") else tuple(fields)
    if isinstance(first, np.ndarray):
        _must_agree("shape", [np.shape(item) for item in items])
        masked = any(isinstance(item, np.ma.MaskedArray) for item in items)
        return np.ma.stack(items) if masked else np.stack(items)  # `np.stack` would drop masks
    if hasattr(first, "__array__") and not isinstance(first, np.generic | Handle):
        return collate([np.asarray(item) for item in items])
    if isinstance(first, bool | int | float | complex | np.generic):
        return np.array(items)
    return list(items)


def _must_agree(what: str, found: Sequence[Any]) -> None:
    for i, other in enumerate(found):
        if other != found[0]:
            raise ValueError(
                f"the items of a batch differ in {what}: {found[0]} and, at {i}, {other};"
                " make them alike in a `.map` before, or pass `.batch(..., collate=fn)`"
            )
