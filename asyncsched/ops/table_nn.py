"""The rows of neural networks: layers, activations, losses, attention, convolution, random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from . import kernels, rules
from .op import Bound, Op


def network_ops() -> Iterator[Op]:
    """The rows of networks."""
    yield from _layers()
    yield from _losses()
    yield from _attention()
    yield from _convolution()


def _op(
    kernel: Any, rule: Any, doc: str, *, name: str | None = None, inplace: bool = False, checks: bool = False
) -> Op:
    """A row that takes `out=`, of its kernel's name unless one is given."""
    return Op(name or kernel.__name__, kernel, rule, out=True, inplace=inplace, checks=checks, doc=doc)


def _bounded(op: Op, kernel: Any, relative: float, absolute: float) -> Op:
    """The row with a faster kernel, off by no more than this from its own in float32, and equal in all else."""
    return replace(op, kernel=kernel, exact=op, bound=Bound(relative, absolute), plans={}, kernels={})


def _layers() -> Iterator[Op]:
    a, c, k, r = kernels.activation, kernels.compiled, kernels.layers, rules.layers
    yield _op(a.relu, r.relu, "The larger of each element and 0.", inplace=True)
    yield _op(c.relu_backward, r.elementwise, "The gradient of relu.", inplace=True)
    yield _op(a.sigmoid, r.elementwise, "1 / (1 + exp(-x)).", inplace=True)
    doc = "The larger of each element and 0, and a slope times the smaller."
    yield _op(a.leaky_relu, r.elementwise, doc, inplace=True)
    yield _op(a.softplus, r.elementwise, "log(1 + exp(beta x)) / beta.", inplace=True)
    yield _op(a.softplus_backward, r.elementwise, "The gradient of softplus.", inplace=True)
    doc = "x times the normal distribution function of x."
    yield _bounded(_op(a.gelu_exact, r.elementwise, doc, name="gelu", inplace=True), c.gelu, 1e-6, 1e-6)
    op = _op(a.gelu_backward_exact, r.elementwise, "The gradient of gelu.", name="gelu_backward", inplace=True)
    yield _bounded(op, a.gelu_backward, 1e-6, 2e-6)
    doc = "exp(x) over its sum along the last axis, or the logarithm of it."
    yield _bounded(_op(kernels.softmax.softmax, r.along_rows, doc, inplace=True), c.softmax, 3e-6, 3e-6)
    yield _op(kernels.softmax.softmax_backward, r.along_rows, "The gradient of softmax.", inplace=True)
    doc = "The last axes brought to mean 0 and variance 1."
    yield _bounded(_op(k.layer_norm, r.layer_norm, doc, inplace=True), c.layer_norm, 3e-6, 3e-6)
    yield _op(k.layer_norm_input_grad, r.layer_norm_input_grad, "The gradient of x.")
    yield _op(k.layer_norm_weight_grad, r.layer_norm_weight_grad, "That of the weight.")
    yield _op(k.linear, r.linear, "x weight^T + bias.")
    yield _op(k.linear_weight_grad, r.linear_weight_grad, "The gradient of the weight.")
    yield _op(k.linear_bias_grad, r.linear_bias_grad, "That of the bias.")
    doc = "Rows of a weight, by their numbers."
    yield _op(kernels.index.embedding, rules.index.embedding, doc, checks=True)
    yield _op(k.dropout, r.dropout, "Elements dropped at random, the others scaled.", inplace=True)
    yield _op(k.uniform, r.random, "Evenly distributed random numbers.")
    yield _op(k.normal, r.random, "Normally distributed random numbers.")


def _losses() -> Iterator[Op]:
    k, r = kernels.losses, rules.losses
    yield Op("mse_loss", k.mse_loss, r.loss, doc="The mean of squared differences.")
    doc = "Less the logarithm of the target's softmax."
    op = Op("cross_entropy", k.cross_entropy, r.cross_entropy, checks=True, doc=doc)
    yield _bounded(op, kernels.compiled.cross_entropy, 3e-6, 3e-6)
    yield _op(k.mse_loss_backward, r.loss_backward, "The gradient of the loss.", inplace=True)
    doc = "The gradient of the loss."
    yield _op(k.cross_entropy_backward, r.cross_entropy_backward, doc, inplace=True, checks=True)


def _attention() -> Iterator[Op]:
    k, r = kernels.attention, rules.attention
    op = _op(k.attention, r.attention, "softmax(q k^T scale + mask) v, of packed q, k and v.")
    yield _bounded(op, partial(k.attention, fused=True), 3e-6, 1e-5)
    op = _op(k.attention_unpacked, r.attention_unpacked, "The same of q, k and v.")
    yield _bounded(op, partial(k.attention_unpacked, fused=True), 3e-6, 1e-5)
    yield _op(k.attention_backward, r.attention_backward, "The gradient of attention.")
    op = _op(k.self_attention, r.self_attention, "Attention of heads packed side by side.")
    yield _bounded(op, partial(k.self_attention, fused=True), 3e-6, 1e-5)
    yield _op(k.self_attention_backward, r.attention_backward, "The gradient of that.")


def _convolution() -> Iterator[Op]:
    k, p, r, w = kernels.conv, kernels.pool, rules.conv, kernels.winograd
    op = _op(k.conv2d, r.conv2d, "The convolution of images with a weight.")
    yield _bounded(op, w.conv2d, 3e-6, 1e-4)
    op = _op(k.conv2d_input_grad, r.conv2d_input_grad, "The gradient of the images.")
    yield _bounded(op, w.conv2d_input_grad, 3e-6, 1e-4)
    op = _op(k.conv2d_weight_grad, r.conv2d_weight_grad, "The gradient of the weight.")
    yield _bounded(op, w.conv2d_weight_grad, 3e-6, 2e-4)
    yield _op(p.max_pool2d, r.max_pool2d, "The largest element of each window.")
    yield _op(p.max_pool2d_backward, r.max_pool2d_backward, "The gradient of max_pool2d.")
    yield _op(p.max_pool2d_gather, r.max_pool2d_gather, "That of this gradient.")
