"""The one walker over nested lists, tuples, named tuples and dicts: arguments, results, items of a pipeline.

A leaf is anything else. Subclasses of list and dict (`OrderedDict`, `defaultdict`) are walked like their bases, and
come out as copies of themselves. (The packages `optree` and `torch.utils._pytree` do the same and more; what is walked
here is small, and a dependency of the core would have to earn its place.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any


def map_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same structure with `change` applied to every leaf, in order.

    >>> map_leaves(str, {"a": [1, 2], "b": (3,)})
    {'a': ['1', '2'], 'b': ('3',)}
    """
    kind = type(tree)
    if kind is tuple:
        return tuple([map_leaves(change, part) for part in tree])
    if kind is list:
        return [map_leaves(change, part) for part in tree]
    if kind is dict:
        return {key: map_leaves(change, part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        parts = [map_leaves(change, part) for part in tree]
        return kind(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if isinstance(tree, list | dict):
        mapped = copy(tree)
        for key, part in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
            mapped[key] = map_leaves(change, part)
        return mapped
    return change(tree)


def leaves(tree: Any) -> Iterator[Any]:
    """Every leaf, in order.

    >>> list(leaves({"a": [1, 2], "b": (3,)}))
    [1, 2, 3]
    """
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        yield tree
        return
    for part in tree:
        yield from leaves(part)
