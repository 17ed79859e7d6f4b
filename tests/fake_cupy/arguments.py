"""Arrays among the arguments and results of functions, in lists, tuples and dicts too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from asyncsched._tree import leaves, map_leaves


class View:
    """A NumPy array on device memory, to be used on the GPU's thread."""

    def __init__(self, array: Any) -> None:
        self.array = array


def is_array(leaf: Any) -> bool:
    from .arrays import ndarray

    return isinstance(leaf, ndarray)


def arrays_in(found: Any) -> list[Any]:
    return list(filter(is_array, leaves(found)))


def replace(found: Any, change: Callable[[Any], Any]) -> Any:
    return map_leaves(lambda leaf: change(leaf) if is_array(leaf) else leaf, found)


def opened(found: Any) -> Any:
    return map_leaves(lambda leaf: leaf.array if isinstance(leaf, View) else leaf, found)


def flat(found: Any) -> list[Any]:
    return [leaf for leaf in leaves(found) if leaf is not None]


def like(found: Any, results: Iterator[Any]) -> Any:
    """The results in the same lists and tuples."""
    return map_leaves(lambda leaf: None if leaf is None else next(results), found)


def refuse_numpy(found: Any) -> None:
    for leaf in leaves(found):
        if isinstance(leaf, np.ndarray):
            raise TypeError(f"Unsupported type {type(leaf)}")
