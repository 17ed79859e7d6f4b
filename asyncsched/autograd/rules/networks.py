"""The derivatives of the operations of networks (the form is described in `autograd`).

The gradients of bilinear operations, of choices and of gelu have derivatives here too, so these operations have
derivatives of every order. The other fused derivatives are fast and keep few arrays, but have no derivatives
themselves. So each is written once more, composed of operations that have derivatives. The composed ones take more time
and memory (attention's takes all its weights), and are used only where a gradient is recorded itself, as with
`create_graph`. They read the same operands as the fused ones, under the same names.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf, pi, prod, sqrt
from typing import Any

import numpy as np

from ...ops.index_keys import TENSOR
from ...tensors import functions as f
from ...tensors.functions._common import op
from ...tensors.tensor import Tensor
from .common import Rules, narrow, same, summed, wide


def _windows(call: Any) -> dict[str, Any]:
    return {name: call.options[name] for name in ("stride", "padding", "dilation")}


def _linear(g: Tensor, y: Tensor) -> Tensor:
    """One product over all rows, whatever their axes. For a single column broadcasting is faster."""
    if y.shape[0] == 1:
        return g * y
    return g @ y if g.ndim == 2 else op("linear", g, y.mT)


def _leaky_relu(g: Tensor, x: Tensor, call: Any) -> Tensor:
    slope = call.options["negative_slope"]
    found: Tensor = g * ((x > 0).astype(x.dtype) * (1 - slope) + slope)  # NaN has the slope below 0, as in PyTorch
    return found


def _softplus(g: Tensor, x: Tensor, call: Any) -> Tensor:
    z = x * call.options["beta"]
    return g * f.where(z > call.options["threshold"], 1, op("sigmoid", z))


# -- composed of operations that have derivatives -------------------------------------------------------------------


def _gelu_bend(x: Tensor, approximate: str) -> Tensor:
    """The second derivative of gelu. It is cut off where it is 0 and a square might overflow."""
    if approximate != "tanh":
        square = f.square(f.clip(x, -40, 40))
        return f.exp(square * -0.5) * (2 - square) * (1 / sqrt(2 * pi))
    x = f.clip(x, -10, 10)
    bent = f.square(x) * 0.044715
    tanh, slope = f.tanh((bent + 1) * x * sqrt(2 / pi)), (bent * 3 + 1) * sqrt(2 / pi)
    bell = 1 - f.square(tanh)
    return bell * (slope + x * (x * (3 * 0.044715 * sqrt(2 / pi)) - tanh * f.square(slope)))


def _softmax(g: Tensor, out: Tensor, call: Any) -> Tensor:
    if call.options["log"]:
        return g - f.exp(out) * f.sum(g, axis=-1, keepdims=True)
    return out * (g - f.sum(g * out, axis=-1, keepdims=True))


def _cross_entropy(g: Tensor, x: Tensor, y: Tensor, call: Any) -> Tensor:
    """The softmax less the target's distribution, times the gradient of each row's loss."""
    options, shape = call.options, call.metas[0].bound
    valid, smoothing = y != options["ignore_index"], options["label_smoothing"]
    scale = g * valid.astype(x.dtype)
    if options["reduction"] == "mean":
        scale = narrow(wide(scale) / f.maximum(f.sum(valid, dtype=wide(x).dtype), 1), x)
    scale, target = f.expand_dims(scale, axis=1), f.expand_dims(f.where(valid, y, 0), axis=1)
    targets = op("scatter_along_axis", scale * (1 - smoothing), target, shape=shape, axis=1)
    found: Tensor = op("softmax", x, log=False) * scale - targets - scale * (smoothing / shape[1])
    return found


def _standardized(x: Tensor, call: Any) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """x with mean 0 and variance 1, the factor that was applied, and the axes. Half precision becomes single."""
    axes = tuple(range(-len(call.metas[1].shape), 0))
    x = wide(x)
    x = x - f.mean(x, axis=axes, keepdims=True)
    scale = 1 / f.sqrt(f.mean(f.square(x), axis=axes, keepdims=True) + call.options["eps"])
    return x * scale, scale, axes


def _layer_norm_input(g: Tensor, x: Tensor, y: Tensor, call: Any) -> Tensor:
    x, scale, axes = _standardized(x, call)
    g = g * y.astype(x.dtype)
    means = [f.mean(part, axis=axes, keepdims=True) for part in (g, g * x)]
    return (g - means[0] - x * means[1]) * scale


def _attention(g: Tensor, x: Tensor, y: Any, call: Any) -> Tensor:
    """The gradients of q (..., L, E), k (..., S, E) and v (..., S, Ev), one after the other in `x`; `y` is the mask."""
    shapes, scale = call.options["shapes"], call.options["scale"]
    ends = [sum(map(prod, shapes[:i])) for i in range(4)]
    q, k, v = [x[a:b].reshape(shape) for (a, b), shape in zip(pairwise(ends), shapes, strict=True)]
    factor = 1 / sqrt(q.shape[-1] or 1) if scale is None else scale
    weights = _weights(q @ k.mT * factor, y, call.options["causal"])
    d = g @ v.mT
    d = weights * (d - f.sum(d * weights, axis=-1, keepdims=True)) * factor
    return f.concat([part.reshape(-1) for part in (d @ k, d.mT @ q, weights.mT @ g)])


def _weights(scores: Tensor, mask: Any, causal: bool) -> Tensor:
    """The softmax of the scores. If all scores of a row are masked, all its weights are 0, since the peak is a finite
    number even there."""
    if isinstance(mask, Tensor):
        scores = f.where(mask, scores, -inf) if mask.dtype == bool else scores + mask.astype(scores.dtype)
    if causal:
        scores = f.where(f.tril(f.ones_like(scores.detach(), dtype=bool)), scores, -inf)
    if not scores.shape[-1]:
        return scores
    peak = f.max(scores.detach(), axis=-1, keepdims=True)
    powers = f.exp(scores - f.maximum(peak, float(np.finfo(scores.dtype).min)))
    total = f.sum(powers, axis=-1, keepdims=True)
    return powers / f.where(total == 0, 1, total)


NETWORKS: Rules = {
    "relu": (lambda g, out: op("relu_backward", g, out),),
    "relu_backward": (lambda g, y: op("relu_backward", g, y), None),
    "sigmoid": (lambda g, out: g * (out * (1 - out)),),
    "leaky_relu": (_leaky_relu,),
    "softplus": (_softplus,),
    "gelu": (lambda g, x, call: op("gelu_backward", g, x, **call.options),),
    "gelu_backward": (
        lambda g, y, call: op("gelu_backward", g, y, **call.options),
        lambda g, x, y, call: g * (x * _gelu_bend(y, **call.options)),
    ),
    "softmax": (lambda g, out, call: op("softmax_backward", g, out, **call.options),),
    "layer_norm": (
        lambda g, x, y, call: op("layer_norm_input_grad", x, y, g, **call.options),
        lambda g, x, call: op("layer_norm_weight_grad", x, g, shape=call.metas[1].shape, **call.options),
        same,
    ),
    "linear": (_linear, lambda g, x: op("linear_weight_grad", g, x), same),
    "dropout": (lambda g, y, call: op("dropout", g, y, **call.options), None),
    "embedding": (lambda g, y, call: op("scatter", g, y, shape=call.metas[0].shape, key=(TENSOR,)), None),
    "cross_entropy": (lambda g, x, y, call: op("cross_entropy_backward", x, y, g, **call.options), None),
    "attention": (lambda g, x, y, call: op("attention_backward", x, y, g, **call.options), None),
    "conv2d": (
        lambda g, y, call: op("conv2d_input_grad", g, y, shape=call.metas[0].shape, **call.options),
        lambda g, x, call: op("conv2d_weight_grad", g, x, shape=call.metas[1].shape, **call.options),
        lambda g: summed(g, (0, 2, 3)),
    ),
    "conv2d_input_grad": (
        lambda g, y, call: op("conv2d", g, y, **_windows(call)),
        lambda g, x, call: op("conv2d_weight_grad", x, g, shape=call.metas[1].shape, **_windows(call)),
    ),
    "conv2d_weight_grad": (
        lambda g, y, call: op("conv2d", y, g, **_windows(call)),
        lambda g, x, call: op("conv2d_input_grad", x, g, shape=call.metas[1].shape, **_windows(call)),
    ),
    "max_pool2d": (lambda g, x, out, call: op("max_pool2d_backward", x, out, g, **call.options),),
    "max_pool2d_backward": (None, None, lambda g, x, y, call: op("max_pool2d_gather", x, y, g, **call.options)),
    "max_pool2d_gather": (None, None, lambda g, x, y, call: op("max_pool2d_backward", x, y, g, **call.options)),
}
NETWORKS_COMPOSED: Rules = {
    "softmax": (_softmax,),
    "layer_norm": (_layer_norm_input, lambda g, x, call: g * _standardized(x, call)[0], same),
    "cross_entropy": (_cross_entropy, None),
    "attention": (_attention, None),
}
