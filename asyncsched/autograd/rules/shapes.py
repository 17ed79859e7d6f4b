"""Derivatives of what rearranges, joins or repeats."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from numpy.lib.array_utils import normalize_axis_index

from ... import functions as f
from ...ops.table import TABLE
from ...tensor import Tensor, apply


def _back(g: Tensor, call: Any) -> Tensor:
    """In the operand's shape again."""
    shape = call.metas[call.place].shape
    return g if g.shape == shape else g.reshape(shape)


def _permute(g: Tensor, call: Any) -> Tensor:
    ndim = len(call.metas[0].shape)
    order = [normalize_axis_index(axis, ndim) for axis in call.options["axes"]]
    return f.permute_dims(g, [order.index(axis) for axis in range(ndim)])


def _concat(g: Tensor, call: Any) -> Tensor:
    axis = call.options.get("axis", 0)
    shapes = [meta.shape if axis is not None else (prod(meta.shape),) for meta in call.metas]
    at = 0 if axis is None else normalize_axis_index(axis, g.ndim)
    start = sum(shape[at] for shape in shapes[: call.place])
    part = g[(slice(None),) * at + (slice(start, start + shapes[call.place][at]),)]
    return _back(part, call)


def _stack(g: Tensor, call: Any) -> Tensor:
    axis = normalize_axis_index(call.options.get("axis", 0), g.ndim)
    return g[(slice(None),) * axis + (call.place,)]


def _repeat(g: Tensor, call: Any) -> Tensor:
    axis, repeats, shape = call.options.get("axis"), call.options["repeats"], call.metas[0].shape or (1,)
    if axis is None:
        return _back(g.reshape(prod(shape), repeats).sum(axis=1), call)
    axis = normalize_axis_index(axis, len(shape))
    return _back(g.reshape(*shape[: axis + 1], repeats, *shape[axis + 1 :]).sum(axis=axis + 1), call)


def _tile(g: Tensor, call: Any) -> Tensor:
    shape, repetitions = call.metas[0].shape, call.options["repetitions"]
    shape = (1,) * (g.ndim - len(shape)) + shape
    repetitions = (1,) * (g.ndim - len(repetitions)) + tuple(repetitions)
    pairs = [n for pair in zip(repetitions, shape, strict=True) for n in pair]
    return _back(g.reshape(pairs).sum(axis=tuple(range(0, len(pairs), 2))), call)


def _roll(g: Tensor, call: Any) -> Tensor:
    shift = call.options["shift"]
    back = -shift if isinstance(shift, int) else tuple([-n for n in shift])
    return f.roll(g, back, axis=call.options.get("axis"))


def _same(name: str) -> Callable[..., Tensor]:
    """Of what is its own transpose."""

    def rule(g: Tensor, call: Any) -> Tensor:
        return apply(TABLE[name], (g,), call.options)

    return rule


SHAPES: dict[str, tuple[Callable[..., Tensor] | None, ...]] = {
    "broadcast_to": (lambda g: g,),
    "concat": (_concat,),
    "expand_dims": (_back,),
    "flip": (_same("flip"),),
    "matrix_transpose": (lambda g: g.mT,),
    "permute_dims": (_permute,),
    "repeat": (_repeat,),
    "reshape": (_back,),
    "roll": (_roll,),
    "squeeze": (_back,),
    "stack": (_stack,),
    "tile": (_tile,),
    "tril": (_same("tril"),),
    "triu": (_same("triu"),),
}
