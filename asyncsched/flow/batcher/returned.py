"""What a function of a batch may return: one result for each item, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set, ValuesView
from itertools import islice
from typing import Any

from ..._arguments import is_table
from .queue import Words


def one_each(returned: Any, wanted: int, name: str, words: Words) -> list[Any]:
    """What a function of a batch returned, as a list of one result for each item.

    Raises:
        TypeError, ValueError: if it is none.
    """
    if type(returned) is list and len(returned) == wanted:  # as almost always
        return returned
    if (refused := _refused(returned)) is not None:
        raise TypeError(f"{name} must return a list of {words.results}, one per {words.item}, not {refused}")
    results = list(islice(returned, max(wanted, len(returned)) + 1))  # not more, where it has no end
    if len(results) != wanted:
        raise ValueError(
            f"{name} got {wanted} {words.item}s and returned {len(results)} {words.results}: return one per"
            f" {words.item}, in order"
        )
    if not isinstance(returned, Sequence | ValuesView) and not getattr(returned, "shape", ()):
        kind = type(returned).__name__  # its length may be that of its rows, while it iterates over something else
        raise TypeError(f"{name} must return a list of {words.results}, one per {words.item}, and not a {kind}")
    return results


def _refused(returned: Any) -> str | None:
    """What is no row of results for a batch, in words: also what might have as many parts as there are items by
    chance."""
    kind = type(returned).__name__
    if getattr(returned, "ndim", 1) == 0:  # an array without axes: its length raises
        return "a single number"
    if isinstance(returned, tuple):  # the results of a function that returns several, each for all items
        return f"{kind}: `list(zip(*parts))` of arrays of all items gives each item its own; else make a list of it"
    if is_table(returned):
        return f"{kind}, which iterates over its columns: give its rows, as by `to_numpy()`"
    if not hasattr(returned, "__len__") or isinstance(returned, Mapping | Set | str | bytes | bytearray):
        return kind
    return None
