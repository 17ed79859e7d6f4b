"""Arrays among the arguments and results of functions, in lists, tuples and dicts too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


class View:
    """A NumPy array on device memory, to be used on the GPU's thread."""

    def __init__(self, array: Any) -> None:
        self.array = array


def arrays_in(found: Any) -> Iterator[Any]:
    from .arrays import ndarray

    if isinstance(found, ndarray):
        yield found
    elif isinstance(found, list | tuple):
        for member in found:
            yield from arrays_in(member)
    elif isinstance(found, dict):
        for member in found.values():
            yield from arrays_in(member)


def replace(found: Any, change: Callable[[Any], Any]) -> Any:
    from .arrays import ndarray

    if isinstance(found, ndarray):
        return change(found)
    if isinstance(found, list | tuple):
        return type(found)([replace(member, change) for member in found])
    if isinstance(found, dict):
        return {key: replace(member, change) for key, member in found.items()}
    return found


def opened(found: Any) -> Any:
    if isinstance(found, View):
        return found.array
    if isinstance(found, list | tuple):
        return type(found)([opened(member) for member in found])
    if isinstance(found, dict):
        return {key: opened(member) for key, member in found.items()}
    return found


def flat(found: Any) -> list[Any]:
    if isinstance(found, list | tuple):
        return [leaf for member in found for leaf in flat(member)]
    return [] if found is None else [found]


def like(found: Any, results: Iterator[Any]) -> Any:
    """The results in the same lists and tuples."""
    if isinstance(found, list | tuple):
        members = [like(member, results) for member in found]
        return tuple(members) if isinstance(found, tuple) else members
    return None if found is None else next(results)


def refuse_numpy(found: Any) -> None:
    if isinstance(found, np.ndarray):
        raise TypeError(f"Unsupported type {type(found)}")
    if isinstance(found, list | tuple):
        for member in found:
            refuse_numpy(member)
    elif isinstance(found, dict):
        refuse_numpy(list(found.values()))
