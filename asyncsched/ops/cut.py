"""How a row is cut into parts, on which several threads work at once.

By its shape and the number of threads alone, and never by who has time: so the bits of a result do not depend on
timing. Each part is the row itself, applied to slices. What works element by element, or along each row, gives the same
bits in parts. A matrix product may not: that is for the BLAS to say, and inside `asc.exact()` it is left whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from .pace import pace_of
from .row import Kernel, Row

# A part takes at least this long, by estimate: it takes some tens of microseconds until another thread has begun.
PART_SECONDS: Final = 1e-4
_PRODUCT: Final = 0.03e-9  # seconds for one multiplication of a product of large matrices, about
_PASSES: Final = 3e-9  # seconds for an element of a row that has no pace of its own: it goes over it several times

Array = np.ndarray[Any, Any]
Part = tuple[Sequence[Any], Array]  # its operands, and where its result goes
Slices = tuple[slice, ...]


class Way(NamedTuple):
    """One way to cut."""

    seconds: Callable[[Row, Sequence[Any], Array], float]  # how long the whole takes on one thread, about
    operands: Callable[[Sequence[Any], Array, Slices], Sequence[Any]]  # those of the part with these slices of `out`
    axes: Callable[[Sequence[Any], Array], int]  # how many of the first axes may be cut


def parts(row: Row, kernel: Kernel, args: Sequence[Any], out: Array, threads: int) -> list[Part]:
    """The parts of a row for so many threads, in order; none if it is better left whole.

    Args:
        kernel: the row's.
        args: arrays and scalars.
        out: where the result goes.
    """
    way = _way(row, kernel)
    if way is None:
        return []
    number = min(threads, int(way.seconds(row, args, out) / PART_SECONDS))
    # The first that has more than one place, so that what is in one piece has parts in one piece.
    axis = next((i for i in range(way.axes(args, out)) if out.shape[i] > 1), None)
    if number < 2 or axis is None:
        return []
    number = min(number, out.shape[axis])
    edges = [out.shape[axis] * i // number for i in range(number + 1)]
    slices = [(*[slice(None)] * axis, slice(low, high)) for low, high in pairwise(edges)]
    return [(way.operands(args, out, one), out[one]) for one in slices]


def _by_elements(row: Row, args: Sequence[Any], out: Array) -> float:
    return pace_of(row.name, _PASSES) * out.size * max(1, out.itemsize / 4)


def _by_products(row: Row, args: Sequence[Any], out: Array) -> float:
    """Of a matrix, or images, and a weight: each element of the result is a sum over a row of the weight."""
    length: int = args[1].size // max(1, len(args[1]))
    return _of_sums(out, length)


def _by_matmul(row: Row, args: Sequence[Any], out: Array) -> float:
    return _of_sums(out, args[0].shape[-1])


def _by_transposed(row: Row, args: Sequence[Any], out: Array) -> float:
    return _of_sums(out, args[0].size // max(1, len(out)))


def _of_sums(out: Array, length: int) -> float:
    return _PRODUCT * out.size * length * max(1, out.itemsize / 4)


def _broadcast(args: Sequence[Any], out: Array, part: Slices) -> list[Any]:
    """The same part of each operand that has the axis, and the whole of those that are repeated along it."""
    return [_slice(a, out, part) for a in args]


def _slice(array: Any, out: Array, part: Slices) -> Any:
    axis = len(part) - 1
    missing = out.ndim - getattr(array, "ndim", 0)  # axes that it has less, which are the result's first
    if missing > axis or array.shape[axis - missing] != out.shape[axis]:
        return array
    return array[part[missing:]]


def _first(args: Sequence[Any], out: Array, part: Slices) -> list[Any]:
    return [args[0][part], *args[1:]]


def _columns(args: Sequence[Any], out: Array, part: Slices) -> list[Any]:
    return [args[0][..., part[0]], *args[1:]]


def _of_matmul(args: Sequence[Any], out: Array, part: Slices) -> list[Any]:
    return _first(args, out, part) if out.ndim == 2 else _broadcast(args, out, part)


def _any(args: Sequence[Any], out: Array) -> int:
    return out.ndim


def _but_last(args: Sequence[Any], out: Array) -> int:
    return max(0, out.ndim - 1)


def _outer(args: Sequence[Any], out: Array) -> int:
    return min(1, max(0, out.ndim - 1))


_ELEMENTS: Final = Way(_by_elements, _broadcast, _any)  # each element of the result is of those at its place alone
_PRODUCT_WAYS: Final = {
    "matmul": Way(_by_matmul, _of_matmul, _outer),
    # Rows, or images, of the first operand with all of a weight.
    **dict.fromkeys(("linear", "conv2d", "conv2d_input_grad"), Way(_by_products, _first, _outer)),
    # Rows of the result are of columns of the first operand.
    "linear_weight_grad": Way(_by_transposed, _columns, _outer),
}
_BY_ELEMENTS: Final = (
    "adam_step astype axpby axpby_squared clip gelu gelu_backward leaky_relu relu relu_backward rms_scaled round"
    " sgd_average sgd_step sigmoid softplus softplus_backward where"
)
_WAYS: Final = {
    **dict.fromkeys(_BY_ELEMENTS.split(), _ELEMENTS),
    # Each row of the result is of those at its place. (Not layer_norm: on two threads it takes as long as on one.)
    **dict.fromkeys(("softmax", "softmax_backward"), Way(_by_elements, _broadcast, _but_last)),
    **_PRODUCT_WAYS,
}
PRODUCTS: Final = frozenset(_PRODUCT_WAYS)
# No product in these is worth several threads of a BLAS: they are cut here, or it is a small one among other work.
NARROW: Final = PRODUCTS | {
    "attention", "attention_backward", "cross_entropy", "cross_entropy_backward", "layer_norm", "layer_norm_input_grad",
    "layer_norm_weight_grad", "linear_bias_grad", "self_attention", "self_attention_backward", "softmax",
    "softmax_backward",
}  # fmt: skip


def _way(row: Row, kernel: Kernel) -> Way | None:
    found = _WAYS.get(row.name)
    if found is None and isinstance(kernel, np.ufunc) and kernel.signature is None:
        return _ELEMENTS
    return None if row.name in PRODUCTS and row.exact is None else found  # without: it is the exact one
