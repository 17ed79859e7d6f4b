"""The one walker over nested lists, tuples, named tuples and dicts: arguments, results, items of a pipeline.

Anything else is a leaf. Subclasses of list and dict (`OrderedDict`, `defaultdict`) are walked like their bases, and
changed copies have their class. A structure without a changed leaf is returned as it is, not as a copy: a function that
was given a list may mean to change it. (The packages `optree` and `torch.utils._pytree` do the same and more, but the
structures here are small, and a dependency of the core would have to earn its place.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from operator import is_
from typing import Any

_NESTED = (tuple, list, dict)
_FEW = 16  # parts that are checked one by one; a guess


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
        return changed if kind is dict else _copy_with(tree, changed.items())
    # Leaves are changed here, not one call deeper: most arguments are a few leaves.
    parts = [map_leaves(change, part) if isinstance(part, _NESTED) else change(part) for part in tree]
    if all(map(is_, parts, tree)):
        return tree
    if kind is list:
        return parts
    if isinstance(tree, list):
        return _copy_with(tree, enumerate(parts))
    if hasattr(kind, "_make"):  # not by calling it: a named tuple's class may take other arguments
        return kind._make(parts)
    return kind(parts) if hasattr(kind, "n_fields") else tuple(parts)  # as `time.struct_time`


def _copy_with(tree: Any, parts: Iterable[tuple[Any, Any]]) -> Any:
    """A copy of an instance of a class derived from list or dict, with these parts."""
    mapped = copy(tree)
    for key, part in parts:
        mapped[key] = part
    return mapped


def leaves(tree: Any) -> list[Any]:
    """All leaves, in order.

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
    """The leaves of some types, in no particular order.

    For structures of the user's, which may have a million parts, be nested deeper than calls may be, or contain
    themselves. So each list is examined once, and is skipped if the types of its parts show that none is of interest.

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
        elif id(part) not in seen:  # all others in `todo` are nested
            seen[id(part)] = part
            parts = part.values() if isinstance(part, dict) else part
            there = wanted
            if len(part) > _FEW:
                there = tuple([kind for kind in set(map(type, parts)) if issubclass(kind, wanted)])
            todo += [inner for inner in parts if isinstance(inner, there)]
    return found
