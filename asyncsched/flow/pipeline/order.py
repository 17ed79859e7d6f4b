"""What kind of a thing a source is, and in which order its items are read."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

_IN_MEMORY = (list, tuple, range, np.ndarray)


class Arranged:
    """The items of a source in an order: `source[order[i]]` for i from 0."""

    def __init__(self, source: Any, order: Any) -> None:
        self.source = source
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> Any:
        return self.source[self.index(number)]

    def index(self, number: int) -> int:
        """Where the item of this number stands in the source."""
        return operator.index(self.order[number])


def arranged(source: Any, order: Any, epoch: int) -> Any:
    """What an epoch reads. Raises TypeError where the source or the order is none for that."""
    if order is None:
        return source
    check_indexed(source)
    found = order(epoch) if callable(order) else order
    if not _is_indexed(found):
        found = list(found)  # a sampler's
    check_order(found)
    return Arranged(source, found)


def check_indexed(source: Any) -> None:
    if not _is_indexed(source):
        raise TypeError(
            "order= takes the items by index: the source needs `__getitem__` and `__len__`, as PyTorch's datasets have"
            f" them, which {type(source).__name__} has not; give others a `.shuffle(buffer_size, seed=0)`"
        )


def check_order(order: Any) -> None:
    if callable(order) or (is_iterable(order) and not is_iterator(order)):
        if isinstance(order, np.ndarray) and (order.ndim != 1 or order.dtype.kind not in "iu"):
            raise TypeError(f"order= is one axis of integers, not {order.ndim} of {order.dtype}: see `np.flatnonzero`")
        return
    raise TypeError(
        "order= is a sequence of indices, a sampler that can be iterated over again, or a function of the epoch's"
        f" number that returns one, not {type(order).__name__}"
    )


def is_iterable(source: Any) -> bool:
    """Whether it can be iterated, also asynchronously, or by `__getitem__` alone."""
    return any(hasattr(source, name) for name in ("__aiter__", "__iter__", "__getitem__"))


def is_iterator(source: Any) -> bool:
    """Whether it can be read only once."""
    return hasattr(source, "__next__") or hasattr(source, "__anext__")


def is_in_memory(source: Any) -> bool:
    """Whether its items are had at once, by index."""
    if isinstance(source, Arranged):
        return is_in_memory(source.source) and is_in_memory(source.order)
    return type(source) in _IN_MEMORY


def is_map(source: Any) -> bool:
    """Whether it is read by index, since all that iterates over it would do so, and end at an IndexError."""
    return getattr(type(source), "__iter__", None) in (None, Sequence.__iter__) and _is_indexed(source)


def _is_indexed(source: Any) -> bool:
    return hasattr(source, "__len__") and hasattr(source, "__getitem__")
