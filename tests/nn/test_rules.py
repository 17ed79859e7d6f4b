"""The derivative of every row of networks, against central differences."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn
from asyncsched.autograd import COMPOSED, RULES, grad, gradcheck
from asyncsched.autograd.rules.networks import NETWORKS, NETWORKS_COMPOSED
from asyncsched.nn.functional import scaled_dot_product_attention as attention
from asyncsched.ops.table import TABLE
from asyncsched.tensors.functions._common import op
from tests.autograd.cases import Case, real
from tests.autograd.moved import NOT_YET, moved
from tests.autograd.test_tape import leaf

pytestmark = pytest.mark.one_loop


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


POOL = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0)}


def pooled() -> tuple[asc.Tensor, asc.Tensor]:
    """Images, and the largest elements of their windows."""
    images = asc.remainder(asc.arange(40, dtype=float) * 7, 41).reshape(2, 5, 4)
    return images, op("max_pool2d", images, **POOL)


def causal_mask() -> asc.Tensor:
    return asc.tril(asc.ones((3, 5), dtype=bool))


CASES: dict[str, list[Case]] = {
    "relu": [(nn.relu, (real(3, 4),))],
    "relu_backward": [(lambda g: op("relu_backward", g, asc.ones((3, 4))), (real(3, 4),))],
    "leaky_relu": [(lambda x: nn.leaky_relu(x, 0.2), (real(3, 4),))],
    "softplus": [
        (nn.softplus, (2 * real(3, 4),)),
        (lambda x: nn.softplus(x, 2.0, 0.4), (2 * real(3, 4),)),
        (lambda x: nn.softplus(x, 2.0, -1.0), (2 * real(3, 4),)),
    ],
    "sigmoid": [(nn.sigmoid, (2 * real(3, 4),))],
    "gelu": [(nn.gelu, (2 * real(3, 4),)), (lambda x: nn.gelu(x, "tanh"), (2 * real(3, 4),))],
    "gelu_backward": [
        (lambda g, x, a=a: op("gelu_backward", g, x, approximate=a), (real(3, 4), 2 * real(3, 4, seed=1)))
        for a in ("none", "tanh")
    ],
    "softmax": [(nn.softmax, (ROWS,)), (lambda x: nn.softmax(x, 1), (ROWS,)), (nn.log_softmax, (ROWS,))],
    "layer_norm": [
        (lambda x, w, b: nn.layer_norm(x, 5, w, b), (ROWS, real(5, seed=1), real(5, seed=2))),
        (lambda x, w, b: nn.layer_norm(x, (3, 5), w, b), (ROWS, real(3, 5, seed=1), real(3, 5, seed=2))),
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
    "embedding": [(lambda x: nn.embedding(asc.arange(6).reshape(2, 3) % 4, x), (real(5, 3),))],
    "dropout": [(lambda x: nn.dropout(x, 0.4, seed=3), (ROWS,))],
    "cross_entropy": [
        (lambda x, r=r, s=s: nn.cross_entropy(x, classes(7), reduction=r, label_smoothing=s), (real(7, 5),))
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
    "max_pool2d_backward": [(lambda g: op("max_pool2d_backward", *pooled(), g, **POOL), (real(2, 3, 3),))],
    "max_pool2d_gather": [(lambda x: op("max_pool2d_gather", *pooled(), x, **POOL), (real(2, 5, 4),))],
}


def each(names: Any) -> list[Any]:
    return [pytest.param(*case, id=f"{name}-{i}") for name in names for i, case in enumerate(CASES[name])]


def test_every_rule_has_a_case_and_a_row():
    assert set(NETWORKS) == set(CASES)
    assert set(NETWORKS) <= set(RULES) & set(TABLE)


@pytest.mark.parametrize(("fn", "arrays"), each(CASES))
async def test_gradients_are_those_of_central_differences(s, fn, arrays):
    await gradcheck(fn, *arrays)


@pytest.mark.parametrize(("fn", "arrays"), each(CASES))
async def test_gradients_of_gradients_are_too(s, fn, arrays):
    def gradient(*tensors: asc.Tensor) -> asc.Tensor:
        for tensor in tensors:
            tensor.requires_grad = True
        first = grad((fn(*tensors) ** 2).sum(), tensors, create_graph=True)
        return asc.concat([part.reshape(-1) for part in first])

    await gradcheck(await moved(s, gradient, arrays), NOT_YET)


@pytest.mark.parametrize("table", [COMPOSED, NETWORKS_COMPOSED], ids=["all", "networks"])
def test_what_is_composed_reads_no_more_than_was_kept(table):
    for name, rule in table.items():
        for place, partial in enumerate(rule):
            first = RULES[name][min(place, len(RULES[name]) - 1)]
            assert (partial is None) == (first is None)
            if partial is not None:
                assert set(signature(partial).parameters) <= set(signature(first).parameters)


async def test_what_is_composed_gives_what_is_fused(s):
    """Also where all is masked, where no row counts, and in half precision."""
    mask, none = await s.put(np.tri(3, 5, -1, bool)), await s.put(np.full(7, -100))
    cases = [(fn, arrays) for name in NETWORKS_COMPOSED for fn, arrays in CASES[name]]
    cases += [(lambda *qkv: attention(*qkv, attn_mask=mask), (QUERY, KEY, VALUE))]
    cases += [(attention, (QUERY, KEY[:, :, :0], VALUE[:, :, :0]))]
    cases += [(lambda x: nn.cross_entropy(x, none, label_smoothing=0.1), (real(7, 5),))]
    for fn, arrays in cases:
        for dtype, tolerance in (("f8", 1e-12), ("f4", 1e-5), ("f2", 0.02)):
            tensors = [await leaf(s, array.astype(dtype)) for array in arrays]
            out = fn(*tensors)
            start = [asc.full_like(out.detach(), 0.7)]
            fused, found = [
                await asc.gather(*grad([out], tensors, start, retain_graph=True, create_graph=recorded))
                for recorded in (False, True)
            ]
            for a, b in zip(fused, found, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


async def test_what_has_no_derivative_says_so(s):
    x = await leaf(s, real(3, 4))
    with pytest.raises(NotImplementedError, match="softmax_backward"):
        op("softmax_backward", x, x, log=False)


async def test_equal_elements_of_a_window_give_the_gradient_to_the_first(s):
    x = await leaf(s, np.ones((1, 4, 4)))
    nn.max_pool2d(x, 2).sum().backward()
    expected = np.zeros((1, 4, 4))
    expected[:, ::2, ::2] = 1
    assert (await x.grad).tolist() == expected.tolist()


async def test_dropout_drops_the_same_in_the_gradient(s):
    x = await leaf(s, np.ones((100, 100), np.float32))
    y = nn.dropout(x, 0.3, seed=5)
    y.sum().backward()
    assert (await y.numpy()).tobytes() == (await x.grad.numpy()).tobytes()


async def test_the_gradient_of_leaky_relu_is_one_or_the_slope_at_nan_too(s):
    x = await leaf(s, np.array([-np.inf, -1, 0, 4, np.inf, np.nan], "f4"))
    nn.leaky_relu(x, 0.25).sum().backward()
    np.testing.assert_array_equal(await x.grad, [0.25, 0.25, 0.25, 1, 1, 0.25])


async def test_an_infinite_gradient_ends_where_relu_gave_zero(s):
    for dtype in ("f2", "f4", "f8"):
        x = await leaf(s, np.array([-1, 0, 4, np.nan], dtype))
        asc.sqrt(nn.relu(x)).sum().backward()
        np.testing.assert_array_equal(await x.grad, [0, 0, 0.25, np.nan])


async def test_rows_that_do_not_count_change_neither_loss_nor_gradient(s):
    """Whatever they hold; where none counts there is no mean, and no gradient either."""
    array = real(3, 5)
    array[:, 0] = -np.inf
    x, target = await leaf(s, array), await s.put(np.array([1, -100, 2]))
    for reduction in ("mean", "sum"):
        alone = nn.cross_entropy(x.detach()[::2], target[::2], reduction=reduction)
        assert await nn.cross_entropy(x, target, reduction=reduction) == await alone
    nothing = nn.cross_entropy(x, target * 0 - 100, label_smoothing=0.1)
    nothing.backward()
    assert np.isnan(await nothing)
    assert not (await x.grad).any()


@pytest.mark.parametrize("mask", [np.tri(3, 5, -1, bool), np.zeros((3, 5), bool), np.zeros((), bool)])
async def test_who_may_attend_to_nothing_gets_zeros(s, mask):
    """And gives no gradient; the others get what they get without these."""
    for given in (mask, np.where(mask, 0.0, -np.inf)):
        qkv = [await leaf(s, array) for array in (QUERY, KEY, VALUE)]
        y = nn.scaled_dot_product_attention(*qkv, attn_mask=await s.put(given))
        y.sum().backward()
        assert not (await y)[..., 0, :].any()
        assert not (await qkv[0].grad)[..., 0, :].any()
        if mask.any():
            rest = nn.scaled_dot_product_attention(qkv[0][..., 1:, :], *qkv[1:], attn_mask=await s.put(given[1:]))
            np.testing.assert_allclose((await y)[..., 1:, :], await rest)
        for x in qkv:
            assert np.isfinite(await x.grad).all()


async def test_attention_is_the_same_whether_it_is_tracked_or_not(s):
    """What no gradient is wanted of is not packed, however it lies in memory."""
    whole = np.random.default_rng(0).standard_normal((3, 2, 5, 7, 8))
    ways = [lambda t: t, lambda t: asc.permute_dims(t, (1, 0, 2, 3)), lambda t: t[..., ::2], lambda t: t.mT]
    for way in ways:
        q, k, v = [way(await leaf(s, array)) for array in whole]
        tracked = nn.scaled_dot_product_attention(q, k, v, is_causal=True)
        untracked = nn.scaled_dot_product_attention(q.detach(), k.detach(), v.detach(), is_causal=True)
        np.testing.assert_allclose(await untracked, await tracked, rtol=1e-13, atol=1e-15)
        with asc.autograd.no_grad():
            again = nn.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert (await again).tobytes() == (await untracked).tobytes()


async def test_attention_to_no_keys_gives_zeros(s):
    q, k, v = [await leaf(s, array) for array in (QUERY, KEY[:, :, :0], VALUE[:, :, :0])]
    y = nn.scaled_dot_product_attention(q, k, v)
    y.sum().backward()
    assert (await y).tolist() == np.zeros((2, 2, 3, 3)).tolist()
    assert not (await q.grad).any()


async def test_sums_in_half_precision_do_not_overflow(s):
    for scale, offset in ((100, 0), (1, 100)):
        arrays = [np.random.default_rng(0).normal(offset, scale, (2, 2048)), np.ones(2048), np.ones(2048)]
        weights = np.linspace(-1, 1, 2048) * 40
        found = []
        for dtype in ("f2", "f8"):
            x, w, b = [await leaf(s, array.astype("f2").astype(dtype)) for array in arrays]
            y = nn.layer_norm(x, 2048, w, b)
            (y * await s.put(weights.astype(dtype))).sum(axis=0).backward(asc.ones(2048, dtype=dtype))
            found.append([await t for t in (y, x.grad, w.grad)])
        for half, double in zip(*found, strict=True):
            np.testing.assert_allclose(half, double, rtol=0.02, atol=0.02)
    for value in (300.0, -300.0):
        x = await leaf(s, np.array([value], "f2"))
        nn.gelu(x, "tanh").sum().backward()
        assert await x.grad == (value > 0)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u8"])
async def test_class_numbers_may_be_of_any_integer_dtype(s, dtype):
    x, labels = await leaf(s, real(5, 3)), np.array([2, 0, 1, 1, 2])
    for smoothing in (0.0, 0.1):
        found = []
        for target in (labels, labels.astype(dtype)):
            loss = nn.cross_entropy(x, await s.put(target), label_smoothing=smoothing)
            found.append(await asc.gather(loss, *grad(loss, x)))
        np.testing.assert_equal(*found)
