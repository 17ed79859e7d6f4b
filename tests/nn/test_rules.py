"""The derivative of every row of networks, against central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn
from asyncsched.autograd import RULES, grad, gradcheck
from asyncsched.nn.functional import op
from asyncsched.nn.rules import NETWORKS
from asyncsched.ops.table import TABLE

pytestmark = pytest.mark.anyio
Case = tuple[Callable[..., asc.Tensor], tuple[np.ndarray, ...]]


def real(*shape: int, seed: int = 0) -> np.ndarray:
    """Between -1 and 1, but not within 0.1 of 0."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.uniform(0.1, 1.0, shape) * rng.choice([-1.0, 1.0], shape))


def distinct(*shape: int) -> np.ndarray:
    """In no order, 0.1 apart."""
    return np.random.default_rng(1).permutation(int(np.prod(shape))).reshape(shape) * 0.1


def classes(count: int) -> asc.Tensor:
    """The target 0, 1, 2, 3, 4, 0, ... with one row that does not count."""
    return asc.where(asc.equal(asc.arange(count), 2), -100, asc.arange(count) % 5)


ROWS, WEIGHT, BIAS = real(2, 3, 5), real(4, 5, seed=1), real(4, seed=2)
IMAGES, KERNEL = real(2, 2, 5, 6, seed=3), real(3, 2, 3, 2, seed=4)
WINDOWS = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
GRADS = real(2, 3, 3, 4, seed=5)
QUERY, KEY, VALUE = real(2, 2, 3, 4), real(2, 2, 5, 4, seed=1), real(2, 2, 5, 3, seed=2)
QKV = real(2, 4, 12, seed=6)


def attention(q: asc.Tensor, k: asc.Tensor, v: asc.Tensor, **options: Any) -> asc.Tensor:
    return nn.scaled_dot_product_attention(q, k, v, **options)


def causal_mask() -> asc.Tensor:
    return asc.tril(asc.ones((3, 5), dtype=bool))


CASES: dict[str, list[Case]] = {
    "relu": [(nn.relu, (real(3, 4),))],
    "relu_backward": [(lambda g: op("relu_backward", g, asc.ones((3, 4))), (real(3, 4),))],
    "gelu": [(nn.gelu, (2 * real(3, 4),)), (lambda x: nn.gelu(x, "tanh"), (2 * real(3, 4),))],
    "softmax": [(nn.softmax, (ROWS,)), (lambda x: nn.softmax(x, 1), (ROWS,)), (nn.log_softmax, (ROWS,))],
    "layer_norm": [
        (nn.layer_norm, (ROWS, real(5, seed=1), real(5, seed=2))),
        (nn.layer_norm, (ROWS, real(3, 5, seed=1), real(3, 5, seed=2))),
    ],
    "linear": [
        (nn.linear, (ROWS, WEIGHT, BIAS)),
        (nn.linear, (ROWS, WEIGHT)),
        *[
            (nn.linear, (x, w, b))
            for x in (ROWS, ROWS[0], real(5))
            for w, b in ((WEIGHT, BIAS), (WEIGHT[:1], BIAS[:1]))
        ],
    ],
    "linear_weight_grad": [
        (lambda g, x: op("linear_weight_grad", g, x), (real(2, 3, 4, seed=3)[..., :n], ROWS)) for n in (4, 1)
    ],
    "linear_bias_grad": [(lambda g: op("linear_bias_grad", g), (ROWS,))],
    "dropout": [(lambda x: nn.dropout(x, 0.4, seed=3), (ROWS,))],
    "mse_loss": [
        (lambda x, y, r=r: nn.mse_loss(x, y, r), (ROWS, real(2, 3, 5, seed=7))) for r in ("mean", "sum", "none")
    ],
    "cross_entropy": [
        (lambda x, r=r, s=s: nn.cross_entropy(x, classes(7), r, label_smoothing=s), (real(7, 5),))
        for r in ("mean", "sum", "none")
        for s in (0.0, 0.3)
    ],
    "attention": [
        (attention, (QUERY, KEY, VALUE)),
        (lambda *qkv: attention(*qkv, is_causal=True, scale=0.3), (QUERY, KEY, VALUE)),
        (lambda *qkv: attention(*qkv, attn_mask=causal_mask()), (QUERY, KEY, VALUE)),
        (lambda *qkv: attention(*qkv, attn_mask=asc.full((2, 1, 3, 5), 0.5)), (QUERY, KEY, VALUE)),
        (attention, (QUERY[0, 0], KEY[0, 0], VALUE[0, 0])),
    ],
    "self_attention": [
        (lambda x: op("self_attention", x, 0, heads=2, causal=True), (QKV,)),
        (lambda x: op("self_attention", x, asc.eye(4, dtype=bool), heads=1, causal=False), (QKV,)),
    ],
    "conv2d": [
        (nn.conv2d, (IMAGES, KERNEL, BIAS[:3])),
        (nn.conv2d, (IMAGES, KERNEL)),
        (lambda x, w, b: nn.conv2d(x, w, b, **WINDOWS), (IMAGES, KERNEL, BIAS[:3])),
    ],
    "conv2d_input_grad": [(lambda g, w: op("conv2d_input_grad", g, w, shape=(2, 2, 5, 6), **WINDOWS), (GRADS, KERNEL))],
    "conv2d_weight_grad": [
        (lambda g, x: op("conv2d_weight_grad", g, x, shape=(3, 2, 3, 2), **WINDOWS), (GRADS, IMAGES))
    ],
    "max_pool2d": [
        (lambda x: nn.max_pool2d(x, 2), (distinct(2, 2, 4, 5),)),
        (lambda x: nn.max_pool2d(x, (3, 2), stride=(2, 1), padding=(1, 0)), (distinct(2, 2, 5, 4),)),
    ],
}
SECOND_ORDER = (
    "relu",
    "linear",
    "linear_weight_grad",
    "linear_bias_grad",
    "dropout",
    "conv2d",
    "conv2d_input_grad",
    "conv2d_weight_grad",
)


