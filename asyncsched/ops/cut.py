"""How a row is cut into parts from outside, on which several threads work at once.

Each part is the row itself, applied to slices:
what works element by element, or along each row, gives the same bits in parts.

Not taken: to cut matrix products. In parts some kernels of a BLAS give other bits; and measured on two processors, a
training step with cut products took 1.06 times as long as with whole ones, since there are other tasks for the other
stream. Nor rows of many short calls, such as convolution: two threads take as long for them as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any, Final

import numpy as np

from .kernels.layers import ROWS
from .parallel import ranges, seconds_of
from .row import Kernel, Row

Array = np.ndarray[Any, Any]
Part = tuple[Sequence[Any], Array]  # its operands, and where its result goes
Slices = tuple[slice, ...]

# Rows that are no universal functions: each element of the result is of those at its place alone, ...
_BY_ELEMENTS: Final = frozenset(
    {
        "adam_step", "astype", "axpby", "axpby_squared", "clip", "gelu", "gelu_backward", "leaky_relu", "relu",
        "relu_backward", "rms_scaled", "round", "sgd_average", "sgd_step", "sigmoid", "softplus", "softplus_backward",
        "where",
    }
)  # fmt: skip
# ... or each row is: of the last axis, or of as many as the weight has.
_BY_ROWS: Final = frozenset({"layer_norm", "softmax", "softmax_backward"})


def parts(row: Row, kernel: Kernel, args: Sequence[Any], out: Array) -> list[Part]:
    """The parts of a row for the calling thread's team, in order; none if it is better left whole.

    Args:
        kernel: the row's.
        args: arrays and scalars.
        out: where the result goes.
    """
    universal = isinstance(kernel, np.ufunc) and kernel.signature is None
    if not universal and row.name not in _BY_ELEMENTS and row.name not in _BY_ROWS:
        return []
    seconds = seconds_of(row.name, out.size, out.itemsize)
    axes, unit = out.ndim, 1
    if row.name in _BY_ROWS:
        axes -= args[1].ndim if row.name == "layer_norm" else 1
        unit = ROWS
    # The first that has more than one place, so that what is in one piece has parts in one piece.
    axis = next((i for i in range(axes) if out.shape[i] > 1), None)
    if axis is None:
        return []
    found = ranges(out.shape[axis], seconds, unit=unit // gcd(unit, prod(out.shape[axis + 1 : axes])))
    if len(found) < 2:
        return []
    slices = [(*[slice(None)] * axis, one) for one in found]
    return [([_slice(a, out, one) for a in args], out[one]) for one in slices]


def _slice(array: Any, out: Array, part: Slices) -> Any:
    """The same part of an operand that has the axis; the whole of one that is repeated along it."""
    axis = len(part) - 1
    missing = out.ndim - getattr(array, "ndim", 0)  # axes that it has less, which are the result's first
    if missing > axis or array.shape[axis - missing] != out.shape[axis]:
        return array
    return array[part[missing:]]
