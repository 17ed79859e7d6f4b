"""Convolution and pooling: the plain kernels, their bits and memory, and a pool by numba where that is installed."""

from __future__ import annotations

import importlib.util
import threading
from typing import Any

import numpy as np
import pytest
from conftest import meta_of, peak_of

import asyncsched as asc
from asyncsched.ops import TABLE, parallel, plan, resolve
from asyncsched.ops.kernels import compiled
from asyncsched.ops.kernels.blocks import LINE_BYTES, scratch
from asyncsched.ops.kernels.windows import Windows
from asyncsched.tensors.tensor import apply

pytestmark = pytest.mark.one_loop

RNG = np.random.default_rng(0)
SPARE = 5 / 4  # scratch memory is longer than what is used of it
# images, channels, height, width, out channels, kernel, stride, padding, dilation: odd sizes, windows that skip rows or
# columns, that lie on the padding alone, of one row or column.
SHAPES = (
    (3, 2, 9, 33, 5, (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 3, 20, 75, 4, (5, 2), (2, 2), (3, 4), (1, 3)),
    (2, 1, 7, 40, 3, (1, 3), (3, 1), (4, 0), (5, 1)),
    (9, 4, 5, 32, 2, (3, 1), (1, 1), (0, 0), (1, 1)),
    (1, 40, 8, 64, 48, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 200, 4, 64, 16, (3, 3), (1, 1), (1, 1), (1, 1)),
    (37, 7, 14, 14, 9, (3, 3), (1, 1), (1, 1), (1, 1)),
    (3, 2, 9, 31, 5, (5, 2), (1, 1), (3, 1), (1, 2)),
    (19, 4, 61, 5, 8, (2, 3), (1, 1), (0, 2), (1, 1)),
)


def given(shape: tuple[Any, ...], dtype: str = "f8") -> tuple[Any, Any, Any, dict[str, Any]]:
    images, channels, height, width, outs, kernel, stride, padding, dilation = shape
    arrays = [(images, channels, height, width), (outs, channels, *kernel), (outs,)]
    x, weight, bias = [RNG.standard_normal(one).astype(dtype) for one in arrays]
    return x, weight, bias, {"stride": stride, "padding": padding, "dilation": dilation}


def run(name: str, operands: Any, options: Any) -> Any:
    with np.errstate(all="ignore"):  # as operations run
        return resolve(TABLE[name], np)(*operands, **options)


@pytest.mark.parametrize(("images", "channels", "size"), [(24, 1, 14), (5, 3, 40), (9, 12, 13), (20, 9, 5)])
@pytest.mark.parametrize(("kernel", "padding"), [((3, 3), (1, 1)), ((1, 3), (0, 2)), ((2, 1), (0, 0))])
def test_the_plain_kernel_sums_the_elements_of_windows(images, channels, size, kernel, padding):
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
def test_the_gradient_of_a_weight_has_the_same_bits_on_any_number_of_threads(monkeypatch, channels):
    x, grad = [RNG.standard_normal((40, count, 40, 40), np.float32) for count in (channels, 16)]
    options = {"shape": (16, channels, 3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    shared, found = [], set()
    for threads in (1, 2, 3):
        monkeypatch.setattr(parallel.here, "threads", threads)
        monkeypatch.setattr(parallel, "run", lambda parts: shared.append([part() for part in parts]))
        found.add(run("conv2d_weight_grad", (grad, x), options).tobytes())
    assert len(shared[0]) == 1 < len(shared[1])
    assert len(found) == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_of_images_is_its_transpose(shape):
    x, weight, _, options = given(shape)
    grad = RNG.standard_normal((len(x), len(weight), *Windows(weight.shape[2:], **options).fit(x.shape)))
    found = run("conv2d_input_grad", (grad, weight), {"shape": x.shape, **options})
    assert np.vdot(found, x) == pytest.approx(np.vdot(grad, run("conv2d", (x, weight), options)))


@pytest.mark.parametrize("width", [40, 14])
def test_weights_that_are_not_finite_reach_no_more_than_their_windows(width):
    x, weight, _, options = given((2, 3, 8, width, 4, (3, 3), (1, 1), (1, 1), (1, 1)))
    weight[1, 2, 0, 0] = np.inf
    found = run("conv2d_input_grad", (np.ones((2, 4, 8, width)), weight), {"shape": x.shape, **options})
    there = np.zeros(x.shape, bool)
    there[:, 2, :-1, :-1] = True  # the last row and column are in no window's first one
    np.testing.assert_array_equal(np.isposinf(found), there)
    assert not np.isnan(found).any()


@pytest.mark.parametrize("name", ["conv2d", "conv2d_input_grad"])
@pytest.mark.parametrize("width", [32, 14])
def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch, name, width):
    x, weight, _, options = given((12, 16, 32, width, 16, (3, 3), (1, 1), (1, 1), (1, 1)), "f4")
    options |= {} if name == "conv2d" else {"shape": x.shape}
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(parallel.here, "threads", threads)
        found.append(run(name, (x, weight), options).tobytes())
    assert found == found[:1] * 3


@pytest.mark.parametrize("name", ["conv2d", "conv2d_input_grad"])
@pytest.mark.parametrize(
    "shape", [(40, 2, 9, 33, 5), (2, 16, 40, 160, 48), (20, 3, 6, 640, 2), (64, 32, 14, 14, 64), (5, 200, 50, 7, 30)]
)
def test_no_more_memory_is_taken_than_the_plan_says(name, shape):
    x, weight, bias, options = given((*shape, (3, 3), (1, 1), (1, 1), (1, 1)), "f4")
    operands: tuple[Any, ...] = (x, weight, bias)
    if name == "conv2d_input_grad":
        grad = np.ones((len(x), len(weight), *x.shape[2:]), "f4")
        operands, options = (grad, weight), options | {"shape": x.shape}
    row, peaks = TABLE[name], list[int]()
    assert row is not None
    found = plan(row, tuple(map(meta_of, operands)), options)
    out = np.empty(found.meta.bound, found.meta.dtype)

    def work() -> None:
        peaks.append(peak_of(lambda: row.kernel(np, *operands, out=out, **options)))

    thread = threading.Thread(target=work)  # one that has no scratch memory yet
    thread.start()
    thread.join()
    assert peaks
    buffers = 2 if np.lib.NumpyVersion(np.__version__) >= "2.3.0" else 3  # through which NumPy adds rows
    assert peaks[0] <= found.workspace * SPARE + 20_000 + buffers * 4 * np.getbufsize()


def test_a_part_that_is_a_little_longer_gets_the_same_scratch_memory():
    found: list[Any] = []

    def work() -> None:
        found.extend([scratch(np, 0, (n,), np.float32) for n in (10_000, 11_000, 9_000, 40_000)])

    thread = threading.Thread(target=work)  # that has no scratch memory yet
    thread.start()
    thread.join()
    first, second, third, last = [one.ctypes.data for one in found]
    assert first == second == third != last
    assert first % LINE_BYTES == last % LINE_BYTES == 0


LINE = ((8, 16, 1, 20_000, 16, (1, 65), (1, 1), (0, 32), (1, 1)), (3, 2, 1, 90_000, 8, (1, 30), (1, 3), (0, 7), (1, 2)))


@pytest.mark.parametrize("shape", LINE)
@pytest.mark.parametrize("name", ["conv2d", "conv2d_input_grad", "conv2d_weight_grad"])
def test_long_rows_are_cut(name, shape):
    x, weight, bias, options = given(shape, "f4")
    count = Windows(weight.shape[2:], **options).fit(x.shape)
    grad = RNG.standard_normal((len(x), len(weight), *count), np.float32)
    row, operands = TABLE[name], {"conv2d": (x, weight, bias), "conv2d_input_grad": (grad, weight)}.get(name, (grad, x))
    more = {"conv2d_input_grad": {"shape": x.shape}, "conv2d_weight_grad": {"shape": weight.shape}}.get(name, {})
    found = plan(row, tuple(map(meta_of, operands)), options | more)
    columns = 4 * x.shape[1] * weight.shape[3] * count[1]  # bytes of all windows of one image
    assert found.workspace < columns / 2 + x[0].nbytes * 2  # the gradient of an image needs a padded one
    one = run(name, operands, options | more)
    double = run(name, [a.astype("f8") for a in operands], options | more)
    np.testing.assert_allclose(one, double, rtol=1e-3, atol=3e-5 * np.abs(double).max())

    def in_a_thread() -> None:  # that has no scratch memory yet
        thread = threading.Thread(target=run, args=(name, operands, options | more))
        thread.start()
        thread.join()

    assert peak_of(in_a_thread) < found.cost * SPARE + (1 << 20)


@pytest.mark.parametrize("name", ["conv2d", "conv2d_input_grad", "conv2d_weight_grad"])
async def test_each_stream_that_takes_a_part_is_charged(name):
    x, weight, _, options = given((16, 8, 1, 9000, 8, (1, 33), (1, 1), (0, 16), (1, 1)), "f4")
    grad = np.ones((16, 8, 1, 9000), "f4")
    operands = {"conv2d": (x, weight), "conv2d_input_grad": (grad, weight)}.get(name, (grad, x))
    options |= {"conv2d_input_grad": {"shape": x.shape}, "conv2d_weight_grad": {"shape": weight.shape}}.get(name, {})
    charged = []
    for streams in (1, 2, 8):
        async with asc.Scheduler("cpu", streams=streams, max_bytes=None) as s:
            tensors = [await s.put(one) for one in operands]
            await apply(TABLE[name], tuple(tensors), options)
            charged.append(s.statistics().peak_bytes - sum(one.nbytes for one in operands))
    each = charged[1] - charged[0]
    assert each > 1 << 20
    assert charged[2] == charged[0] + 7 * each


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding"),
    [
        *[(s, (2, 2), (2, 2), (0, 0)) for s in ((40, 5, 28, 28), (40, 9, 15, 22), (70, 8, 9, 8), (900, 9, 4, 2))],
        ((70, 8, 9, 21), (2, 2), (2, 2), (0, 0)),
        ((40, 5, 17, 18), (3, 3), (2, 2), (1, 1)),
        ((40, 5, 15, 16), (3, 2), (1, 3), (0, 1)),
    ],
)
@pytest.mark.parametrize("missing", [0, 0.02])
def test_a_pool_and_its_gradient_have_the_bits_of_the_plain_kernels(
    monkeypatch, shape, kernel, stride, padding, missing
):
    assert compiled.finish()
    options = {"kernel": kernel, "stride": stride, "padding": padding}
    x = np.round(RNG.standard_normal(shape), 1).astype("f4")  # some are equal
    x[x == 0] = 0  # of two zeros with signs, either is the larger
    x[RNG.random(shape) < missing] = np.nan
    x[:2] = -np.inf

    def both() -> list[bytes]:
        y = resolve(TABLE["max_pool2d"], np)(x, **options)
        return [y.tobytes(), resolve(TABLE["max_pool2d_backward"], np)(x, y, grad, **options).tobytes()]

    with np.errstate(all="ignore"):
        grad = RNG.standard_normal(resolve(TABLE["max_pool2d"], np)(x, **options).shape).astype("f4")
        grad = np.round(grad) + 0 if missing else grad  # the gradient of a NaN is added in another order
        found = both()
        monkeypatch.setattr(compiled, "_loops", {})
        assert found == both()
