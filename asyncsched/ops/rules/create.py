"""Rules of operations that make arrays from numbers."""

from __future__ import annotations

from itertools import repeat
from math import ceil
from typing import Any

import numpy as np

from ..meta import meta
from ..op import Inferred, Op, Operand, Options
from .common import as_meta, broadcast, int_bounds, lengths, sample


def filled(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
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


def filled_like(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """An array of the first operand's shape and layout, filled with the second."""
    array = as_meta(operands[0])
    dtype = np.dtype(options["dtype"]) if options.get("dtype") is not None else array.dtype
    return Inferred(meta(array.shape, dtype, array.contiguous), int_bounds=int_bounds(operands[1:], repeat(dtype)))


def arange(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Evenly spaced from `start` to before `stop`."""
    start, stop, step = options["start"], options["stop"], options["step"]
    if step == 0:
        raise ZeroDivisionError("arange: step must not be zero")
    length = max(ceil((stop - start) / step), 0)
    dtype = options.get("dtype")
    if dtype is None:
        dtype = np.result_type(*[np.asarray(value).dtype for value in (start, stop, step)])
    return Inferred(meta((length,), np.dtype(dtype)))


def linspace(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`num` numbers from the first operand to the second; NumPy works in the inexact dtype, then converts."""
    num, dtype = options["num"], options.get("dtype")
    if num < 0:
        raise ValueError(f"linspace: number of samples, {num}, must be non-negative")
    if any(lengths(operand) for operand in operands):
        raise ValueError("linspace: start and stop must be numbers")
    ends: list[Any] = [sample(operand, ()) for operand in operands]
    worked = np.linspace(ends[0], ends[1], 1).dtype
    result = meta((num,), worked if dtype is None else np.dtype(dtype))
    return Inferred(result, 0 if result.dtype == worked else num * worked.itemsize)


def eye(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Ones on a diagonal."""
    shape = (options["n_rows"], options["n_cols"])
    if min(shape) < 0:
        raise ValueError("eye: negative dimensions are not allowed")
    return Inferred(meta(shape, np.dtype(options["dtype"])))
