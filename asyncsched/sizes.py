"""Sizes in bytes, as an int or as text."""

from __future__ import annotations

import re

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(size: int | str, name: str = "size") -> int:
    """`size` in bytes: an int, or text such as "256 MiB", "1.5 GB".

    Raises:
        ValueError: if it is neither, not positive, or of an unknown unit.
        TypeError: if it is of another type.
    """
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f'{name} is an int of bytes or text such as "256 MiB", not {type(size).__name__}')
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise ValueError(f'{name}={size!r} is no size: use an int of bytes or text such as "256 MiB" or "1.5 GB"')
        size = int(float(match[1]) * unit)
    if size <= 0:
        raise ValueError(f"{name} must be positive, not {size}: use None for no bound")
    return size
