"""How a row is cut into parts from outside, on which several threads work at once.

Each part is the row itself, applied to slices: what works element by element, or along each row, gives the same bits.

A product of matrices is cut along the longer side of its result, at multiples of 64, into a part for each thread. More
parts would let others do the rest where one is kept from its own, by the event loop's work say, and who helps go back
to its own tasks earlier; but what all parts read is packed for each. So only what takes long is cut into more, along
both sides. On some processors a BLAS gives other bits in parts, so inside `asc.exact()` products stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import gcd, prod
from typing import Any, Final

import numpy as np

from . import parallel
from .kernels.compiled import compiled
from .kernels.layers import LONG_BLOCK, ROWS, as_matrix, without_buffers
from .pace import MULTIPLICATION_SECONDS
from .parallel import equal, ranges, rounds, seconds_of, threads
from .row import Kernel, Row

Array = np.ndarray[Any, Any]
Part = tuple[Sequence[Any], Array]  # its operands, and where its result goes
Slices = tuple[slice, ...]

# Rows that are no universal functions: each element of the result is of those at its place alone, ...
BY_ELEMENTS: Final = frozenset(
    {
        "adam_step", "astype", "axpby", "axpby_squared", "clip", "gelu", "gelu_backward", "leaky_relu", "relu",
        "relu_backward", "rms_scaled", "round", "sgd_average", "sgd_step", "sigmoid", "softplus", "softplus_backward",
        "where",
    }
)  # fmt: skip
# ... or each row is: of the last axis, or of as many as the weight has.
_BY_ROWS: Final = frozenset({"layer_norm", "softmax", "softmax_backward"})

PRODUCTS: Final = frozenset({"linear", "linear_weight_grad", "matmul"})
# Their loops have a quick way for a number beside a row; those of others take longer for one than for a buffer of it.
_ARITHMETIC: Final[frozenset[Any]] = frozenset({np.add, np.subtract, np.multiply, np.divide})
# Rows of many passes work in blocks, see `kernels.layers`. Parts of whole blocks cost nothing; those of fewer elements
# have shorter ones, and so more turns at the interpreter's lock: with parts of half a block layer_norm took an eighth
# longer, with parts of a quarter, 1.7 times as long. What is compiled passes over as many in a third of the time.
_LEAST_ELEMENTS: Final = LONG_BLOCK
_LEAST_OF_ROWS: Final = 2 * LONG_BLOCK
_LEAST_COMPILED: Final = 4 * LONG_BLOCK
_EDGE: Final = 64  # places: of whole blocks of a BLAS's kernel, so that on most processors bits are the same
_LEAST: Final = 5  # so many times as long as other parts are those of products at least, for the packing
# What takes a thread longer than this has more parts than one for each, while they have so many places along each side:
# that takes up to 3% longer, with half as many places 5 to 8%.
_LONG_SECONDS: Final = 0.02
_SIDE: Final = 1024


def run(row: Row, kernel: Kernel, args: Sequence[Any], out: Array, options: Mapping[str, Any]) -> Any:
    """The row's result, in `out`: whole, or in parts for the calling thread's team."""
    found = parts(row, kernel, args, out)
    if _repeats(kernel, args, out):
        kernel = partial(without_buffers, kernel, out.shape[-1])
    if not found:
        return kernel(*args, out=out, **options)
    parallel.run([partial(kernel, *some, out=where, **options) for some, where in found])
    return out


def _repeats(kernel: Kernel, args: Sequence[Any], out: Array) -> bool:
    """Whether this is arithmetic that repeats a row or a column, in rows that are no longer than NumPy's buffers, and
    converts nothing, which needs those."""
    if kernel not in _ARITHMETIC or not out.ndim or out.shape[-1] > np.getbufsize():
        return False
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    repeated = any(a.shape != out.shape and a.size > 1 for a in arrays)
    return repeated and all(a.dtype == out.dtype and a.flags.c_contiguous for a in arrays)


def parts(row: Row, kernel: Kernel, args: Sequence[Any], out: Array) -> list[Part]:
    """The parts of a row for the calling thread's team, in order; none if it is better left whole.

    Args:
        kernel: the row's.
        args: arrays and scalars.
        out: where the result goes.
    """
    if row.name in PRODUCTS:
        return [] if row.exact is None else _of_product(row.name, args, out)
    universal = isinstance(kernel, np.ufunc) and kernel.signature is None
    if not universal and row.name not in BY_ELEMENTS and row.name not in _BY_ROWS:
        return []
    seconds = seconds_of(row.name, out.size, out.itemsize)
    axes, unit, least = out.ndim, 1, 1 if universal else _LEAST_ELEMENTS
    if row.name in _BY_ROWS:
        axes -= args[1].ndim if row.name == "layer_norm" else 1
        unit, least = ROWS, _LEAST_OF_ROWS
    least = _LEAST_COMPILED if compiled(row.name) else least
    each = max(1, min(rounds(seconds), out.size // (least * threads())))
    # The first that has more than one place, so that what is in one piece has parts in one piece.
    axis = next((i for i in range(axes) if out.shape[i] > 1), None)
    if axis is None:
        return []
    whole = unit // gcd(unit, prod(out.shape[axis + 1 : axes]))
    found = _several(ranges(out.shape[axis], seconds, unit=whole, each=each))
    slices = [(*[slice(None)] * axis, one) for one in found]
    return [([_slice(a, out, one) for a in args], out[one]) for one in slices]


def _of_product(name: str, args: Sequence[Any], out: Array) -> list[Part]:
    if name != "matmul":
        out = as_matrix(out)
        args = [as_matrix(args[0]), *([as_matrix(args[1])] if name == "linear_weight_grad" else args[1:])]
    length = args[0].shape[0 if name == "linear_weight_grad" else -1]
    seconds = MULTIPLICATION_SECONDS * out.size * length * out.itemsize / 4
    if out.ndim > 2:  # of as many products
        found = _several(ranges(len(out), seconds, each=rounds(seconds)))
        return [([_slice(a, out, (one,)) for a in args], out[one]) for one in found]
    if not args[0].ndim == args[1].ndim == 2:
        return []
    short, long = sorted(out.shape)
    most = int(seconds / _LONG_SECONDS)
    each = max(1, min(most, long // _SIDE) // threads())
    sides = _several(ranges(long, seconds, unit=_EDGE, least=_LEAST, each=each))
    across = equal(short, max(1, min(most // max(1, len(sides)), short // _SIDE)), _EDGE)
    places = [(side, other) if out.shape[0] == long else (other, side) for side in sides for other in across]
    return [(_factors(name, args, *place), out[place]) for place in places]


def _several(found: list[slice]) -> list[slice]:
    return found if len(found) > 1 else []


def _factors(name: str, args: Sequence[Any], rows: slice, columns: slice) -> Sequence[Any]:
    """The operands for some rows and columns of the result."""
    if name == "matmul":
        return args[0][rows], args[1][:, columns]
    if name == "linear":
        return args[0][rows], *[one[columns] for one in args[1:]]  # of a weight and a bias
    return args[0][:, rows], args[1][:, columns]


def _slice(array: Any, out: Array, part: Slices) -> Any:
    """The same part of an operand that has the axis; the whole of one that is repeated along it."""
    axis = len(part) - 1
    missing = out.ndim - getattr(array, "ndim", 0)  # axes that it has less, which are the result's first
    if missing > axis or array.shape[axis - missing] != out.shape[axis]:
        return array
    return array[part[missing:]]
