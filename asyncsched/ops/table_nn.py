"""The rows of neural networks: layers, activations, losses, attention, convolution, random numbers."""

from __future__ import annotations

from collections.abc import Iterator

from . import kernels, rules
from .row import Row


def network_rows() -> Iterator[Row]:
    """All of them. They take `out=`, except for the losses themselves; some are written over their first operand."""
    a, k, r = kernels.activation, kernels.layers, rules.layers
    over = ("relu", "relu_backward", "gelu", "gelu_backward", "softmax", "softmax_backward", "layer_norm", "dropout")
    for name, kernel, rule, doc in (
        ("relu", a.relu, r.relu, "The larger of each element and 0."),
        ("relu_backward", a.relu_backward, r.elementwise, "The gradient of relu."),
        ("gelu", a.gelu, r.elementwise, "x times the normal distribution function of x."),
        ("gelu_backward", a.gelu_backward, r.elementwise, "The gradient of gelu."),
        ("softmax", k.softmax, r.along_rows, "exp(x) over its sum along the last axis, or the logarithm of it."),
        ("softmax_backward", k.softmax_backward, r.along_rows, "The gradient of softmax."),
        ("layer_norm", k.layer_norm, r.layer_norm, "The last axes brought to mean 0 and variance 1."),
        ("layer_norm_input_grad", k.layer_norm_input_grad, r.layer_norm_input_grad, "The gradient of x."),
        ("layer_norm_weight_grad", k.layer_norm_weight_grad, r.layer_norm_weight_grad, "That of the weight."),
        ("linear", k.linear, r.linear, "x weight^T + bias."),
        ("linear_weight_grad", k.linear_weight_grad, r.linear_weight_grad, "The gradient of the weight."),
        ("linear_bias_grad", k.linear_bias_grad, r.linear_bias_grad, "That of the bias."),
        ("dropout", k.dropout, r.dropout, "Elements dropped at random, the others scaled."),
        ("uniform", k.uniform, r.random, "Evenly distributed random numbers."),
        ("normal", k.normal, r.random, "Normally distributed random numbers."),
    ):
        yield Row(name, kernel, rule, out=True, inplace=name in over, doc=doc)
    yield from _losses()
    yield from _windows()


def _losses() -> Iterator[Row]:
    k, r = kernels.losses, rules.layers
    yield Row("mse_loss", k.mse_loss, r.loss, doc="The mean of squared differences.")
    yield Row("cross_entropy", k.cross_entropy, r.cross_entropy, doc="Less the logarithm of the target's softmax.")
    for name, kernel, rule in (
        ("mse_loss_backward", k.mse_loss_backward, r.loss_backward),
        ("cross_entropy_backward", k.cross_entropy_backward, r.cross_entropy_backward),
    ):
        yield Row(name, kernel, rule, out=True, inplace=True, doc="The gradient of the loss.")


def _windows() -> Iterator[Row]:
    a, k, r = kernels.attention, kernels.conv, rules.windows
    for name, kernel, rule, doc in (
        ("attention", a.attention, r.attention, "softmax(q k^T scale + mask) v, of packed q, k and v."),
        ("attention_backward", a.attention_backward, r.attention_backward, "The gradient of attention."),
        ("self_attention", a.self_attention, r.self_attention, "Attention of heads packed side by side."),
        ("self_attention_backward", a.self_attention_backward, r.attention_backward, "The gradient of that."),
        ("conv2d", k.conv2d, r.conv2d, "The convolution of images with a weight."),
        ("conv2d_input_grad", k.conv2d_input_grad, r.conv2d_input_grad, "The gradient of the images."),
        ("conv2d_weight_grad", k.conv2d_weight_grad, r.conv2d_weight_grad, "The gradient of the weight."),
        ("max_pool2d", k.max_pool2d, r.max_pool2d, "The largest element of each window."),
        ("max_pool2d_backward", k.max_pool2d_backward, r.max_pool2d_backward, "The gradient of max_pool2d."),
    ):
        yield Row(name, kernel, rule, out=True, doc=doc)
