"""How one operation is cut into parts, on which several threads work at once.

Each part is the operation itself, applied to slices, as its `cut` says. An elementwise or rowwise operation gives the
same bits in parts.

A product of matrices is cut along the longer side of its result, at multiples of 64, into one part for each thread.
More parts would let others do the work of a thread that is held up, say by the event loop, and helpers could return to
their own tasks earlier. But for each part, BLAS packs the shared operand anew. So only long products are cut into more
parts, along both sides. If there are several products, or no BLAS that packs, a part takes about a millisecond. On some
processors a BLAS gives other bits in parts, so inside `asc.exact()` products stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import gcd, prod
from typing import Any, Final

import numpy as np

from . import parallel
from .cost_model import has_blas, product_seconds
from .kernels.blocks import LONG_BLOCK, ROWS, as_matrix, without_buffers
from .kernels.compiled import compiled
from .op import PRODUCTS, Cut, Kernel, Op
from .parallel import equal, here, number, ranges, rounds, seconds_of

Array = np.ndarray[Any, Any]
Part = tuple[Sequence[Any], Array]  # its operands, and the place of its result
Slices = tuple[Any, ...]  # of slices

# Their loops are fast for a number and a row. Other functions are slower for a number than for a buffer filled with it.
_ARITHMETIC: Final[frozenset[Any]] = frozenset({np.add, np.subtract, np.multiply, np.divide})
# Operations of many passes work in blocks, see `kernels.blocks`. Parts of whole blocks cost nothing. Smaller parts have
# shorter blocks, and so take the GIL more often: with half a block per part, layer_norm took an eighth longer; with a
# quarter, 1.7 times as long. A compiled loop passes over a block in a third of the time.
_LEAST_ELEMENTS: Final = LONG_BLOCK
_LEAST_OF_ROWS: Final = 2 * LONG_BLOCK
_LEAST_COMPILED: Final = 4 * LONG_BLOCK
_EDGE: Final = 64  # rows: a multiple of a BLAS kernel's block, so that on most processors the bits are the same
_LEAST: Final = 5  # a part of a product takes at least this many `PART_SECONDS`, because of the packing
# A product that takes a thread longer than this gets more parts than threads, as long as each has `_SIDE` rows and
# columns. That takes up to 3% longer; with half as many rows, 5 to 8%.
_LONG_SECONDS: Final = 0.02
_SIDE: Final = 1024


def run(op: Op, kernel: Kernel, args: Sequence[Any], out: Array, options: Mapping[str, Any]) -> Any:
    """Compute the operation's result in `out`: whole, or in parts for the calling thread's team."""
    repeats, found = _repeats(kernel, args, out), parts(op, kernel, args, out)
    if repeats:
        kernel = partial(without_buffers, kernel, out.shape[-1])
    if not found:
        return kernel(*args, out=out, **options)
    parallel.run([partial(kernel, *some, out=where, **options) for some, where in found])
    return out


def _repeats(kernel: Kernel, args: Sequence[Any], out: Array) -> bool:
    """Whether this is arithmetic that repeats a row or a column, with rows no longer than NumPy's buffers.

    False if an operand is converted, which needs the buffers.
    """
    if kernel not in _ARITHMETIC or not out.ndim:
        return False
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    if all(a.shape == out.shape or a.size < 2 for a in arrays) or out.shape[-1] > np.getbufsize():
        return False
    return all(a.dtype == out.dtype and a.flags.c_contiguous for a in arrays)


def parts(op: Op, kernel: Kernel, args: Sequence[Any], out: Array) -> list[Part]:
    """The parts of an operation for the calling thread's team, in order; none if it should stay whole.

    Args:
        kernel: the operation's.
        args: arrays and scalars.
        out: the array for the result.
    """
    if here.threads < 2:
        return []
    if op.cut in PRODUCTS:
        return _of_product(op.cut, args, out)
    universal = isinstance(kernel, np.ufunc) and kernel.signature is None
    if op.cut is Cut.WHOLE and not universal:
        return []
    seconds = seconds_of(out.size, out.itemsize, op.element_seconds)
    if number(seconds) < 2:
        return []
    axes, unit, least = out.ndim, 1, 1 if universal else _LEAST_ELEMENTS
    if op.cut in (Cut.BY_ROWS, Cut.BY_WEIGHT_ROWS):
        axes -= args[1].ndim if op.cut is Cut.BY_WEIGHT_ROWS else 1
        unit, least = ROWS, _LEAST_OF_ROWS
    least = _LEAST_COMPILED if compiled(op.compiled_as) else least
    each = max(1, min(rounds(seconds), out.size // (least * here.threads)))
    found = _places(out.shape[:axes], number(seconds, each), unit)
    return [([_slice(a, out, place) for a in args], out[place]) for place in found] if len(found) > 1 else []


def _of_product(kind: Cut, args: Sequence[Any], out: Array) -> list[Part]:
    if kind is not Cut.PRODUCT_NN:
        out = as_matrix(out)
        args = [as_matrix(args[0]), *([as_matrix(args[1])] if kind is Cut.PRODUCT_TN else args[1:])]
    length = args[0].shape[0 if kind is Cut.PRODUCT_TN else -1]
    seconds = product_seconds(out.size * length, out.dtype)
    several = out.shape[: max(one.ndim for one in args[:2]) - 2]
    if not several and has_blas(out.dtype):
        args = [*map(_for_blas, args[:2]), *args[2:]]
    if several:
        args = [one if one.ndim < 2 else np.broadcast_to(one, (*several, *one.shape[-2:])) for one in args]
    count, tiles = prod(several), list[Slices]([()])
    found = _places(several, number(seconds, rounds(seconds)))
    matrices = out.ndim == len(several) + 2
    if matrices and len(found) == count and (count < here.threads or seconds > count * _LONG_SECONDS):
        tiles = _tiles(out.shape[-2:], seconds / count, out.dtype)
    pairs = [(place, tile) for place in found for tile in tiles]
    return [(_factors(kind, args, *pair), out[(*pair[0], ..., *pair[1])]) for pair in pairs] if len(pairs) > 1 else []


def _for_blas(matrix: Array) -> Array:
    """The matrix, laid out once for all parts if BLAS does not take its strides."""
    if matrix.ndim < 2 or any(
        one == matrix.itemsize and other % one == 0 and other >= length * one
        for one, other, length in zip(matrix.strides[::-1], matrix.strides, matrix.shape[::-1], strict=True)
    ):
        return matrix
    return np.ascontiguousarray(matrix)


def _tiles(sides: tuple[int, ...], seconds: float, dtype: np.dtype[Any]) -> list[Slices]:
    """The rows and columns of one product's parts."""
    short, long = sorted(sides)
    if has_blas(dtype):
        most = int(seconds / _LONG_SECONDS)
        each = max(1, min(most, long // _SIDE) // here.threads)
        along = equal(long, min(number(seconds, each, _LEAST), long // _EDGE), _EDGE)
        across = equal(short, min(most // len(along), short // _SIDE), _EDGE)
    else:  # nothing is packed
        along, across = ranges(long, number(seconds, rounds(seconds))), [slice(None)]
    return [(one, other) if sides[0] == long else (other, one) for one in along for other in across]


def _places(shape: tuple[int, ...], number: int, unit: int = 1) -> list[Slices]:
    """The places of about `number` equal, contiguous parts of an array.

    Cuts along the first axis that is longer than 1, and along the next ones if that has fewer places than parts. Parts
    begin at multiples of `unit` rows.
    """
    axis = 0
    while axis < len(shape) and shape[axis] < 2:
        axis += 1
    if axis == len(shape) or number < 2:
        return [()]
    places, inner = shape[axis], shape[axis + 1 :]
    before = (slice(None),) * axis
    whole = unit // gcd(unit, prod(inner)) if unit > 1 else 1
    if number > places and whole == 1:
        rest = _places(inner, -(-number // places), unit)
        return [(*before, slice(one, one + 1), *some) for one in range(places) for some in rest]
    return [(*before, one) for one in ranges(places, number, whole)]


def _factors(kind: Cut, args: Sequence[Any], place: Slices, tile: Slices) -> Sequence[Any]:
    """The operands for the products at `place`, and for the rows and columns of each in `tile`."""
    if not tile:
        return [one[place] if one.ndim > 1 else one for one in args]
    rows, columns = tile
    if kind is Cut.PRODUCT_NN:
        return args[0][(*place, ..., rows, slice(None))], args[1][(*place, ..., columns)]
    if kind is Cut.PRODUCT_NT:
        return args[0][rows], *[one[columns] for one in args[1:]]  # weight and bias
    return args[0][:, rows], args[1][:, columns]


def _slice(array: Any, out: Array, part: Slices) -> Any:
    """The same part of an operand; along axes that it repeats, the whole."""
    missing = out.ndim - getattr(array, "ndim", 0)  # axes that the operand lacks: the first ones of the result
    own = part[missing:]
    if not own:
        return array
    return array[tuple(one if places > 1 else slice(None) for one, places in zip(own, array.shape, strict=False))]
