"""Functions and modules one by one against PyTorch's of the same name: results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn
from asyncsched.autograd import gradcheck

pytestmark = [pytest.mark.one_loop, pytest.mark.usefixtures("torch_may_block")]
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
RNG = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def chances(*shape: int) -> np.ndarray:
    """Probabilities along axis 1."""
    x = RNG.uniform(0.1, 1, shape)
    return x / x.sum(axis=min(1, x.ndim - 1), keepdims=True)


def classes(*shape: int, ignored: bool = True) -> np.ndarray:
    """Numbers below 5, and perhaps some that do not count."""
    found = RNG.integers(0, 5, shape)
    return np.where(RNG.random(shape) < 0.3, -100, found) if ignored and found.size > 1 else found


SMALL, LARGE = real(3, 4) * 3, np.array([[-800.0, -30.0, -1e-3, 1e-3, 30.0, 800.0]])
IMAGES, WEIGHT = real(2, 3, 7, 5), RNG.uniform(0.5, 2, 5)
LOSSES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
for reduction in ("mean", "sum", "none"):
    how = {"reduction": reduction}
    pair = real(3, 4), real(3, 4)
    LOSSES += [("mse_loss", pair, how), ("l1_loss", pair, how), ("smooth_l1_loss", pair, how)]
    LOSSES += [("smooth_l1_loss", pair, {**how, "beta": beta}) for beta in (0.3, 0.0)]
    LOSSES += [("huber_loss", pair, {**how, "delta": delta}) for delta in (0.3, 2.0)]
    LOSSES += [("binary_cross_entropy_with_logits", (x, RNG.uniform(0, 1, x.shape)), how) for x in (SMALL, LARGE)]
    both = {**how, "weight": real(4), "pos_weight": RNG.uniform(0.5, 2, 4)}
    LOSSES += [("binary_cross_entropy_with_logits", (SMALL, RNG.uniform(0, 1, SMALL.shape)), both)]
    logs = np.log(chances(3, 5))
    LOSSES += [("kl_div", (logs, chances(3, 5)), how), ("kl_div", (logs, np.eye(5)[:3]), how)]
    LOSSES += [("kl_div", (logs, np.log(chances(3, 5))), {**how, "log_target": True})]
    for lead, more in (((7,), ()), ((4,), (3,)), ((2,), (3, 2)), ((), ())):
        x, target = real(*lead, 5, *more), classes(*lead, *more)
        for weight in ({}, {"weight": WEIGHT}):
            LOSSES += [("nll_loss", (x, target), {**how, **weight})]
            LOSSES += [("nll_loss", (x, np.where(target < 0, 3, target)), {**how, **weight, "ignore_index": 3})]
            for smoothing in (0.0, 0.2):
                LOSSES += [("cross_entropy", (x, target), {**how, **weight, "label_smoothing": smoothing})]
                probable = chances(*lead, 5, *more)
                LOSSES += [("cross_entropy", (x, probable), {**how, **weight, "label_smoothing": smoothing})]
LOSSES += [("kl_div", (np.log(chances(3, 5)), chances(3, 5)), {"reduction": "batchmean"})]

FUNCTIONS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *[(name, (x,), {}) for name in ("relu", "sigmoid", "tanh", "silu", "leaky_relu", "softplus", "gelu")
      for x in (SMALL, LARGE)],
    ("leaky_relu", (np.array([0.0, -1.0, 2.0]), 0.2), {}),
    ("softplus", (SMALL, 2.0, 3.0), {}),
    ("conv1d", (real(2, 3, 9), real(4, 3, 3), real(4)), {"stride": 2, "padding": 1, "dilation": 2}),
    ("conv1d", (real(2, 3, 9), real(4, 3, 3)), {}),
    *[("avg_pool2d", (IMAGES, *more), how)
      for more in ((2,), ((3, 2), (2, 1), (1, 1)), (3, 1, 1), (2, None, 1))
      for how in ({}, {"count_include_pad": False}, {"divisor_override": 3})],
    ("avg_pool2d", (IMAGES[0], 2), {}),
    *[("adaptive_avg_pool2d", (IMAGES, size), {}) for size in (1, 3, (7, 1), (None, 2), (9, 5))],
    ("adaptive_avg_pool2d", (IMAGES[0], (2, 4)), {}),
    ("layer_norm", (SMALL, (4,)), {}),
    ("layer_norm", (IMAGES, (7, 5), real(7, 5)), {"eps": 1e-3}),
    ("layer_norm", (SMALL, (4,), None, real(4)), {}),
    ("rms_norm", (SMALL, (4,), real(4)), {}),
    ("rms_norm", (IMAGES, (7, 5)), {"eps": 1e-3}),
    ("group_norm", (real(2, 6, 4, 3), 3, real(6), real(6)), {}),
    ("group_norm", (real(3, 4), 2), {"eps": 1e-2}),
    ("batch_norm", (IMAGES, real(3), RNG.uniform(1, 2, 3), real(3), real(3)), {}),
    ("batch_norm", (IMAGES, None, None, real(3), real(3)), {"training": True}),
]  # fmt: skip


def each(cases: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
    return [pytest.param(*case, id=f"{i}-{case[0]}") for i, case in enumerate(cases)]


def expected(name: str, given: tuple[Any, ...], options: dict[str, Any], count: int) -> tuple[Any, list[Any]]:
    """PyTorch's result, and the gradients of the first operands for random gradients of the result."""
    tensors = [torch.tensor(a) if isinstance(a, np.ndarray) else a for a in given]
    for tensor in tensors[:count]:
        tensor.requires_grad = True
    named = {key: torch.tensor(a) if isinstance(a, np.ndarray) else a for key, a in options.items()}
    y = getattr(torch.nn.functional, name)(*tensors, **named)
    y.backward(torch.tensor(slopes(tuple(y.shape))))
    return y.detach().numpy(), [tensor.grad.numpy() for tensor in tensors[:count]]


