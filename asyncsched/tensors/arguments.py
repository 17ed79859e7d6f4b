"""What may be given to functions and methods of tensors, and what to write where something may not.

Operands are tensors and numbers. Options reach the operations in a form that is hashable. Keywords of NumPy's and
PyTorch's that the array API calls otherwise raise a TypeError that names what to write here. The functions that have
axes or a shape are wrapped for that; no other function pays anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from types import CoroutineType, FunctionType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .._instead import naming_arguments, parameters
from ..devices.contract import in_stream_thread
from .awaitables import ToCome
from .handles import Handle

NUMBERS: tuple[type[Any], ...] = (bool, int, float, complex)
_KINDS = "biufc"  # bool, integers, floats and complex: what the operations know
# Parameters that others call otherwise, or give otherwise.
_TOLD = {"axis", "axes", "ddof", "correction", "keepdims", "shape", "repetitions"}


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
    """What to write instead of a thing that is no operand; empty if that is not known. A value to come says it."""
    if isinstance(operand, ToCome):
        operand._refuse()
    if isinstance(operand, Handle):
        return "`await` it first, or have `submit(fn, ..., shape=, dtype=)` make it a Tensor"
    if isinstance(operand, CoroutineType):
        return "`await` it first"
    if isinstance(operand, list | tuple) or hasattr(operand, "__dlpack__"):
        if in_stream_thread():
            return "a task's tensors arrive as arrays, so this is called on the event loop: `model(x)`, not by `s.call`"
        return "it is not the scheduler's, and `x = await s.put(a)` makes it a tensor"
    return ""


def _kind(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__name__}".removeprefix("builtins.")


def axes(axis: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """An axis or several."""
    if axis is None or type(axis) is int:  # without this an abstract class is asked
        return axis
    return tuple([index(one) for one in axis]) if isinstance(axis, Sequence) else index(axis)


def dtype_of(dtype: DTypeLike | None) -> np.dtype[Any]:
    """The dtype meant, in this machine's order of bytes, as `put` has it; of None float64, as NumPy's.

    Raises:
        TypeError: for what is none, or is one that a tensor cannot have.
    """
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{dtype!r} is no dtype: use one of NumPy's, as np.float32, int or 'complex64'") from error
    if found.kind not in _KINDS:
        raise TypeError(f"dtype {found} is not supported: a tensor has bool, integers, floats or complex numbers")
    return found if found.isnative else found.newbyteorder("=")


def dtype_or_none(dtype: DTypeLike | None) -> np.dtype[Any] | None:
    """The dtype meant, or None for the default."""
    return None if dtype is None else dtype_of(dtype)


def name_keywords(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Have those of the functions that take axes or a shape name the argument that was meant."""
    for name in names:
        function = namespace[name]
        if isinstance(function, FunctionType) and not _TOLD.isdisjoint(parameters(function)):
            namespace[name] = naming_arguments(function)
