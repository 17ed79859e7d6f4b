"""The parts of the declarations in `kernels`, with short forms for what most operations state.

Several results of one operation are packed in one buffer of bytes. Each is a view of it. A task has one value, so an
operation with several results (a decomposition, `unique_all`, a captured step) packs them, and another operation
unpacks each as a view. If a length depends on data, the buffer's own length tells how long each part is: nobody has to
look into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from .cost_model import Cost
from .meta import Meta, meta
from .op import Blas, Bound, Cut, Inferred, Kernel, Op, Operand, Options, ScalarCode, Shared, UfuncCall, resolve

__all__ = [
    "PRODUCT_BOUND", "Blas", "Bound", "Cost", "Cut", "Inferred", "Kernel", "Meta", "Op", "Operand", "Options",
    "ScalarCode", "Shared", "UfuncCall", "bounded", "elementwise", "in_place", "meta", "operation", "pack_found",
    "packed_op", "product", "resolve", "with_out", "with_products",
]  # fmt: skip

ALIGNMENT = 512  # bytes: each result begins at a multiple of this, CuPy's own granularity, in whole cache lines
_BYTES = np.dtype(np.uint8)
PRODUCT_BOUND = Bound(3e-6, 3e-5)  # for sums of some thousand products; in double precision much smaller


def operation(kernel: Any, rule: Any, doc: str, cost: float | None = None, *, name: str = "", **more: Any) -> Op:
    """An operation. Its default name is the kernel's."""
    name = name or (kernel if isinstance(kernel, str) else kernel.__name__)
    return Op(name, kernel, rule, doc=doc, element_seconds=cost, **more)


# An operation whose kernel takes `out=`.
with_out: Callable[..., Op] = partial(operation, out=True)
# The same, with BLAS at work on small products inside.
with_products: Callable[..., Op] = partial(with_out, blas=Blas.INSIDE)
# An elementwise operation: each result depends only on the elements at its place. One launch on a card.
elementwise: Callable[..., Op] = partial(with_out, cut=Cut.BY_ELEMENTS, launches=1)
# The same, whose result may be written over an operand: no element of that is read once its result is written.
in_place: Callable[..., Op] = partial(elementwise, inplace=True)


def bounded(op: Op, exact: str | Kernel, relative: float, absolute: float) -> Op:
    """The operation, with `exact` as its kernel inside `exact()`. The bounds say how far float32 results may differ."""
    return replace(op, exact=replace(op, kernel=exact), bound=Bound(relative, absolute))


def product(op: Op, cut: Cut) -> Op:
    """A product that may be cut for several threads; not inside `exact()`: sums in parts may round differently."""
    whole = replace(op, blas=Blas.PRODUCT)
    return replace(whole, cut=cut, exact=whole, bound=PRODUCT_BOUND)


# -- several results ---------------------------------------------------------------------------------------------------

# From the name, operands and options of an operation with several results: the form of each, and the bytes of temporary
# memory.
Parts = Callable[[str, tuple[Any, ...], Mapping[str, Any]], tuple[list[Meta], int]]


def offsets(metas: Sequence[Any]) -> tuple[list[int], int]:
    """The start of each result (given as meta or array) in a packed buffer, and the buffer's bytes."""
    starts, end = [], 0
    for form in metas:
        starts.append(end)
        end += -(-form.nbytes // ALIGNMENT) * ALIGNMENT
    return starts, end


def pack(xp: Any, arrays: Sequence[Any], starts: Sequence[int], nbytes: int) -> Any:
    """One buffer of bytes with a copy of each array in C order."""
    buffer = xp.empty(nbytes, xp.uint8)
    for array, start in zip(arrays, starts, strict=True):
        _part(buffer, start, array.shape, array.dtype)[...] = array
    return buffer


def unpacked(buffer: Any, starts: Sequence[int], metas: Sequence[Meta]) -> list[Any]:
    """The parts of a packed buffer, to be filled."""
    return [_part(buffer, start, form.bound, form.dtype) for start, form in zip(starts, metas, strict=True)]


def packed_op(kernel: Callable[..., Sequence[Any]], parts: Parts, doc: str, **more: Any) -> Op:
    """An operation whose kernel, of its name, returns several arrays, packed. Its results have known shapes."""

    def packing(xp: Any, *arrays: Any, **options: Any) -> Any:
        found = kernel(xp, *arrays, **options)
        return pack(xp, found, *offsets(found))

    def rule(op: Op, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Inferred:
        forms, workspace = parts(op.name, operands, options)
        starts, nbytes = offsets(forms)
        places = [{"start": at, "shape": p.shape, "dtype": p.dtype} for at, p in zip(starts, forms, strict=True)]
        return Inferred(meta((nbytes,), _BYTES), workspace + nbytes, parts=places)

    return Op(kernel.__name__, packing, rule, doc=doc, **more)


def pack_found(xp: Any, arrays: Sequence[Any]) -> Any:
    """One buffer of arrays without gaps. The caller puts the widest first, so that each is aligned."""
    return xp.concatenate([xp.ascontiguousarray(array).reshape(-1).view(xp.uint8) for array in arrays])


def _part(buffer: Any, start: int, shape: tuple[int, ...], dtype: Any) -> Any:
    return buffer[start : start + prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _unpack(
    xp: Any, buffer: Any, *, start: int, shape: Any, dtype: Any, fixed: int = 0, width: int = 1, before: int = 0
) -> Any:
    """A part that begins after `start` bytes, plus `before` bytes for each element found."""
    count = _count_found(buffer.shape[0], fixed, width)
    return _part(buffer, start + count * before, (count,) if shape is None else shape, dtype)


def _unpacked(op: Op, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Inferred:
    shape = options["shape"]
    if shape is None:  # as many as were found
        shape = (_count_found(operands[0].bound[0], options["fixed"], options["width"]),)
    return Inferred(meta(shape, options["dtype"]))


def _count_found(nbytes: int, fixed: int, width: int) -> int:
    """How many elements were found, by the buffer's bytes: `fixed`, and `width` for each."""
    return max(nbytes - fixed, 0) // width


UNPACK = Op("unpack", _unpack, _unpacked, view=True, doc="One of several results packed in a buffer: a view.")