def slopes(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).uniform(0.5, 1.5, shape)


async def compare(s: Any, name: str, given: tuple[Any, ...], options: dict[str, Any], *, count: int = 1) -> None:
    result, gradients = expected(name, given, options, count)
    tensors = [await s.put(a) if isinstance(a, np.ndarray) else a for a in given]
    for tensor in tensors[:count]:
        tensor.requires_grad = True
    named = {key: await s.put(a) if isinstance(a, np.ndarray) else a for key, a in options.items()}
    y = getattr(nn, name)(*tensors, **named)
    np.testing.assert_allclose(await y, result, rtol=1e-9, atol=1e-12)
    y.backward(await s.put(slopes(y.shape)))
    for tensor, gradient in zip(tensors[:count], gradients, strict=True):
        np.testing.assert_allclose(await tensor.grad, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "given", "options"), each(FUNCTIONS))
async def test_functions(s, name, given, options):
    await compare(s, name, given, options)


@pytest.mark.parametrize(("name", "given", "options"), each(LOSSES))
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # of PyTorch's kl_div
async def test_losses(s, name, given, options):
    constant = given[1].dtype.kind == "i" or (given[1] == 0).any()  # where PyTorch's gradient of a target is NaN
    await compare(s, name, given, options, count=1 if constant else 2)


@pytest.mark.parametrize("fn", [
    nn.silu, nn.leaky_relu, nn.softplus, lambda x: nn.avg_pool2d(x, 2), lambda x: nn.adaptive_avg_pool2d(x, 2),
    lambda x: nn.group_norm(x, 1), lambda x: nn.rms_norm(x, 3), lambda x: nn.batch_norm(x, None, None, training=True),
])  # fmt: skip
async def test_what_is_composed_has_derivatives_of_every_order(s, fn: Callable[..., asc.Tensor]):
    def gradient(x: asc.Tensor) -> asc.Tensor:
        x.requires_grad = True
        return asc.autograd.grad((fn(x) ** 3).sum(), x, create_graph=True)[0]

    await gradcheck(gradient, real(2, 2, 3, 3))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
async def test_sums_in_half_precision_do_not_overflow(s, dtype):
    x = await s.put((real(64, 4, 8) * 100 + 300).astype(dtype))
    weight, bias = asc.ones(4, dtype=dtype), asc.zeros(4, dtype=dtype)
    for y in (
        nn.batch_norm(x, None, None, weight, bias, training=True),
        nn.group_norm(x, 2, weight, bias),
        nn.rms_norm(x, 8, asc.ones(8, dtype=dtype)),
    ):
        assert y.dtype == dtype
        assert 0.5 < np.abs((await y).astype(np.float64)).max() < 10


