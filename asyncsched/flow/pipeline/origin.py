"""Which items of the source something in a pipeline was made of."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

import numpy as np

_NUMBERS = (int, float, np.integer)
_FIELDS, _TEXT = 4, 200  # of a tuple; characters of a text: of a path, and not of a document

Origin: TypeAlias = "int | tuple[Origin, ...]"
"""An item's number in the source, or those of a whole batch, which may be nested."""


def numbers_of(origin: Origin) -> list[int]:
    """
    >>> numbers_of(((0, 1), (2, 3)))
    [0, 1, 2, 3]
    """
    return [origin] if isinstance(origin, int) else [number for part in origin for number in numbers_of(part)]


def describe(origin: Origin) -> str:
    """
    >>> describe((8, 9, 10, 11))
    'items 8 to 11 of the source'
    """
    if isinstance(origin, int):
        return f"item {origin} of the source"
    if not (numbers := numbers_of(origin)):
        return "no item of the source"
    return f"items {min(numbers)} to {max(numbers)} of the source"


def brief(item: Any) -> str:
    """An item in a few words, where it is a path or an index, say, or a tuple of such; else nothing.

    >>> brief(("a.png", 3)), brief([0.5] * 1000)
    ("('a.png', 3)", '')
    """
    return repr(item) if _is_brief(item) else ""


def _is_brief(item: Any) -> bool:
    if isinstance(item, tuple):
        return len(item) <= _FIELDS and all(map(_is_brief, item))
    return isinstance(item, _NUMBERS) or (isinstance(item, str | os.PathLike) and len(os.fspath(item)) <= _TEXT)
