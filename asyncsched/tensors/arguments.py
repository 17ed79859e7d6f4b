"""What may be given to functions and methods of tensors, and what to write where something may not.

Operands are tensors and numbers. Options reach the operations in a form that is hashable. Keywords of NumPy's and
PyTorch's that the array API calls otherwise raise a TypeError that names what to write here: Python itself refuses such
a call, before any line of the function runs. So the functions that have axes are wrapped: a call that is right pays for
the wrapper alone (some 0.2 us), a wrong one is looked at. No other function pays anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from operator import index
from types import CoroutineType, FunctionType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .awaitables import ToCome
from .handles import Handle

NUMBERS: tuple[type[Any], ...] = (bool, int, float, complex)
_KINDS = "biufc"  # bool, integers, floats and complex: what the operations know
# By the name that others give it: the names it may have here.
_OURS = {
    **dict.fromkeys(("axis", "dim", "dims"), ("axis", "axes")),
    **dict.fromkeys(("ddof", "correction"), ("ddof", "correction")),
    "keepdim": ("keepdims",),
}
_TOLD = {ours for names in _OURS.values() for ours in names}


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
    """Have those of the functions that take axes name the keyword that was meant."""
    for name in names:
        function = namespace[name]
        if isinstance(function, FunctionType) and not _TOLD.isdisjoint(_parameters(function)):
            namespace[name] = _naming(function)


def _naming(function: FunctionType) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError as error:
            refused = error.__traceback__
            if refused is not None and refused.tb_next is None:  # no line of the function has run
                meant = _keywords_meant(function, args, options)
                if meant:
                    error.args = (f"{error}: use {meant}",)
            raise

    return call


def _keywords_meant(function: FunctionType, args: tuple[Any, ...], options: Iterable[str]) -> str:
    known = _parameters(function)
    meant = [ours for name in options if name not in known for ours in _OURS.get(name, ()) if ours in known]
    if len(args) > function.__code__.co_argcount and not meant:  # what NumPy takes by position
        meant = [name for name in known[function.__code__.co_argcount :] if name not in options][:1]
    return ", ".join(f"`{name}=`" for name in meant)


def _parameters(function: FunctionType) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
