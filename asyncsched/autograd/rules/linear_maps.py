"""Derivatives of operations that are linear: each rule multiplies by the transposed matrix.

They rearrange, join, repeat or pick elements; pad, slide windows and convolve; or are Fourier transforms.

A transform's matrix is symmetric, so it is its own transpose. The operand was cut off or padded first, so the rule
undoes that last. For a transform of real numbers that keeps half of the result, the other half of the gradient is zero.
For a transform from half a spectrum to real numbers, the gradient is the real part of a transform in which the elements
that stand for two count twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from numpy.lib.array_utils import normalize_axis_tuple

from ...ops.index_keys import TENSOR
from ...ops.kernels.signal import gathered_from, is_gathered, places_of
from ...ops.rules import axis_of
from ...tensors import functions as f
from ...tensors.functions._common import known_shape, op
from ...tensors.handles import runtime_of
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


# -- Fourier transforms ------------------------------------------------------------------------------------------------


def _axes(call: Any) -> tuple[list[int], list[int]]:
    """The axes of a transform, and the number of points along each."""
    shape = call.metas[0].shape
    places = places_of("transform", shape, call.options)
    if len(dict(places)) < len(places):
        raise NotImplementedError("no derivative is known of a Fourier transform that takes an axis twice")
    return [axis for axis, _ in places], [shape[axis] if n is None else n for axis, n in places]


def _resized(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor in another shape: cut off, or padded with zeros."""
    part = tuple([slice(0, min(n, m)) for n, m in zip(known_shape(x, "a transform"), shape, strict=True)])
    x = x[part]
    return x if x.shape == tuple(shape) else scatter(x, part, tuple(shape))


def _transform(name: str, g: Tensor, axes: list[int], points: list[int], norm: str) -> Tensor:
    return op(name, g, s=tuple(points), axes=tuple(axes), norm=norm) if axes else g


def _whole(name: str) -> Any:
    """The rule of a transform that gives the whole result, or the half that `rfft` keeps.

    Where `rfft` keeps nothing, the gradient is zero.
    """

    def rule(g: Tensor, call: Any) -> Tensor:
        axes, points = _axes(call)
        return _resized(_transform(name, g, axes, points, call.options["norm"]), call.metas[0].shape)

    return rule


def _half(g: Tensor, call: Any) -> Tensor:
    """The gradient of `irfft` and the like, which turn half of a symmetric spectrum into real numbers."""
    axes, points = _axes(call)
    last = axes[-1]
    n = points[-1] = known_shape(g, "a transform")[last]  # the number of points is the result's length
    found = _transform("ifftn", g, axes, points, call.options["norm"])

    once, twice = (n + 1) // 2, n // 2 + 1  # from there on, elements that stand for themselves only
    first, middle, rest = [found[along(last, g.ndim, slice(*ends))] for ends in ((0, 1), (1, once), (once, twice))]
    return _resized(f.concat([first, middle * 2, rest], axis=last), call.metas[0].shape)


FOURIER: Rules = {
    **dict.fromkeys(("fft", "fftn", "rfft", "rfftn"), (_whole("fftn"),)),
    **dict.fromkeys(("ifft", "ifftn"), (_whole("ifftn"),)),
    **dict.fromkeys(("irfft", "irfftn"), (_half,)),
}


# -- convolution, padding, windows -------------------------------------------------------------------------------------


def _convolve(g: Tensor, other: Any, call: Any) -> Tensor:
    """The sum over all positions where an element met the other operand: a correlation, so that operand is reversed."""
    first, second = [max(getattr(meta, "shape", ()), default=1) for meta in call.metas]
    skipped = {"full": 0, "same": (min(first, second) - 1) // 2, "valid": min(first, second) - 1}[call.options["mode"]]
    g = f.pad(g, (skipped, first + second - 1 - skipped - len(g)))
    return back(f.convolve(g, f.flip(other) if isinstance(other, Tensor) else other, "valid"), call)


def _pad(g: Tensor, call: Any) -> Tensor:
    """The gradient of padding elements goes back to their sources. Constants have none."""
    pairs, mode, shape = call.options["pad_width"], call.options["mode"], call.metas[0].shape
    if mode in ("constant", "empty"):
        return g[tuple([slice(before, n - after) for n, (before, after) in zip(g.shape, pairs, strict=True)])]
    if not is_gathered(mode, call.options):
        raise NotImplementedError(f"pad: no derivative is known of mode {mode!r} with {dict(call.options)}")
    if None in shape:
        raise ValueError(f"pad: the gradient of {shape} needs its shape: `await` the tensor first")
    for axis, (n, (before, after)) in enumerate(zip(shape, pairs, strict=True)):
        if before or after:
            places = f.arange(-before, n + after, device=g.device, scheduler=runtime_of(g._value))
            key = along(axis, g.ndim, gathered_from(f, places, n, mode))
            g = scatter(g, key, (*shape[: axis + 1], *g.shape[axis + 1 :]))
    return g


def _sliding_window_view(g: Tensor, call: Any) -> Tensor:
    """The sum over all windows that contain an element, one axis after the other."""
    for axis in reversed(call.options["axis"]):
        g = op("overlap_add", g, axis=axis)
    return g


SIGNAL: Rules = {
    "convolve": (lambda g, y, call: _convolve(g, y, call), lambda g, x, call: _convolve(g, x, call)),
    "pad": (_pad,),
    "sliding_window_view": (_sliding_window_view,),
    "overlap_add": (lambda g, call: f.sliding_window_view(g, call.metas[0].shape[-1], call.options["axis"]),),
}
