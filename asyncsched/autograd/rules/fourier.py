"""Derivatives of Fourier transforms. Each transform is linear, and its rule multiplies by the transposed matrix.

A transform's matrix is symmetric, so it is its own transpose. The operand was cut off or padded first, so the rule
undoes that last. For a transform of real numbers that keeps half of the result, the other half of the gradient is zero.
For a transform from half a spectrum to real numbers, the gradient is the real part of a transform in which the elements
that stand for two count twice.

Derivatives of convolution, padding and windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ops.kernels.signal import gathered_from, is_gathered, places_of
from ...tensors import functions as f
from ...tensors.functions._common import op
from ...tensors.handles import runtime_of
from ...tensors.tensor import Tensor
from .common import Rules, along, back, scatter


def _axes(call: Any) -> tuple[list[int], list[int]]:
    """The axes of a transform, and the number of points along each."""
    shape = call.metas[0].shape
    places = places_of("transform", shape, call.options)
    if len(dict(places)) < len(places):
        raise NotImplementedError("no derivative is known of a Fourier transform that takes an axis twice")
    return [axis for axis, _ in places], [shape[axis] if n is None else n for axis, n in places]


def _lengths(x: Tensor) -> tuple[int, ...]:
    return x.shape  # type: ignore[return-value]  # transforms refuse unknown shapes


def _resized(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor in another shape: cut off, or padded with zeros."""
    part = tuple([slice(0, min(n, m)) for n, m in zip(_lengths(x), shape, strict=True)])
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
    n = points[-1] = _lengths(g)[last]  # the number of points is the result's length
    found = _transform("ifftn", g, axes, points, call.options["norm"])

    once, twice = (n + 1) // 2, n // 2 + 1  # from there on, elements that stand for themselves only
    first, middle, rest = [found[along(last, g.ndim, slice(*ends))] for ends in ((0, 1), (1, once), (once, twice))]
    return _resized(f.concat([first, middle * 2, rest], axis=last), call.metas[0].shape)


FOURIER: Rules = {
    **dict.fromkeys(("fft", "fftn", "rfft", "rfftn"), (_whole("fftn"),)),
    **dict.fromkeys(("ifft", "ifftn"), (_whole("ifftn"),)),
    **dict.fromkeys(("irfft", "irfftn"), (_half,)),
}


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
