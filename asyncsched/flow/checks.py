"""Arguments out of their range, told at the line that gave them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any


def positive(name: str, value: int, least: int = 1) -> None:
    """Raise unless `value` is an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


def must_pickle(fn: Callable[[Any], Any], name: str) -> None:
    """Raise unless another process can get this function."""
    try:
        pickle.dumps(fn)
    except Exception as error:
        raise TypeError(
            f"processes need a function that can be pickled: define {name} at the top of a module"
        ) from error
