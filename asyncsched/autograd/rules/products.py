"""Derivatives of products that sum over axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ... import functions as f
from ...ops.rules_linalg import tensordot_axes
from ...tensor import Tensor


def _matmul_first(g: Tensor, y: Tensor, call: Any) -> Tensor:
    g, _, y = _as_matrices(g, None, y, call)
    return g @ y.mT


def _matmul_second(g: Tensor, x: Tensor, call: Any) -> Tensor:
    g, x, _ = _as_matrices(g, x, None, call)
    ndim = len(call.metas[1].shape)
    if ndim <= 2 and x.ndim > 2:  # one product over all rows, instead of one for each matrix and their sum
        g, x = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
    found = x.mT @ g
    return f.squeeze(found, -1) if ndim == 1 else found


def _as_matrices(g: Tensor, x: Any, y: Any, call: Any) -> tuple[Any, Any, Any]:
    """With the dimensions that `matmul` gives vectors for the product and drops afterwards."""
    first, second = [len(meta.shape) for meta in call.metas]
    if second == 1:
        g, y = f.expand_dims(g, axis=-1), y if y is None else f.expand_dims(y, axis=-1)
    if first == 1:
        g, x = f.expand_dims(g, axis=-2), x if x is None else f.expand_dims(x, axis=0)
    return g, x, y


def _vecdot(g: Tensor, other: Tensor, call: Any) -> Tensor:
    """The sum ran over an axis that each operand counts for itself: last is where both have it."""
    axis, shape = call.options.get("axis", -1), call.metas[call.place].shape
    found = f.expand_dims(g, axis=-1) * f.moveaxis(other, axis, -1)
    extra, axis = found.ndim - len(shape), normalize_axis_index(axis, len(shape))
    if extra > 0:  # what was broadcast in front goes first, so that the axis is the operand's
        found = f.sum(found, axis=tuple(range(extra)))
    return f.moveaxis(found, -1, axis)


def _tensordot_first(g: Tensor, y: Tensor, call: Any) -> Tensor:
    summed, summed_y, kept, kept_y = _tensordot_plan(call)
    found = f.tensordot(g, y, axes=(tuple(range(len(kept), g.ndim)), kept_y))
    return _in_order(found, kept + tuple([summed[i] for i in np.argsort(summed_y)]))


def _tensordot_second(g: Tensor, x: Tensor, call: Any) -> Tensor:
    summed_x, summed, kept_x, kept = _tensordot_plan(call)
    found = f.tensordot(x, g, axes=(kept_x, tuple(range(len(kept_x)))))
    return _in_order(found, tuple([summed[i] for i in np.argsort(summed_x)]) + kept)


def _tensordot_plan(call: Any) -> tuple[tuple[int, ...], ...]:
    """The axes of both operands that were summed over, and those that were not."""
    first, second = [len(meta.shape) for meta in call.metas]
    summed = tensordot_axes(call.options.get("axes", 2), first, second)
    kept = [tuple([i for i in range(n) if i not in s]) for n, s in zip((first, second), summed, strict=True)]
    return *summed, *kept


def _in_order(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """`x`, whose axis `i` is to be axis `order[i]`."""
    return f.permute_dims(x, tuple([order.index(i) for i in range(len(order))]))


PRODUCTS: dict[str, tuple[Callable[..., Tensor] | None, ...]] = {
    "matmul": (_matmul_first, _matmul_second),
    "vecdot": (lambda g, y, call: _vecdot(g, y, call), lambda g, x, call: _vecdot(g, x, call)),
    "tensordot": (_tensordot_first, _tensordot_second),
}
