"""Which items of the source something in a pipeline was made of."""

from __future__ import annotations

from typing import TypeAlias

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
    numbers = numbers_of(origin)
    return f"items {min(numbers)} to {max(numbers)} of the source"
