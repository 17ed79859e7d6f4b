"""Convolution and pooling: the plain kernels, and a pool by numba where that is installed."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from asyncsched.ops import TABLE, parallel, resolve
from asyncsched.ops.kernels import compiled, conv

pytestmark = pytest.mark.one_loop

RNG = np.random.default_rng(0)


def run(name: str, operands: Any, options: Any) -> Any:
    with np.errstate(all="ignore"):  # as operations run
        return resolve(TABLE[name], np)(*operands, **options)


@pytest.mark.parametrize(("images", "channels", "size"), [(24, 1, 14), (5, 3, 40), (9, 12, 13), (20, 9, 5)])
@pytest.mark.parametrize(("kernel", "padding"), [((3, 3), (1, 1)), ((1, 3), (0, 2)), ((2, 1), (0, 0))])
def test_the_plain_kernel_sums_what_windows_see(images, channels, size, kernel, padding):
    x, weight = RNG.standard_normal((images, channels, size, size)), RNG.standard_normal((6, channels, *kernel))
    bias = RNG.standard_normal(6)
    options = {"stride": (1, 2), "padding": padding, "dilation": (2, 1)}
    padded = np.pad(x, ((0, 0), (0, 0), *[(p, p) for p in padding]))
    reach = (2 * kernel[0] - 1, kernel[1])
    seen = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))[:, :, :, ::2, ::2]
    found = run("conv2d", (x, weight, bias), options)
    np.testing.assert_allclose(found, np.einsum("ncijkl,ockl->noij", seen, weight) + bias[:, None, None], atol=1e-9)
    grad = RNG.standard_normal(found.shape)
    found = run("conv2d_weight_grad", (grad, x), {"shape": weight.shape, **options})
    np.testing.assert_allclose(found, np.einsum("ncijkl,noij->ockl", seen, grad), atol=1e-9)


@pytest.mark.parametrize("channels", [3, 20])
def test_the_gradient_of_a_weight_is_added_up_in_turns_with_the_same_bits(monkeypatch, channels):
    x, grad = [RNG.standard_normal((40, count, 40, 40), np.float32) for count in (channels, 16)]
    options = {"shape": (16, channels, 3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    monkeypatch.setattr(parallel._here, "threads", 2)
    found = []
    for seconds in (1e9, 1e-5):
        turns = []
        monkeypatch.setattr(parallel, "run", lambda parts, turns=turns: turns.append([part() for part in parts]))
        monkeypatch.setattr(conv, "_SUM_SECONDS", seconds)
        found.append(run("conv2d_weight_grad", (grad, x), options).tobytes())
        assert (len(turns) > 1) == (seconds < 1)
    assert found[0] == found[1]


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
@pytest.mark.parametrize("shape", [(40, 5, 28, 28), (40, 9, 15, 21), (70, 8, 9, 8), (900, 9, 2, 3)])
def test_a_pool_and_its_gradient_have_the_bits_of_the_plain_kernels(monkeypatch, shape):
    assert compiled.finish()
    options = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
    x = np.round(RNG.standard_normal(shape), 1).astype("f4")  # some are equal
    x[x == 0] = 0  # of two zeros with signs, either is the larger
    x[RNG.random(shape) < 0.02] = np.nan
    x[:2] = -np.inf

    def both() -> list[bytes]:
        y = resolve(TABLE["max_pool2d"], np)(x, **options)
        return [y.tobytes(), resolve(TABLE["max_pool2d_backward"], np)(x, y, grad, **options).tobytes()]

    with np.errstate(all="ignore"):
        grad = RNG.standard_normal((*shape[:2], shape[2] // 2, shape[3] // 2)).astype("f4")
        found = both()
        monkeypatch.setattr(compiled, "_loops", {})
        assert found == both()