async def test_what_does_not_fit_is_refused(s):
    x, target = asc.ones((2, 4)), asc.zeros(2, dtype=int)
    for message, call in (
        (r"l1_loss: the shapes \(2, 4\) and \(4,\) must be equal", lambda: nn.l1_loss(x, x[0])),
        ("of float32, float64: bring them to one", lambda: nn.kl_div(x, x.astype("f4"))),
        ("reduction='max' must be", lambda: nn.l1_loss(x, x, reduction="max")),
        ("beta=-1 must not be negative", lambda: nn.smooth_l1_loss(x, x, beta=-1)),
        ("delta=0 must be above 0", lambda: nn.huber_loss(x, x, delta=0)),
        ("label_smoothing=2 must be from 0 to 1", lambda: nn.cross_entropy(x, target, label_smoothing=2)),
        ("and there are 4 classes", lambda: nn.cross_entropy(x, target, asc.ones(3))),
        (r"must be \(rows, classes, ...\)", lambda: nn.nll_loss(asc.ones((2, 4, 3)), target)),
        ("of an integer dtype, not float64", lambda: nn.nll_loss(x, asc.ones(2))),
        ("must be at most half of the kernel", lambda: nn.avg_pool2d(asc.ones((1, 1, 4, 4)), 2, padding=2)),
        ("output_size=0 must be at least 1", lambda: nn.adaptive_avg_pool2d(asc.ones((1, 1, 4, 4)), (2, 0))),
        ("4 channels do not make 3 equal groups", lambda: nn.group_norm(x, 3)),
        ("must end in normalized_shape", lambda: nn.rms_norm(x, 3)),
        ("needs more than one element", lambda: nn.batch_norm(x[:1], None, None, training=True)),
        ("outside of training it needs", lambda: nn.batch_norm(x, None, None)),
        (
            "an operand of its channels has shape",
            lambda: nn.batch_norm(x, None, None, asc.ones(2), training=True),
        ),
        ("must be .sequences, channels, length.", lambda: nn.conv1d(x, x)),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            call()


@pytest.mark.parametrize("number", [2.0, np.float32(2.0), 3])
async def test_a_number_is_no_tensor(s, number):
    for name, more in (
        *[
            (name, ())
            for name in ("relu", "gelu", "sigmoid", "silu", "leaky_relu", "softplus", "softmax", "log_softmax")
        ],
        *[(name, (2,)) for name in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "rms_norm", "group_norm")],
        *[(name, (asc.ones(2),)) for name in ("mse_loss", "kl_div", "cross_entropy", "nll_loss", "conv1d")],
        ("layer_norm", (2,)),
        ("scaled_dot_product_attention", (number, number)),
    ):
        with pytest.raises(TypeError, match=f"{name} takes tensors, not .*(int|float)"):
            getattr(nn, name)(number, *more)
    with pytest.raises(TypeError, match="dropout takes tensors, not"):
        nn.dropout(number, 0.5, seed=0)


async def test_all_of_it_can_be_captured(s):
    x, y = await s.put(real(6, 5)), await s.put(chances(6, 5))
    numbers, weight = await s.put(classes(6)), await s.put(WEIGHT)

    def step(x: asc.Tensor, y: asc.Tensor) -> list[asc.Tensor]:
        logs, found = nn.log_softmax(x), [fn(x) for fn in (nn.silu, nn.leaky_relu, nn.softplus, nn.sigmoid, nn.tanh)]
        found += [nn.nll_loss(logs, numbers, weight), nn.cross_entropy(x, numbers, weight, label_smoothing=0.1)]
        found += [nn.cross_entropy(x, y), nn.kl_div(logs, y), nn.l1_loss(x, y), nn.smooth_l1_loss(x, y)]
        found += [nn.binary_cross_entropy_with_logits(x, y), nn.group_norm(x, 5), nn.rms_norm(x, 5)]
        images = x.reshape(1, 1, 6, 5)
        found += [nn.avg_pool2d(images, 2, 1, 1, count_include_pad=False), nn.adaptive_avg_pool2d(images, (4, 3))]
        return [*found, nn.batch_norm(images, None, None, training=True), nn.conv1d(x[:, None], x[:1, None])]

    graph = await s.capture(step, x, y)
    for got, expected in zip(graph(x * 2, y), step(x * 2, y), strict=True):
        np.testing.assert_array_equal(await got, await expected)


@pytest.mark.parametrize("weighted", [False, True])
async def test_a_class_out_of_range_fails_where_it_is_awaited(s, weighted):
    x, weight = asc.zeros((2, 3)), asc.ones(3)
    for wrong in (-1, 3):
        target = await s.put(np.array([0, wrong]))
        loss = nn.cross_entropy(x, target, weight) if weighted else nn.nll_loss(x, target)
        with pytest.raises(IndexError, match="the targets range from .* but there are 3 classes"):
            await loss
