"""Views in other shapes, and arrays joined, repeated or moved round."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..declare import Cost, Op, with_out
from ..rules import shape as rules
from ..rules.common import view_rule
from . import releasing_gil


def flip(xp: Any, x: Any, *, axis: Any = None) -> Any:
    """The elements along the axes in reverse: a view, also of what has no axes."""
    return xp.flip(x, axis) if x.ndim or axis is not None else x[...]


def matrix_transpose(xp: Any, x: Any) -> Any:
    """The last two axes exchanged: a view."""
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose: at least two dimensions are needed, not {x.ndim}")
    return xp.swapaxes(x, -1, -2)


def permute_dims(xp: Any, x: Any, *, axes: Any) -> Any:
    """The axes in another order: a view."""
    return xp.transpose(x, axes)


def reshape(xp: Any, x: Any, *, shape: Any, copy: bool | None = None) -> Any:
    """Another shape: a view where possible, unless a copy is wanted; with `copy=False` an error rather than a copy."""
    return xp.reshape(x, shape) if copy is None else xp.reshape(x, shape, copy=copy)


def concat(xp: Any, *arrays: Any, axis: int | None = 0, out: Any = None) -> Any:
    """Arrays joined along an axis."""
    return xp.concatenate(arrays, axis=axis, out=out)


def stack(xp: Any, *arrays: Any, axis: int = 0, out: Any = None) -> Any:
    """Arrays joined along a new axis."""
    return xp.stack(arrays, axis=axis, out=out)


def repeat_each(xp: Any, x: Any, repeats: Any, *, axis: int | None = None) -> Any:
    """Each element as often as its own number says. CuPy would have the numbers on the host."""
    if xp is np:
        return releasing_gil.repeat_each(x, repeats, axis=axis)
    lines = x.reshape(-1) if axis is None else x
    along = 0 if axis is None else axis
    ends = xp.cumsum(xp.broadcast_to(repeats, (lines.shape[along],)))
    if not ends.size:
        return lines.copy()
    if int(xp.min(repeats)) < 0:
        raise ValueError("repeats may not contain negative values.")
    places = xp.searchsorted(ends, xp.arange(int(ends[-1])), side="right")
    return xp.take(lines, places, axis=along)


OPS = (
    Op(
        "broadcast_to", "broadcast_to", view_rule, view=True,
        doc="A read-only view in a larger shape, with strides of zero.",
    ),
    Op("expand_dims", "expand_dims", view_rule, view=True, doc="A view with a new axis of length one."),
    Op("flip", flip, view_rule, view=True, doc="A view with the elements along the axes in reverse."),
    Op("matrix_transpose", matrix_transpose, view_rule, view=True, doc="A view with the last two axes exchanged."),
    Op("permute_dims", permute_dims, view_rule, view=True, doc="A view with the axes in another order."),
    Op("squeeze", "squeeze", view_rule, view=True, doc="A view without axes of length one."),
    Op("reshape", reshape, rules.reshape, view=True, doc="Another shape, in C order: a view if possible."),
    with_out(concat, rules.concat, "Tensors joined along an axis they have.", Cost.SCALAR),
    with_out(stack, rules.stack, "Tensors joined along a new axis.", Cost.SCALAR),
    Op("repeat", "repeat", rules.repeat, releasing_gil=releasing_gil.repeat, doc="Each element several times."),
    Op("repeat_each", repeat_each, rules.repeat_each, doc="Each element as often as its own number says."),
    Op("tile", releasing_gil.tile, rules.tile, doc="The tensor laid side by side."),
    Op("roll", "roll", rules.roll, doc="The elements moved round along the axes."),
)  # fmt: skip
