"""The derivatives of the operations of networks (the form is described in `autograd`).

Those of the gradients of bilinear operations, of choices and of gelu are there too, so that these have derivatives of
every order; the others get them by `composed`.
"""

from __future__ import annotations

from typing import Any

from ..autograd import COMPOSED, RULES
from ..ops.index_keys import TENSOR
from ..tensors.functions import broadcast_to
from ..tensors.functions._common import op
from ..tensors.tensor import Tensor
from . import composed


def _windows(call: Any) -> dict[str, Any]:
    return {name: call.options[name] for name in ("stride", "padding", "dilation")}


def _linear(g: Tensor, y: Tensor) -> Tensor:
    """One product over all rows, whatever axes they are in; for a single column broadcasting is faster."""
    if y.shape[0] == 1:
        return g * y
    return g @ y if g.ndim == 2 else op("linear", g, y.mT)


def _mse(g: Tensor, x: Tensor, y: Tensor, call: Any) -> Tensor:
    return op("mse_loss_backward", x, y, g, **call.options)


def _leaky_relu(g: Tensor, x: Tensor, call: Any) -> Tensor:
    slope = call.options["negative_slope"]
    found: Tensor = g * ((x > 0).astype(x.dtype) * (1 - slope) + slope)  # of NaN the slope below 0, as PyTorch has it
    return found


NETWORKS = {
    "relu": (lambda g, out: op("relu_backward", g, out),),
    "relu_backward": (lambda g, y: op("relu_backward", g, y), None),
    "sigmoid": (lambda g, out: g * (out * (1 - out)),),
    "leaky_relu": (_leaky_relu,),
    "softplus": (lambda g, x, call: op("softplus_backward", g, x, **call.options),),
    "gelu": (lambda g, x, call: op("gelu_backward", g, x, **call.options),),
    "gelu_backward": (
        lambda g, y, call: op("gelu_backward", g, y, **call.options),
        lambda g, x, y, call: g * (x * composed.gelu_bend(y, **call.options)),
    ),
    "softmax": (lambda g, out, call: op("softmax_backward", g, out, **call.options),),
    "layer_norm": (
        lambda g, x, y, call: op("layer_norm_input_grad", x, y, g, **call.options),
        lambda g, x, call: op("layer_norm_weight_grad", x, g, shape=call.metas[1].shape, **call.options),
        lambda g: g,
    ),
    "linear": (
        _linear,
        lambda g, x: op("linear_weight_grad", g, x),
        lambda g: op("linear_bias_grad", g),
    ),
    "linear_weight_grad": (lambda g, y: op("linear", y, g), lambda g, x: _linear(x, g)),
    "linear_bias_grad": (lambda g, call: broadcast_to(g, call.metas[0].shape),),
    "dropout": (lambda g, y, call: op("dropout", g, y, **call.options), None),
    "embedding": (lambda g, y, call: op("scatter", g, y, shape=call.metas[0].shape, key=(TENSOR,)), None),
    "mse_loss": (_mse, lambda g, x, y, call: -_mse(g, x, y, call)),
    "cross_entropy": (lambda g, x, y, call: op("cross_entropy_backward", x, y, g, **call.options), None),
    "attention": (lambda g, x, y, call: op("attention_backward", x, y, g, **call.options), None),
    "self_attention": (lambda g, x, y, call: op("self_attention_backward", x, y, g, **call.options), None),
    "conv2d": (
        lambda g, y, call: op("conv2d_input_grad", g, y, shape=call.metas[0].shape, **call.options),
        lambda g, x, call: op("conv2d_weight_grad", g, x, shape=call.metas[1].shape, **call.options),
        lambda g: g.sum(axis=(0, 2, 3)),
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
RULES.update(NETWORKS)
COMPOSED.update(composed.NETWORKS)
