"""Derivatives of operations that rearrange, join, repeat or pick elements."""

from __future__ import annotations

from math import prod
from typing import Any

from numpy.lib.array_utils import normalize_axis_tuple

from ...ops.index_keys import TENSOR
from ...ops.rules import axis_of
from ...tensors import functions as f
from ...tensors.functions._common import op
from ...tensors.tensor import Tensor
from .common import Rules, along, back, reordered, same, scatter, summed


def _concat(g: Tensor, call: Any) -> Tensor:
    axis = call.options.get("axis", 0)
    lengths = [prod(meta.shape) if axis is None else meta.shape[axis] for meta in call.metas]
    start = sum(lengths[: call.place])
    return back(g[along(axis or 0, g.ndim, slice(start, start + lengths[call.place]))], call)


def _repeat(g: Tensor, call: Any) -> Tensor:
    shape, axis = axis_of(call.metas[0].shape, call.options.get("axis"))
    axis += 1
    return back(summed(g.reshape(*shape[:axis], call.options["repeats"], *shape[axis:]), (axis,)), call)


def _tile(g: Tensor, call: Any) -> Tensor:
    shape, repetitions = call.metas[0].shape, call.options["repetitions"]
    shape = (1,) * (g.ndim - len(shape)) + shape
    repetitions = (1,) * (g.ndim - len(repetitions)) + tuple(repetitions)
    pairs = [n for pair in zip(repetitions, shape, strict=True) for n in pair]
    return back(summed(g.reshape(pairs), range(0, len(pairs), 2)), call)


def _roll(g: Tensor, call: Any) -> Tensor:
    shift = call.options["shift"]
    opposite = -shift if isinstance(shift, int) else tuple([-n for n in shift])
    return f.roll(g, opposite, axis=call.options.get("axis"))


def _getitem(g: Tensor, indices: tuple[Tensor, ...], call: Any) -> Tensor:
    """The gradient of indexing, with or without index tensors."""
    return op("scatter", g, *indices, shape=call.metas[0].shape, key=call.options["key"])


def _gather(g: Tensor, indices: tuple[Tensor, ...], call: Any) -> Tensor:
    return op("getitem_advanced" if indices else "getitem", g, *indices, key=call.options["key"])


def _setitem(g: Tensor, indices: tuple[Tensor, ...], call: Any) -> Tensor:
    """The gradient of the old version: 0 where a value was assigned. (The index tensors are the last of `indices`.)"""
    key = call.options["key"]
    return op("setitem", g, 0, *indices[len(indices) - key.count(TENSOR) :], key=key)


def _assigned(g: Tensor, indices: tuple[Tensor, ...], call: Any) -> Tensor:
    """The gradient of the assigned value: 0 for a write that another to the same place followed."""
    taken = _gather(g, indices, call)
    if all(index.dtype == bool for index in indices):
        return taken
    return f.where(op("last_written", *indices, shape=call.metas[0].shape, key=call.options["key"]), taken, 0)


def _take(g: Tensor, y: Any, call: Any) -> Tensor:
    shape, axis = axis_of(call.metas[0].shape, call.options.get("axis"))
    return back(scatter(g, along(axis, len(shape), y if isinstance(y, Tensor) else int(y)), shape), call)


def _take_along_axis(g: Tensor, y: Tensor, call: Any) -> Tensor:
    return op("scatter_along_axis", g, y, shape=call.metas[0].shape, axis=call.options.get("axis", -1))


SHAPES: Rules = {
    "broadcast_to": (same,),
    "concat": (_concat,),
    "expand_dims": (back,),
    "flip": (lambda g, call: op("flip", g, **call.options),),
    "matrix_transpose": (lambda g: g.mT,),
    "permute_dims": (lambda g, call: reordered(g, normalize_axis_tuple(call.options["axes"], g.ndim)),),
    "repeat": (_repeat,),
    "reshape": (back,),
    "roll": (_roll,),
    "squeeze": (back,),
    "stack": (lambda g, call: g[along(call.options.get("axis", 0), g.ndim, call.place)],),
    "tile": (_tile,),
    "tril": (lambda g, call: op("tril", g, **call.options),),
    "triu": (lambda g, call: op("triu", g, **call.options),),
    # Indexing: the gradient of an element goes back to its place; if an element was taken twice, both are summed.
    "getitem": (_getitem,),
    "getitem_advanced": (_getitem, None),
    "setitem": (_setitem, _assigned, None),
    "take": (_take, None),
    "take_along_axis": (_take_along_axis, None),
    "scatter": (_gather, None),
    "scatter_along_axis": (lambda g, y, call: op("take_along_axis", g, y, axis=call.options["axis"]), None),
}