def each(names: Any) -> list[Any]:
    return [pytest.param(*case, id=f"{name}-{i}") for name in names for i, case in enumerate(CASES[name])]


def test_every_rule_has_a_case_and_a_row():
    assert set(NETWORKS) == set(CASES)
    assert set(NETWORKS) <= set(RULES) & set(TABLE)


@pytest.mark.parametrize(("fn", "arrays"), each(CASES))
async def test_gradients_are_those_of_central_differences(fn, arrays):
    async with asc.Scheduler("cpu"):
        await gradcheck(fn, *arrays)


@pytest.mark.parametrize(("fn", "arrays"), each(SECOND_ORDER))
async def test_gradients_of_gradients_are_too(fn, arrays):
    def gradient(*tensors: asc.Tensor) -> asc.Tensor:
        for tensor in tensors:
            tensor.requires_grad = True
        first = grad((fn(*tensors) ** 2).sum(), tensors, create_graph=True)
        return asc.concat([part.reshape(-1) for part in first])

    async with asc.Scheduler("cpu"):
        await gradcheck(gradient, *arrays)


async def test_what_has_no_second_derivative_says_so():
    async with asc.Scheduler("cpu") as s:
        x = await s.put(real(3, 4))
        x.requires_grad = True
        with pytest.raises(NotImplementedError, match="softmax_backward"):
            grad(nn.softmax(x).sum(), [x], create_graph=True)


async def test_equal_elements_of_a_window_give_the_gradient_to_the_first():
    async with asc.Scheduler("cpu") as s:
        x = await s.put(np.ones((1, 4, 4)))
        x.requires_grad = True
        nn.max_pool2d(x, 2).sum().backward()
        expected = np.zeros((1, 4, 4))
        expected[:, ::2, ::2] = 1
        assert (await x.grad).tolist() == expected.tolist()


async def test_dropout_drops_the_same_in_the_gradient():
    async with asc.Scheduler("cpu") as s:
        x = await s.put(np.ones((100, 100), np.float32))
        x.requires_grad = True
        y = nn.dropout(x, 0.3, seed=5)
        y.sum().backward()
        assert (await y.numpy()).tobytes() == (await x.grad.numpy()).tobytes()
