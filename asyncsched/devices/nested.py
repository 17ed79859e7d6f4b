"""Arguments and results that are nested in lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def rebuild(arg: Any, change: Callable[[Any], Any]) -> Any:
    """A list, tuple, named tuple or dict with `change` applied to its members; anything else as it is."""
    kind = type(arg)
    if kind is list:
        return [change(a) for a in arg]
    if kind is dict:
        return {k: change(a) for k, a in arg.items()}
    if isinstance(arg, tuple):
        members = [change(a) for a in arg]
        return kind(*members) if hasattr(arg, "_fields") else tuple(members)
    return arg
