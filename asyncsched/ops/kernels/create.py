"""Arrays made of numbers alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..declare import Cost, Kernel, Op, with_out
from ..rules import create as rules
from .elementwise import into


def full(xp: Any, value: Any, *, shape: Any, dtype: Any = None, out: Any = None) -> Any:
    """Filled with a value."""
    return xp.full(shape, value, dtype=dtype) if out is None else into(xp, out, value)


def full_like(xp: Any, x: Any, value: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """Filled with a value, in the layout of `x`."""
    return xp.full_like(x, value, dtype=dtype) if out is None else into(xp, out, value)


def listed(xp: Any, *numbers: Any, shape: Any, dtype: Any) -> Any:
    """Numbers that are known one by one. On a GPU a kernel has each: no copy of an array of the host's is captured."""
    if xp is np:
        return np.array(numbers, dtype).reshape(shape)
    flat = xp.empty(len(numbers), dtype)
    for i, number in enumerate(numbers):
        flat[i] = number
    return flat.reshape(shape)


def constant(value: int) -> Kernel:
    """Zeros or ones."""

    def fill(xp: Any, *, shape: Any, dtype: Any = None, out: Any = None) -> Any:
        if out is not None:
            out.fill(value)
            return out
        return xp.ones(shape, dtype=dtype) if value else xp.zeros(shape, dtype=dtype)

    return fill


def arange(xp: Any, *, start: Any, stop: Any, step: Any, dtype: Any = None) -> Any:
    """Evenly spaced by `step`."""
    return xp.arange(start, stop, step, dtype=dtype)


def linspace(xp: Any, start: Any, stop: Any, *, num: int, dtype: Any = None, endpoint: bool = True) -> Any:
    """`num` evenly spaced numbers."""
    return xp.linspace(start, stop, num, endpoint=endpoint, dtype=dtype)


def eye(xp: Any, *, n_rows: int, n_cols: int, k: int = 0, dtype: Any = None) -> Any:
    """Ones on a diagonal."""
    return xp.eye(n_rows, n_cols, k, dtype=dtype)


OPS = (
    with_out(constant(0), rules.filled, "Zeros.", Cost.SHORT, name="zeros"),
    with_out(constant(1), rules.filled, "Ones.", Cost.SHORT, name="ones"),
    with_out(full, rules.filled, "One value throughout.", Cost.SHORT),
    with_out(full_like, rules.filled_like, "One value throughout, in a tensor's layout.", Cost.SHORT),
    Op("listed", listed, rules.filled, doc="Numbers that are known one by one, such as an index's."),
    Op("arange", arange, rules.arange, doc="Evenly spaced by a step."),
    Op("linspace", linspace, rules.linspace, doc="A number of evenly spaced values."),
    Op("eye", eye, rules.eye, doc="Ones on a diagonal."),
)
