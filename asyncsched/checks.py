"""Arguments out of their range, told at the line that gave them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np


def check_int(name: str, value: object, least: int = 1, *, none: str = "") -> None:
    """Raise unless `value` is an int of at least `least`, or None if that means something: `none` says what."""
    if none and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int{' or None' if none else ''}, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}{_instead(none)}")


def check_number(name: str, value: Any, unit: str = "", *, zero: bool = False, none: str = "") -> None:
    """Raise unless `value` is finite and above 0, or 0 if `zero`, or None if that means something: `none` says what."""
    if none and value is None:
        return
    what = f"number of {unit}" if unit else "number"
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a {what}{' or None' if none else ''}, not {type(value).__name__}")
    if not 0 <= value < inf or (value == 0 and not zero):
        least = "of at least 0" if zero else "above 0"
        raise ValueError(f"{name} must be a finite {what} {least}, not {value!r}{_instead(none)}")


def check_pickles(fn: Callable[[Any], Any], name: str) -> None:
    """Raise unless another process can get this function."""
    try:
        pickle.dumps(fn)
    except Exception as error:
        raise TypeError(
            f"processes need a function that can be pickled: define {name} at the top of a module"
        ) from error


def _instead(none: str) -> str:
    return f": use None for {none}" if none else ""
