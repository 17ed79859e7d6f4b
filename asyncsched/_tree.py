"""The one walker over nested lists, tuples, named tuples and dicts: arguments, results, items of a pipeline.

A leaf is anything else. Subclasses of list and dict (`OrderedDict`, `defaultdict`) are walked like their bases, and
come out as copies of themselves. What has no leaf that changed comes out as it is, no copy: a function that was given a
list may mean to change it. (The packages `optree` and `torch.utils._pytree` do the same and more; what is walked here
is small, and a dependency of the core would have to earn its place.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from operator import is_
from typing import Any

_NESTED = (tuple, list, dict)
_FEW = 16  # parts that are looked at one by one; a guess


def map_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same structure with `change` applied to every leaf, in order.

    >>> map_leaves(str, {"a": [1, 2], "b": (3,)})
    {'a': ['1', '2'], 'b': ('3',)}
    """
    kind = type(tree)
    if not isinstance(tree, _NESTED):
        return change(tree)
    if isinstance(tree, dict):
        changed = {key: map_leaves(change, part) for key, part in tree.items()}
        if all(map(is_, changed.values(), tree.values())):
            return tree
        return changed if kind is dict else _with(tree, changed.items())
    # A leaf is changed here, and not a call further down: most arguments are a few leaves.
    parts = [map_leaves(change, part) if isinstance(part, _NESTED) else change(part) for part in tree]
    if all(map(is_, parts, tree)):
        return tree
    if kind is list:
        return parts
    if isinstance(tree, list):
        return _with(tree, enumerate(parts))
    return kind(*parts) if hasattr(tree, "_fields") else tuple(parts)


def _with(tree: Any, parts: Iterable[tuple[Any, Any]]) -> Any:
    """A copy of an instance of a class derived from list or dict, with these parts."""
    mapped = copy(tree)
    for key, part in parts:
        mapped[key] = part
    return mapped


def leaves(tree: Any) -> list[Any]:
    """Every leaf, in order.

    >>> leaves({"a": [1, 2], "b": (3,)})
    [1, 2, 3]
    """
    found: list[Any] = []

    def note(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_leaves(note, tree)
    return found


def find(kinds: tuple[type, ...], tree: Any) -> list[Any]:
    """The leaves of some types, in whatever order.

    For what a user gives and takes, which may have a million parts, be nested deeper than calls may be, or contain
    itself. So each list is looked at once, and where none of its parts is of interest by their types alone.

    >>> find((str,), [1, ("a", {2: "b"})])
    ['a', 'b']
    """
    if not isinstance(tree, _NESTED):
        return [tree] if isinstance(tree, kinds) else []
    found: list[Any] = []
    seen: dict[int, Any] = {}
    todo: list[Any] = [tree]
    wanted = kinds + _NESTED
    for part in todo:
        if isinstance(part, kinds):
            found.append(part)
        elif id(part) not in seen:  # all others in here are nested
            seen[id(part)] = part
            parts = part.values() if isinstance(part, dict) else part
            there = wanted
            if len(part) > _FEW:
                there = tuple([kind for kind in set(map(type, parts)) if issubclass(kind, wanted)])
            todo += [inner for inner in parts if isinstance(inner, there)]
    return found
