"""What may stand beside a tensor in an operation, and what to write where something may not."""

from __future__ import annotations

from types import CoroutineType
from typing import Any

import numpy as np

from .handles import Handle

NUMBERS: tuple[type[Any], ...] = (bool, int, float, complex)


def scalar(operand: object) -> Any:
    """A number as it is given to a kernel.

    Raises:
        TypeError: for what is none, with the cure.
    """
    if type(operand) in NUMBERS or isinstance(operand, np.generic):
        return operand
    for kind in NUMBERS:  # an IntEnum is the int that it is
        if isinstance(operand, kind):
            return kind(operand)
    cure = _cure(operand) or "use a Tensor, a Python number or a NumPy scalar"
    raise TypeError(f"{_kind(operand)} is no operand: {cure}")


def declined(other: object) -> Any:
    """What an operator gives for what is no operand: the other's turn, but for what has none.

    Raises:
        TypeError: for arrays, lists and what was not awaited, with the cure.
    """
    if cure := _cure(other):
        raise TypeError(f"{_kind(other)} is no operand: {cure}")
    return NotImplemented


def _cure(operand: object) -> str:
    """What to write instead of a thing that is no operand; empty if that is not known."""
    if isinstance(operand, Handle):
        return "`await` it first, or have `submit(fn, ..., shape=, dtype=)` make it a Tensor"
    if isinstance(operand, CoroutineType):
        return "`await` it first"
    if isinstance(operand, list | tuple) or hasattr(operand, "__dlpack__"):
        return "it is not the scheduler's, and `x = await s.put(a)` makes it a tensor"
    return ""


def _kind(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__name__}".removeprefix("builtins.")
