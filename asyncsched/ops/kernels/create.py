"""Arrays made from numbers only."""

from __future__ import annotations

from itertools import repeat
from math import ceil
from typing import Any

import numpy as np

from ..declare import Cost, Inferred, Kernel, Op, Operand, Options, meta, with_out
from ..rules import as_meta, broadcast, int_bounds, lengths, sample
from .elementwise import into


def full(xp: Any, value: Any, *, shape: Any, dtype: Any = None, out: Any = None) -> Any:
    """An array filled with a value."""
    return xp.full(shape, value, dtype=dtype) if out is None else into(xp, out, value)


def full_like(xp: Any, x: Any, value: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """An array filled with a value, in the layout of `x`."""
    return xp.full_like(x, value, dtype=dtype) if out is None else into(xp, out, value)


def listed(xp: Any, *numbers: Any, shape: Any, dtype: Any) -> Any:
    """Numbers that are known one by one. On a GPU they are a kernel's arguments, so a capture copies no host array."""
    if xp is np:
        return np.array(numbers, dtype).reshape(shape)
    flat = xp.empty(len(numbers), dtype)
    for i, number in enumerate(numbers):
        flat[i] = number
    return flat.reshape(shape)


def constant(value: int) -> Kernel:
    """A kernel for zeros or ones."""

    def fill(xp: Any, *, shape: Any, dtype: Any = None, out: Any = None) -> Any:
        if out is not None:
            out.fill(value)
            return out
        return xp.ones(shape, dtype=dtype) if value else xp.zeros(shape, dtype=dtype)

    return fill


def eye(xp: Any, *, n_rows: int, n_cols: int, k: int = 0, dtype: Any = None) -> Any:
    """Ones on a diagonal."""
    return xp.eye(n_rows, n_cols, k, dtype=dtype)


# -- rules -------------------------------------------------------------------------------------------------------------


def filled_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """An array of a given shape, perhaps filled with an operand."""
    shape = options["shape"]
    if any(length < 0 for length in shape):
        raise ValueError(f"{op.name}: negative dimensions are not allowed")
    default = as_meta(operands[0]).dtype if operands else np.float64
    dtype = np.dtype(default if options.get("dtype") is None else options["dtype"])
    for operand in operands:
        if broadcast((operand, meta(shape, dtype))) != shape:
            raise ValueError(f"could not broadcast input array from shape {lengths(operand)} into shape {shape}")
    return Inferred(meta(shape, dtype), int_bounds=int_bounds(operands, repeat(dtype)))


def filled_like_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """An array of the first operand's shape and layout, filled with the second."""
    array = as_meta(operands[0])
    dtype = np.dtype(options["dtype"]) if options.get("dtype") is not None else array.dtype
    return Inferred(meta(array.shape, dtype, array.contiguous), int_bounds=int_bounds(operands[1:], repeat(dtype)))


def arange_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Numbers evenly spaced from `start` to before `stop`."""
    start, stop, step = options["start"], options["stop"], options["step"]
    if step == 0:
        raise ZeroDivisionError("arange: step must not be zero")
    length = max(ceil((stop - start) / step), 0)
    dtype = options.get("dtype")
    if dtype is None:
        dtype = np.result_type(*[np.asarray(value).dtype for value in (start, stop, step)])
    return Inferred(meta((length,), np.dtype(dtype)))


def linspace_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`num` numbers from the first operand to the second. NumPy computes in the inexact dtype, then converts."""
    num, dtype = options["num"], options.get("dtype")
    if num < 0:
        raise ValueError(f"linspace: number of samples, {num}, must be non-negative")
    if any(lengths(operand) for operand in operands):
        raise ValueError("linspace: start and stop must be numbers")
    ends: list[Any] = [sample(operand, ()) for operand in operands]
    worked = np.linspace(ends[0], ends[1], 1).dtype
    result = meta((num,), worked if dtype is None else np.dtype(dtype))
    return Inferred(result, 0 if result.dtype == worked else num * worked.itemsize)


def eye_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Ones on a diagonal."""
    shape = (options["n_rows"], options["n_cols"])
    if min(shape) < 0:
        raise ValueError("eye: negative dimensions are not allowed")
    return Inferred(meta(shape, np.dtype(options["dtype"])))


OPS = (
    with_out(constant(0), filled_rule, "Zeros.", Cost.SHORT, name="zeros", launches=1),
    with_out(constant(1), filled_rule, "Ones.", Cost.SHORT, name="ones", launches=1),
    with_out(full, filled_rule, "One value throughout.", Cost.SHORT, launches=1),
    with_out(full_like, filled_like_rule, "One value throughout, in a tensor's layout.", Cost.SHORT, launches=1),
    Op("listed", listed, filled_rule, doc="Numbers that are known one by one, such as an index's."),
    Op("arange", "arange", arange_rule, launches=1, doc="Evenly spaced by a step."),
    Op("linspace", "linspace", linspace_rule, doc="A number of evenly spaced values."),
    Op("eye", eye, eye_rule, launches=2, doc="Ones on a diagonal."),
)
