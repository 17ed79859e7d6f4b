"""The rows of neural networks: layers, activations, losses, attention, convolution, random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from . import kernels, rules
from .row import Bound, Row


def network_rows() -> Iterator[Row]:
    """The rows of networks."""
    yield from _layers()
    yield from _losses()
    yield from _attention()
    yield from _convolution()


def _row(
    kernel: Any, rule: Any, doc: str, *, name: str | None = None, inplace: bool = False, checks: bool = False
) -> Row:
    """A row that takes `out=`, of its kernel's name unless one is given."""
    return Row(name or kernel.__name__, kernel, rule, out=True, inplace=inplace, checks=checks, doc=doc)


def _bounded(row: Row, kernel: Any, relative: float, absolute: float) -> Row:
    """The row with a faster kernel, off by no more than this from its own in float32, and equal in all else."""
    return replace(row, kernel=kernel, exact=row, bound=Bound(relative, absolute), plans={}, kernels={})


def _layers() -> Iterator[Row]:
    a, c, k, r = kernels.activation, kernels.compiled, kernels.layers, rules.layers
    yield _row(a.relu, r.relu, "The larger of each element and 0.", inplace=True)
    yield _row(c.relu_backward, r.elementwise, "The gradient of relu.", inplace=True)
    yield _row(a.sigmoid, r.elementwise, "1 / (1 + exp(-x)).", inplace=True)
    doc = "The larger of each element and 0, and a slope times the smaller."
    yield _row(a.leaky_relu, r.elementwise, doc, inplace=True)
    yield _row(a.softplus, r.elementwise, "log(1 + exp(beta x)) / beta.", inplace=True)
    yield _row(a.softplus_backward, r.elementwise, "The gradient of softplus.", inplace=True)
    doc = "x times the normal distribution function of x."
    yield _bounded(_row(a.gelu_exact, r.elementwise, doc, name="gelu", inplace=True), c.gelu, 1e-6, 1e-6)
    row = _row(a.gelu_backward_exact, r.elementwise, "The gradient of gelu.", name="gelu_backward", inplace=True)
    yield _bounded(row, a.gelu_backward, 1e-6, 2e-6)
    doc = "exp(x) over its sum along the last axis, or the logarithm of it."
    yield _bounded(_row(kernels.softmax.softmax, r.along_rows, doc, inplace=True), c.softmax, 3e-6, 3e-6)
    yield _row(kernels.softmax.softmax_backward, r.along_rows, "The gradient of softmax.", inplace=True)
    doc = "The last axes brought to mean 0 and variance 1."
    yield _bounded(_row(k.layer_norm, r.layer_norm, doc, inplace=True), c.layer_norm, 3e-6, 3e-6)
    yield _row(k.layer_norm_input_grad, r.layer_norm_input_grad, "The gradient of x.")
    yield _row(k.layer_norm_weight_grad, r.layer_norm_weight_grad, "That of the weight.")
    yield _row(k.linear, r.linear, "x weight^T + bias.")
    yield _row(k.linear_weight_grad, r.linear_weight_grad, "The gradient of the weight.")
    yield _row(k.linear_bias_grad, r.linear_bias_grad, "That of the bias.")
    doc = "Rows of a weight, by their numbers."
    yield _row(kernels.index.embedding, rules.index.embedding, doc, checks=True)
    yield _row(k.dropout, r.dropout, "Elements dropped at random, the others scaled.", inplace=True)
    yield _row(k.uniform, r.random, "Evenly distributed random numbers.")
    yield _row(k.normal, r.random, "Normally distributed random numbers.")


def _losses() -> Iterator[Row]:
    k, r = kernels.losses, rules.losses
    yield Row("mse_loss", k.mse_loss, r.loss, doc="The mean of squared differences.")
    doc = "Less the logarithm of the target's softmax."
    row = Row("cross_entropy", k.cross_entropy, r.cross_entropy, checks=True, doc=doc)
    yield _bounded(row, kernels.compiled.cross_entropy, 3e-6, 3e-6)
    yield _row(k.mse_loss_backward, r.loss_backward, "The gradient of the loss.", inplace=True)
    doc = "The gradient of the loss."
    yield _row(k.cross_entropy_backward, r.cross_entropy_backward, doc, inplace=True, checks=True)


def _attention() -> Iterator[Row]:
    k, r = kernels.attention, rules.attention
    row = _row(k.attention, r.attention, "softmax(q k^T scale + mask) v, of packed q, k and v.")
    yield _bounded(row, partial(k.attention, fused=True), 3e-6, 1e-5)
    row = _row(k.attention_unpacked, r.attention_unpacked, "The same of q, k and v.")
    yield _bounded(row, partial(k.attention_unpacked, fused=True), 3e-6, 1e-5)
    yield _row(k.attention_backward, r.attention_backward, "The gradient of attention.")
    row = _row(k.self_attention, r.self_attention, "Attention of heads packed side by side.")
    yield _bounded(row, partial(k.self_attention, fused=True), 3e-6, 1e-5)
    yield _row(k.self_attention_backward, r.attention_backward, "The gradient of that.")


def _convolution() -> Iterator[Row]:
    k, p, r, w = kernels.conv, kernels.pool, rules.conv, kernels.winograd
    row = _row(k.conv2d, r.conv2d, "The convolution of images with a weight.")
    yield _bounded(row, w.conv2d, 3e-6, 1e-4)
    row = _row(k.conv2d_input_grad, r.conv2d_input_grad, "The gradient of the images.")
    yield _bounded(row, w.conv2d_input_grad, 3e-6, 1e-4)
    row = _row(k.conv2d_weight_grad, r.conv2d_weight_grad, "The gradient of the weight.")
    yield _bounded(row, w.conv2d_weight_grad, 3e-6, 2e-4)
    yield _row(p.max_pool2d, r.max_pool2d, "The largest element of each window.")
    yield _row(p.max_pool2d_backward, r.max_pool2d_backward, "The gradient of max_pool2d.")
    yield _row(p.max_pool2d_gather, r.max_pool2d_gather, "That of this gradient.")
