"""The functions of the standard for these arrays: each of asyncsched's, issued on the background scheduler."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, ParamSpec, TypeVar, cast

import numpy as np

from .._arguments import refuse_mask_or_unit
from .._instead import naming_arguments, parameters
from .._tree import find, map_leaves
from ..background import check_may_block
from ..tensors import functions
from ..tensors.functions import creation, dtypes, manipulation
from ..tensors.tensor import Tensor
from .array import Array, background, explained, in_order, issue, put

P = ParamSpec("P")
T = TypeVar("T")

# Functions that give no array, and so need no scheduler.
_PLAIN = ("broadcast_shapes", "can_cast", "finfo", "iinfo", "isdtype", "result_type")
_OWN = ("asarray", "finfo", "from_dlpack", "meshgrid", "repeat", "reshape", "unique_values")


def _wrapped(function: Callable[P, T], call: Callable[..., Any]) -> Callable[P, T]:
    """A function of tensors as one of arrays, with its name, signature and documentation.

    For an argument that it does not have, the error says what to write.
    """
    plain: Any = inspect.unwrap(function)
    known, most = frozenset(parameters(plain)), plain.__code__.co_argcount
    several = bool(plain.__code__.co_flags & inspect.CO_VARARGS)

    @functools.wraps(function)
    def of_arrays(*args: Any, **options: Any) -> Any:
        if (len(args) > most and not several) or not known.issuperset(options):
            explained(naming_arguments(plain), *args, **options)
        return call(function, *args, **options)

    return cast("Callable[P, T]", of_arrays)


def _own(function: Callable[P, T]) -> Callable[P, T]:
    """The same for a function that takes arrays itself."""
    return _wrapped(function, operator.call)


def _call_plainly(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    given, named = map_leaves(lambda leaf: leaf.dtype if isinstance(leaf, Array) else leaf, (args, options))
    return function(*given, **named)


def namespace(module: ModuleType) -> dict[str, Any]:
    """The names of a module of functions, for arrays. Constants, dtypes and errors are the same."""
    found: dict[str, Any] = {}
    for name in module.__all__:
        thing = getattr(module, name)
        if callable(thing) and not isinstance(thing, type):
            found[name] = _wrapped(thing, _call_plainly if name in _PLAIN else issue)
        elif not isinstance(thing, ModuleType):
            found[name] = thing
    return found


@_own
def asarray(obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None) -> Array:
    """An array of anything that NumPy takes: numbers, nested lists, other libraries' arrays. Waits for room.

    An array of this namespace is returned itself, unless another dtype, another device or a copy is asked for.

    Raises:
        ValueError: if `copy` is False and a copy is needed.
    """
    check_may_block("asarray")
    if isinstance(obj, Array):
        return cast(Array, issue(creation.asarray, obj, dtype=dtype, device=device, copy=copy))
    if copy is False:
        raise ValueError("asarray: an array from outside the scheduler is always copied, so copy=False is impossible")
    refuse_mask_or_unit(obj)
    found = np.asarray(obj, dtype=dtype)
    if dtype is None and (arrays := find((Array,), obj)):
        found = found.astype(functions.result_type(*[x.dtype for x in arrays]), copy=False)
    return put(found, device)


@_own
def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Array:
    """A copy of another library's array. An array of this namespace is shared unless `copy` is True."""
    if isinstance(x, Array):
        return cast(Array, issue(creation.asarray, x, device=device, copy=copy))
    if copy is False:
        raise BufferError("from_dlpack: an array from outside is always copied, so copy=False is impossible")
    return put(x if hasattr(x, "__dlpack__") else np.from_dlpack(x), device)


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a floating-point dtype, as Python's numbers."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype[Any]


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a floating-point dtype, or that of an array; of a complex one those of its parts."""
    found = np.finfo(type.dtype if isinstance(type, Array) else type)
    eps, largest, least, normal = [float(x) for x in (found.eps, found.max, found.min, found.smallest_normal)]
    return FloatInfo(found.bits, eps, largest, least, normal, np.dtype(found.dtype))


@_own
@functools.wraps(creation.meshgrid)
def meshgrid(*arrays: Array, indexing: Literal["xy", "ij"] = "xy") -> tuple[Array, ...]:
    def of_their_own(*tensors: Tensor) -> tuple[Tensor, ...]:  # as NumPy's: it can be written to
        return tuple([x.detach() for x in creation.meshgrid(*tensors, indexing=indexing)])

    return cast("tuple[Array, ...]", issue(of_their_own, *arrays))


@_own
def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Each element `repeats` times along an axis; without one, of the flattened array.

    An array of repeats is waited for: their sum decides how many bytes the result needs.
    """
    if not isinstance(repeats, Array):
        return cast(Array, issue(manipulation.repeat, x, repeats, axis=axis))
    places = (x.size if axis is None else x.shape[axis]) if repeats.size == 1 else 1
    most = max(int(issue(functions.sum, repeats)) * places, 0)
    return cast(Array, issue(manipulation.repeat, x, repeats, axis=axis, maxlength=most))


@_own
def reshape(x: Array, /, shape: int | Sequence[int], *, copy: bool | None = None) -> Array:
    """The elements in another shape, in C order; one length may be -1. A view where NumPy's is.

    The order of results that are computed from strided views is known only when they are there: this waits for them. If
    it joins axes of an array in another order than C, the result is a copy.

    Raises:
        ValueError: if `copy` is False and a copy is needed.
    """

    def reshaped(tensor: Tensor, shape: int | Sequence[int]) -> Tensor:
        found = manipulation.reshape(tensor, shape, copy=copy or None)
        if copy is False and found._node is None:
            raise ValueError(f"reshape: with this array's layout {shape} needs a copy, so copy=False is impossible")
        return found

    if copy is not True:
        in_order(x)
    return cast(Array, issue(reshaped, x, shape))


@_own
def unique_values(x: Array, /) -> Array:
    """Each element once, sorted, as in `unique_counts` and the others; NaN last, each of them.

    The standard leaves the order open, and NumPy's function does not sort. But code that is written for arrays of any
    kind relies on sorted values.

    >>> from asyncsched import array_api as xp
    >>> xp.unique_values(xp.asarray([3, 1, 3, 2]))
    Array([1, 2, 3], dtype=int64, device=cpu)
    """
    return cast(Array, issue(lambda x: manipulation.sort(manipulation.unique_values(x)), x))


FUNCTIONS = {name: thing for name, thing in namespace(functions).items() if name not in (*_OWN, "dot", "einsum")}


class Info(dtypes.Info):
    """The information about the namespace, by the names of the standard."""

    def default_device(self) -> str:
        """The device on which arrays are made."""
        return self.devices()[0]

    def devices(self) -> list[str]:  # type: ignore[override]  # as the standard has it, and SciPy's tests rely on it
        """The names of all devices of the scheduler."""
        return [device.name for device in background().scheduler.devices]
