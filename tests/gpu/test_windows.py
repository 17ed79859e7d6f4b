"""Windows on images have kernels of their own on a card: the numbers of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.ops import TABLE, resolve
from asyncsched.ops.kernels import windows
from asyncsched.tensors.tensor import apply

pytestmark = pytest.mark.one_loop
RNG = np.random.default_rng(0)
# images, channels, height, width, out channels; kernel, stride, padding, dilation
CONVOLUTIONS = [
    ((3, 2, 9, 12, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 3, 10, 7, 4), (5, 2), (2, 3), (3, 1), (1, 2)),
    ((4, 1, 7, 8, 3), (1, 3), (3, 1), (1, 4), (2, 1)),
    ((2, 5, 6, 6, 2), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((2, 2, 9, 9, 3), (2, 2), (3, 4), (0, 0), (1, 1)),  # some elements are in no window
]
POOLS = [
    {"kernel": kernel, "stride": stride, "padding": padding}
    for kernel, stride, padding in (
        ((2, 2), (2, 2), (0, 0)), ((3, 3), (2, 2), (1, 1)), ((3, 2), (1, 3), (0, 1)), ((2, 3), (3, 1), (1, 0))
    )
]  # fmt: skip


def convolution(shape: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, dtype: str) -> dict[str, Any]:
    """Operands and options of it, and of its gradients."""
    images, channels, height, width, outs = shape
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    x, weight, bias = [
        RNG.standard_normal(one).astype(dtype)
        for one in ((images, channels, height, width), (outs, channels, *kernel), outs)
    ]
    count = windows.Windows(kernel, stride, padding, dilation).fit(x.shape)
    grad = RNG.standard_normal((images, outs, *count)).astype(dtype)
    return {
        "conv2d": ((x, weight, bias), options),
        "conv2d_input_grad": ((grad, weight), {"shape": x.shape, **options}),
        "conv2d_weight_grad": ((grad, x), {"shape": weight.shape, **options}),
    }


async def on_card(s: asc.Scheduler, name: str, operands: Any, options: Any) -> Any:
    """What an operation gives on the device."""
    tensors = tuple([await s.put(operand) for operand in operands])
    return await apply(TABLE[name], tensors, options).numpy()


@pytest.mark.parametrize("columns", [windows.CARD_COLUMNS, 300], ids=["whole", "in tiles"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
async def test_convolutions(s, monkeypatch, case, columns):
    monkeypatch.setattr(windows, "CARD_COLUMNS", columns)
    monkeypatch.setattr(windows, "FEW", 1)
    for dtype, bound in (("f8", 1e-12), ("f4", 1e-5), ("f2", 1e-2)):
        for name, (operands, options) in convolution(*case, dtype).items():
            expected = resolve(TABLE[name], np)(*[a.astype("f8") for a in operands], **options)
            got = await on_card(s, name, operands, options)
            np.testing.assert_allclose(got, expected, atol=bound * abs(expected).max())


@pytest.mark.parametrize("options", POOLS)
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2"])
async def test_pools_have_the_bits_of_the_host(s, options, dtype):
    """Some elements are equal, missing or -inf, and some are in several windows or in none."""
    for missing in (0, 0.05):
        x = np.round(RNG.standard_normal((3, 2, 9, 11)), 1).astype(dtype)
        x[x == 0] = 0  # of two zeros with signs, either is the larger
        x[RNG.random(x.shape) < missing] = np.nan
        x[0, 0] = -np.inf
        y = resolve(TABLE["max_pool2d"], np)(x, **options)
        grad = np.round(RNG.standard_normal(y.shape)).astype(dtype)
        for name, operands in (("max_pool2d", (x,)), ("max_pool2d_backward", (x, y, grad))):
            expected = resolve(TABLE[name], np)(*operands, **options)
            np.testing.assert_array_equal(await on_card(s, name, operands, options), expected)


async def test_weights_that_are_not_finite_reach_no_more_than_their_windows(s):
    weight = np.ones((4, 3, 3, 3))
    weight[1, 2, 0, 0] = np.inf
    options = {"shape": (2, 3, 8, 9), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    found = await on_card(s, "conv2d_input_grad", (np.ones((2, 4, 8, 9)), weight), options)
    there = np.zeros(found.shape, bool)
    there[:, 2, :-1, :-1] = True  # the last row and column are in no window's first one
    np.testing.assert_array_equal(np.isposinf(found), there)
    assert not np.isnan(found).any()
