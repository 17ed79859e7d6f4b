"""Derivatives of convolution, padding and windows."""

from __future__ import annotations

from typing import Any

from ...ops.kernels.signal import gathered_from, is_gathered
from ...tensors import functions as f
from ...tensors.functions._common import op
from ...tensors.handles import runtime_of
from ...tensors.tensor import Tensor
from .common import Rules, along, back, scatter


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
