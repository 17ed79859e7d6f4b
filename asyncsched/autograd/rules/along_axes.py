"""Derivatives of reductions and cumulations. `call.options` are as the functions give them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from ... import functions as f
from ...ops.keys import Slice
from ...ops.table import TABLE
from ...tensor import Tensor, apply

_ALL = Slice(None, None, None)


def _axes(call: Any) -> tuple[int, ...]:
    """The axes reduced over, none negative."""
    axis, ndim = call.options.get("axis"), len(call.metas[0].shape)
    return tuple(range(ndim)) if axis is None else normalize_axis_tuple(axis, ndim)


def _spread(g: Tensor, call: Any) -> Tensor:
    """What has the shape of the result, with the axes that were reduced over at length one: then it broadcasts."""
    axes, shape = _axes(call), call.metas[0].shape
    kept = tuple([1 if axis in axes else length for axis, length in enumerate(shape)])
    return g if g.shape in ((), kept) else g.reshape(kept)


def _full(g: Tensor, call: Any) -> Tensor:
    """The same in the operand's shape: a view."""
    shape = call.metas[0].shape
    if None in shape:
        raise ValueError(
            f"the gradient of a reduction of {shape} needs its shape: `await` the tensor first, or multiply by a mask"
        )
    return f.broadcast_to(_spread(g, call), shape)


def _count(call: Any) -> int:
    """How many elements each of the result is made of."""
    return prod([call.metas[0].bound[axis] for axis in _axes(call)])


def _mean(g: Tensor, call: Any) -> Tensor:
    return _full(g / _count(call), call)


def _extreme(g: Tensor, x: Tensor, out: Tensor, call: Any) -> Tensor:
    """Shared evenly between those that are equally large."""
    mask = x == _spread(out, call)
    share = g / f.sum(mask, axis=_axes(call), dtype=g.dtype, keepdims=call.options.get("keepdims", False))
    return _spread(share, call) * mask


def _variance(g: Tensor, x: Tensor, call: Any) -> Tensor:
    deviations = x - f.mean(x, axis=_axes(call), keepdims=True)
    return deviations * _spread(g * (2 / (_count(call) - call.options.get("correction", 0))), call)


def _deviation(g: Tensor, x: Tensor, out: Tensor, call: Any) -> Tensor:
    return _variance(g / (out * 2), x, call)


def _prod(g: Tensor, x: Tensor, call: Any) -> Tensor:
    """The product of all others, as that of all before times that of all after: also right where there are zeros."""
    axes, shape = _axes(call), call.metas[0].shape
    rest = tuple([axis for axis in range(len(shape)) if axis not in axes])
    order = rest + axes
    lines = f.permute_dims(x, order).reshape(*[shape[axis] for axis in rest], -1)
    others = _before(lines) * f.flip(_before(f.flip(lines, axis=-1)), axis=-1)
    back = sorted(range(len(order)), key=order.__getitem__)
    return _spread(g, call) * f.permute_dims(others.reshape(*[shape[axis] for axis in order]), back)


def _before(x: Tensor) -> Tensor:
    """For each element of the last axis the product of those before it."""
    return f.cumulative_prod(x, axis=-1, include_initial=True)[..., :-1]


def _cumulated(g: Tensor, call: Any) -> tuple[Tensor, int]:
    """The gradient without that of an initial value, and the axis."""
    axis = normalize_axis_index(call.options.get("axis") or 0, len(call.metas[0].shape))
    return (g[(slice(None),) * axis + (slice(1, None),)] if call.options.get("include_initial") else g), axis


def _cumulative_sum(g: Tensor, call: Any) -> Tensor:
    g, axis = _cumulated(g, call)
    return f.flip(f.cumulative_sum(f.flip(g, axis=axis), axis=axis), axis=axis)


def _cumulative_prod(g: Tensor, x: Tensor, call: Any) -> Tensor:
    g, axis = _cumulated(g, call)
    return apply(TABLE["cumulative_prod_gradient"], (x, g), {"axis": axis})


def _diff(g: Tensor, call: Any) -> Tensor:
    """The transpose of a difference is the difference of neighbours the other way, with zeros around."""
    n = call.options.get("n", 1)
    axis = normalize_axis_index(call.options.get("axis", -1), len(call.metas[0].shape))
    length = g.shape[axis]
    padded = (*g.shape[:axis], length + 2 * n, *g.shape[axis + 1 :])
    key = (*[_ALL] * axis, Slice(n, n + length, None))
    found = f.diff(apply(TABLE["scatter"], (g,), {"shape": padded, "key": key}), axis=axis, n=n)
    return -found if n % 2 else found


def _sort(g: Tensor, x: Tensor, call: Any) -> Tensor:
    axis = call.options.get("axis", -1)
    order = apply(TABLE["argsort"], (x,), call.options)
    return apply(TABLE["scatter_along_axis"], (g, order), {"shape": call.metas[0].shape, "axis": axis})


ALONG_AXES: dict[str, tuple[Callable[..., Tensor] | None, ...]] = {
    "sum": (_full,),
    "mean": (_mean,),
    "max": (_extreme,),
    "min": (_extreme,),
    "prod": (_prod,),
    "var": (_variance,),
    "std": (_deviation,),
    "cumulative_sum": (_cumulative_sum,),
    "cumulative_prod": (_cumulative_prod,),
    "diff": (_diff,),
    "sort": (_sort,),
}
