"""The arguments of functions and methods of tensors: how they are checked, and what the errors say.

Operands are tensors and numbers. Options reach the operations in hashable form. NumPy and PyTorch use other names than
the array API for some keywords: these raise a TypeError that names the right one. Only functions that take axes or a
shape are wrapped for that, so the others pay nothing.
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
from ..ops.meta import CODES
from .awaitables import ToCome
from .handles import Handle

NUMBERS: tuple[type[Any], ...] = (bool, int, float, complex)
# Parameters that other libraries name or pass in another way.
_TOLD = {"axis", "axes", "ddof", "correction", "keepdims", "shape", "repetitions"}


def scalar(operand: object) -> Any:
    """A number in the form that kernels take.

    Raises:
        TypeError: for any other object, with the cure.
    """
    if type(operand) in NUMBERS or isinstance(operand, np.generic):
        return operand
    for kind in NUMBERS:  # an IntEnum becomes an int
        if isinstance(operand, kind):
            return kind(operand)
    cure = _cure(operand) or "use a Tensor, a Python number or a NumPy scalar"
    raise TypeError(f"{kind_of(operand)} is no operand: {cure}")


def declined(other: object) -> Any:
    """Answer an operator for an object that is no operand: NotImplemented, so that its own operator is tried.

    Raises:
        TypeError: for arrays, lists and objects that were not awaited, with the cure.
    """
    if cure := _cure(other):
        raise TypeError(f"{kind_of(other)} is no operand: {cure}")
    return NotImplemented


def _cure(operand: object) -> str:
    """The cure for an object that is no operand; empty if none is known. Raises for a value to come."""
    if isinstance(operand, ToCome):
        operand._refuse()
    if isinstance(operand, Handle):
        return "`await` it first, or let `submit(fn, ..., shape=, dtype=)` make it a Tensor"
    if isinstance(operand, CoroutineType):
        return "`await` it first"
    if isinstance(operand, list | tuple) or hasattr(operand, "__dlpack__"):
        if in_stream_thread():
            return "a task's tensors arrive as arrays: call this on the event loop, as `model(x)`, and not by `s.call`"
        return "`x = await s.put(a)` makes it a tensor"
    return ""


def kind_of(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__name__}".removeprefix("builtins.")


def axes(axis: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """An axis or several, as int or tuple."""
    if axis is None or type(axis) is int:  # without this, an abstract class is asked
        return axis
    return tuple([index(one) for one in axis]) if isinstance(axis, Sequence) else index(axis)


def dtype_of(dtype: DTypeLike | None) -> np.dtype[Any]:
    """The dtype for an argument, in this machine's byte order, as `put` uses it; None is float64, as in NumPy.

    Raises:
        TypeError: for an object that is no dtype, or a dtype that a tensor cannot have.
    """
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{dtype!r} is no dtype: use one of NumPy's, as np.float32, int or 'complex64'") from error
    if found.char not in CODES:
        raise TypeError(f"dtype {found} is not supported: a tensor has bool, integers, floats or complex numbers")
    return found if found.isnative else found.newbyteorder("=")


def dtype_or_none(dtype: DTypeLike | None) -> np.dtype[Any] | None:
    """The dtype for an argument, or None for the default."""
    return None if dtype is None else dtype_of(dtype)


def name_keywords(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Wrap those functions that take axes or a shape, so that an error for a foreign keyword names the right one."""
    for name in names:
        function = namespace[name]
        if isinstance(function, FunctionType) and not _TOLD.isdisjoint(parameters(function)):
            namespace[name] = naming_arguments(function)
