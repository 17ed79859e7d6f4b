"""Derivatives of Fourier transforms. Each transform is linear, and its rule multiplies by the transposed matrix.

A transform's matrix is symmetric, so it is its own transpose. The operand was cut off or padded first, so the rule
undoes that last. For a transform of real numbers that keeps half of the result, the other half of the gradient is zero.
For a transform from half a spectrum to real numbers, the gradient is the real part of a transform in which the elements
that stand for two count twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ops.kernels.fourier import places_of
from ...tensors import functions as f
from ...tensors.functions._common import op
from ...tensors.tensor import Tensor
from .common import Rules, along, scatter


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
