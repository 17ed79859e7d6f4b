"""Shared parts of rules: operands as metas, samples for dtypes, proxies for views, bytes of blocks and copies.

A *rule* infers facts about an operation's result before anything is computed. It stands beside the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from numpy.lib.stride_tricks import as_strided

from .kernels.blocks import BLOCK, LONG_BLOCK
from .meta import Meta, Shape, meta
from .op import Inferred, Op, Operand, Options, resolve

Known = tuple[int, ...]
Array = np.ndarray[Any, Any]
INTP = np.dtype(np.intp)  # of indices


def as_meta(operand: Operand) -> Meta:
    """The meta of an operand; for a scalar, that of NumPy's array of it."""
    if isinstance(operand, Meta):
        return operand
    dtype = operand.dtype if isinstance(operand, np.generic) else np.dtype(type(operand))
    return meta((), dtype)


def lengths(operand: Operand) -> Known:
    """The operand's shape (rules see known lengths only, so the bound is the shape)."""
    return as_meta(operand).bound


def all_contiguous(operands: tuple[Operand, ...]) -> bool:
    """Whether every array among the operands is C-contiguous. Then NumPy's result in K-order is so, too."""
    return all(operand.contiguous for operand in operands if isinstance(operand, Meta))


def broadcast(operands: tuple[Operand, ...]) -> Known:
    """The shape that the operands broadcast to."""
    return broadcast_shapes("operands", *map(lengths, operands))


def broadcast_shapes(what: str, *shapes: Known) -> Known:
    """The shape that others broadcast to. An error calls them `what`."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        text = " ".join(map(str, shapes))
        raise ValueError(f"{what} could not be broadcast together with shapes {text}") from None


def axis_of(shape: Known, axis: int | None) -> tuple[Known, int]:
    """A shape and its axis, not negative; without axis, those of the flattened array. () counts as (1,)."""
    shape = (prod(shape),) if axis is None else shape or (1,)
    return shape, normalize_axis_index(axis or 0, len(shape))


def sample(operand: Operand, shape: Known = (1,)) -> Any:
    """A tiny stand-in of the operand's dtype, to ask NumPy about results. It has only ones, so nothing warns."""
    if isinstance(operand, Meta):
        return np.ones(shape, operand.dtype)
    # One fits every dtype, so the value of a Python scalar does not matter.
    return operand.dtype.type(1) if isinstance(operand, np.generic) else type(operand)(1)


def shrunk(operand: Operand) -> Any:
    """A sample with the operand's dimensions, each of length at most one. NumPy raises for it as for the operand."""
    return sample(operand, tuple([min(length, 1) for length in lengths(operand)]))


def proxy(operand: Operand) -> Array:
    """An array of the operand's shape and dtype with C strides that owns one element. Never read its data."""
    array = as_meta(operand)
    return as_strided(np.zeros(1, array.dtype), array.bound, c_strides(array.bound, array.dtype.itemsize))


def c_strides(shape: Known, itemsize: int) -> Known:
    """The strides of a C-contiguous array."""
    return tuple([itemsize * prod([max(n, 1) for n in shape[axis + 1 :]]) for axis in range(len(shape))])


def view_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A view, inferred from NumPy's view of a proxy."""
    return viewed(operands[0], lambda array: resolve(op, np)(array, **options))


def viewed(operand: Operand, view: Callable[[Array], Array]) -> Inferred:
    """The meta of a view. If the operand's strides are unknown, so are the view's."""
    array = as_meta(operand)
    result = view(proxy(array))
    return Inferred(meta(result.shape, result.dtype, array.contiguous and result.flags.c_contiguous))


def same_as(operand: Operand, workspace: int = 0) -> Inferred:
    """A result of the operand's shape, dtype and layout."""
    array = as_meta(operand)
    return Inferred(meta(array.shape, array.dtype, array.contiguous), workspace)


def cast_bytes(operand: Operand, dtype: np.dtype[Any]) -> int:
    """Bytes of NumPy's copy of a whole operand that has another dtype; else 0."""
    array = as_meta(operand)
    return 0 if array.dtype == dtype else prod(array.bound) * dtype.itemsize


def int_bounds(operands: tuple[Operand, ...], dtypes: Iterable[np.dtype[Any]]) -> tuple[int, int] | None:
    """The range for a Python integer among the operands, if it is cast to an integer dtype."""
    for operand, dtype in zip(operands, dtypes, strict=False):
        if type(operand) is int and dtype.kind in "iu":
            info = np.iinfo(dtype)
            return int(info.min), int(info.max)
    return None


def no_axis(shape: Shape, name: str) -> None:
    """Raise for arrays without dimensions."""
    if not shape:
        raise ValueError(f"{name}: the operand needs at least one dimension")


# -- networks: workspace is counted in blocks (see `kernels.blocks`), and copies are C-contiguous ----------------------


def blockwise_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A result like the first operand, made in blocks of elements. All tensors must have one shape."""
    tensors = tuple([operand for operand in operands if isinstance(operand, Meta)])
    alike(op, tensors)
    return like(operands[0], copies(tensors) + block_bytes(tensors[0], 1, 8))


def floats(op: Op, *operands: Operand) -> list[Known]:
    """The shapes of operands, which must have one floating-point dtype."""
    dtypes = {as_meta(operand).dtype for operand in operands}
    if len(dtypes) > 1:
        names = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise TypeError(f"{op.name}: the operands are of {names}: bring them to one dtype with `astype`")
    if (dtype := dtypes.pop()).kind != "f":
        raise TypeError(f"{op.name}: dtype {dtype} is no floating-point dtype: use `astype`")
    return [lengths(operand) for operand in operands]


def alike(op: Op, operands: tuple[Operand, ...]) -> Known:
    """The shape of operands, which must have one shape and one floating-point dtype."""
    shapes = floats(op, *operands)
    if any(shape != shapes[0] for shape in shapes):
        text = " and ".join(str(shape) for shape in shapes)
        raise ValueError(f"{op.name}: the shapes {text} must be equal; `reshape` or `broadcast_to` makes them so")
    return shapes[0]


def like(operand: Operand, workspace: int) -> Inferred:
    """A C-contiguous result of the operand's shape and dtype."""
    array = as_meta(operand)
    return Inferred(meta(array.shape, array.dtype), workspace)


def copies(operands: tuple[Operand, ...]) -> int:
    """Bytes of C-contiguous copies."""
    return sum(operand.nbytes for operand in operands if isinstance(operand, Meta) and not operand.contiguous)


def block_bytes(operand: Operand, width: int, count: int) -> int:
    """Bytes of `count` arrays of one block of rows each, or of four long blocks, if those are more."""
    array = as_meta(operand)
    size = prod(array.bound)
    arrays = max(count * min(size, max(BLOCK, width)), 4 * min(size, max(LONG_BLOCK, width)))
    return arrays * array.dtype.itemsize
