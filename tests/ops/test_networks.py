"""The rows of networks: formulas, promises of the plans, and the memory they take."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import another_thread_runs_during, meta_of, peak_of

from asyncsched.ops import TABLE, parallel, plan, resolve
from asyncsched.ops.kernels import (
    activation,
    attention,
    blocks,
    compiled,
    conv,
    layers,
    pool,
    windows,
)
from asyncsched.ops.kernels.activation import _normal_tail
from tests.declared import ARITIES
from tests.network_rows import MEAN, POOL, WINDOWS, network_rows_given
from tests.thorough import usually

ENTROPY = {**MEAN, "ignore_index": -100, "label_smoothing": 0.1}


def real(*shape: int, dtype: str = "f4") -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def cases(dtype: str, n: int) -> dict[str, Any]:
    return network_rows_given(real, dtype, n)


NAMES = list(cases("f4", 1))


def test_every_row_has_a_case():
    themes = (activation, layers, attention, conv, pool)
    declared = {op.name for theme in themes for op in theme.OPS} - {"class_numbers"}
    declared |= {"accurate_sum", "embedding", "dropout", "uniform", "normal"}
    assert declared - set(ARITIES) <= set(NAMES) <= declared


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", NAMES)
def test_plans_tell_the_truth_and_out_gives_the_same_bytes(check, name, dtype):
    for operands, options in cases(dtype, 2)[name]:
        eager = partial(resolve(TABLE[name], np), *operands, **options)
        found = check(name)(eager, *operands, **options)
        assert found.meta.contiguous
        assert found.meta.dtype == dtype


@pytest.mark.parametrize("name", NAMES)
def test_operands_in_any_layout(name):
    operands, options = cases("f8", 2)[name][0]
    turned = [np.asfortranarray(a) if isinstance(a, np.ndarray) else a for a in operands]
    kernel = resolve(TABLE[name], np)
    assert plan(TABLE[name], tuple(map(meta_of, turned)), options).meta.shape == kernel(*turned, **options).shape
    np.testing.assert_allclose(kernel(*turned, **options), kernel(*operands, **options), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", usually(["f4"], ["f4", "f8"]))
@pytest.mark.parametrize("name", NAMES)
def test_no_more_memory_is_taken_than_planned(name, dtype):
    operands, options = cases(dtype, 400)[name][0]
    row = TABLE[name]
    found = plan(row, tuple(map(meta_of, operands)), options)
    out = {"out": np.empty(found.meta.bound, found.meta.dtype)} if row.out else {}
    kernel = resolve(row, np)
    kernel(*operands, **out, **options)
    peak = peak_of(partial(kernel, *operands, **out, **options))
    # Python's own, and NumPy's buffers for casts, which no row counts.
    assert peak <= found.workspace + 20_000 + 2 * np.getbufsize() * found.meta.dtype.itemsize


@pytest.mark.parametrize("name", ["conv2d", "conv2d_input_grad", "conv2d_weight_grad"])
def test_no_more_memory_is_taken_for_images_with_long_rows(name):
    images, kernel, grads = real(4, 8, 40, 40), real(16, 8, 3, 3), real(4, 16, 40, 40)
    options: dict[str, Any] = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    operands = {"conv2d": (images, kernel), "conv2d_input_grad": (grads, kernel), "conv2d_weight_grad": (grads, images)}
    if name != "conv2d":
        options["shape"] = images.shape if name == "conv2d_input_grad" else kernel.shape
    row = TABLE[name]
    found = plan(row, tuple(map(meta_of, operands[name])), options)
    out, kernel_of_row = np.empty(found.meta.bound, found.meta.dtype), resolve(row, np)
    kernel_of_row(*operands[name], out=out, **options)  # what is made once is made
    peak = peak_of(partial(kernel_of_row, *operands[name], out=out, **options))
    assert peak <= found.workspace + 20_000


@pytest.mark.parametrize(("dtype", "most"), [("f8", 2e-15), ("f4", 4e-7)])
def test_the_normal_distribution_function(dtype, most):
    x = np.linspace(-8, 8, 4001).astype(dtype)
    tail = _normal_tail(np, x)[0]
    expected = np.array([math.erfc(abs(v) / math.sqrt(2)) / 2 for v in x.tolist()])
    assert np.abs(tail - expected).max() < most
    assert (np.abs(tail - expected) / expected)[np.abs(x) < 4].max() < 20 * most


def test_gelu_keeps_large_operands():
    x = np.array([-np.inf, -1e30, -40.0, 0.0, 40.0, 1e30, np.inf])
    with np.errstate(all="ignore"):
        y = resolve(TABLE["gelu"], np)(x, approximate="none")
    assert y.tolist() == [0, 0, 0, 0, 40, 1e30, np.inf]


def test_softmax_of_large_numbers_does_not_overflow():
    x = np.array([[1000.0, 1001.0], [-1000.0, -1001.0]])
    with np.errstate(all="ignore"):  # as rows run
        y = resolve(TABLE["softmax"], np)(x)
        log = resolve(TABLE["softmax"], np)(x, log=True)
    np.testing.assert_allclose(
        y, [[1 / (1 + math.e), math.e / (1 + math.e)], [math.e / (1 + math.e), 1 / (1 + math.e)]]
    )
    np.testing.assert_allclose(np.exp(log), y)


def test_blocks_do_not_show():
    """What is larger than a block gives row by row what the rows give alone."""
    x, weight, bias = real(3000, 60, dtype="f8"), real(60, dtype="f8"), real(60, dtype="f8")
    for name, operands, options in (
        ("softmax", (), {}),
        ("layer_norm", (weight, bias), {"eps": 1e-5}),
        ("gelu", (), {"approximate": "tanh"}),
    ):
        kernel = resolve(TABLE[name], np)
        rows = np.concatenate([kernel(x[i : i + 1], *operands, **options) for i in (0, 1500, 2999)])
        np.testing.assert_allclose(kernel(x, *operands, **options)[[0, 1500, 2999]], rows, rtol=1e-12)


def test_a_convolution_of_many_images_is_that_of_each():
    images, kernel = real(600, 2, 9, 9, dtype="f8"), real(3, 2, 3, 3, dtype="f8")
    convolve = resolve(TABLE["conv2d"], np)
    options = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    alone = convolve(images[-1:], kernel, **options)
    np.testing.assert_allclose(convolve(images, kernel, **options)[-1:], alone, rtol=1e-12)
    padded = np.pad(images[-1], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    np.testing.assert_allclose(alone[0], np.einsum("cijkl,ockl->oij", windows, kernel), rtol=1e-10)


def gradients_fit(images, kernel, windows, options):
    """The gradients of a convolution are those of a sum over windows of the padded images, (n, c, i, j, k, l)."""
    grad = real(len(images), len(kernel), *windows.shape[2:4], dtype="f8")
    found = resolve(TABLE["conv2d_weight_grad"], np)(grad, images, shape=kernel.shape, **options)
    np.testing.assert_allclose(found, np.einsum("ncijkl,noij->ockl", windows, grad), rtol=1e-10, atol=1e-10)
    # The gradient of the images is the transpose: <grad, conv(x)> = <input_grad(grad), x> for any x.
    back = resolve(TABLE["conv2d_input_grad"], np)(grad, kernel, shape=images.shape, **options)
    other = real(*images.shape, dtype="f8")[::-1]
    expected = np.vdot(grad, resolve(TABLE["conv2d"], np)(other, kernel, **options))
    np.testing.assert_allclose(np.vdot(back, other), expected, rtol=1e-10)


@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (2, 1)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
def test_a_convolution_of_images_with_long_rows_equals_the_sums_over_windows(padding, dilation):
    """Whole images are copied at once there, edges too; what lies across an edge goes into nothing."""
    images, kernel = real(3, 2, 30, 40, dtype="f8"), real(5, 2, 3, 2, dtype="f8")
    options = {"stride": (1, 1), "padding": padding, "dilation": dilation}
    up, left = padding
    padded = np.pad(images, ((0, 0), (0, 0), (up, up), (left, left)))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, (3, 2), strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    windows = windows[..., :: dilation[0], :: dilation[1]]
    y = resolve(TABLE["conv2d"], np)(images, kernel, **options)
    np.testing.assert_allclose(y, np.einsum("ncijkl,ockl->noij", windows, kernel), rtol=1e-10, atol=1e-12)
    gradients_fit(images, kernel, windows, options)


def test_an_infinite_element_at_an_edge_reaches_no_window_across_it():
    images, options = real(1, 1, 20, 40), {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    images[..., 5, 0] = np.inf  # of which no window has its second column
    with np.errstate(all="ignore"):
        found = resolve(TABLE["conv2d_weight_grad"], np)(real(1, 1, 19, 39), images, shape=(1, 1, 2, 2), **options)
    assert not np.isfinite(found[..., 0]).any()
    assert np.isfinite(found[..., 1]).all()


@pytest.mark.parametrize(
    ("name", "operands", "options", "error", "message"),
    [
        ("linear", (real(2, 3), real(4, 5)), {}, ValueError, "must be (..., features) and (out, features)"),
        ("linear", (real(2, 3), real(4, 3), real(3)), {}, ValueError, "the bias has shape (3,), and must have (4,)"),
        ("linear", (real(2, 3), real(4, 3, dtype="f8")), {}, TypeError, "float32, float64: bring them to one dtype"),
        ("linear_weight_grad", (real(2, 3), real(3, 3)), {}, ValueError, "must be equal except for the last axis"),
        ("accurate_sum", (np.arange(3),), {"axis": (0,)}, TypeError, "int64 is no floating-point dtype"),
        ("gelu", (np.arange(3),), {"approximate": "none"}, TypeError, "int64 is no floating-point dtype"),
        ("relu_backward", (real(2), real(3)), {}, ValueError, "must be equal"),
        ("layer_norm", (real(2, 3), real(2), real(2)), {"eps": 1e-5}, ValueError, "the shape of the last axes of x"),
        ("softmax", (np.float32(1),), {}, ValueError, "at least one dimension"),
        ("dropout", (real(2), 1), {"p": 1.5}, ValueError, "p=1.5 must be a probability"),
        ("normal", (1,), {"shape": (2,), "dtype": np.dtype(int)}, TypeError, "use `astype`"),
        ("cross_entropy", (real(2, 3, 4), np.zeros((2, 4), int)), ENTROPY, ValueError, "`logits.reshape("),
        ("cross_entropy", (real(2, 3), real(2)), ENTROPY, TypeError, "of an integer dtype, not float32"),
        ("conv2d", (real(1, 4, 5, 5), real(2, 2, 3, 3)), WINDOWS, ValueError, "groups of channels are not supported"),
        ("conv2d", (real(1, 2, 1, 5), real(2, 2, 9, 3)), WINDOWS, ValueError, "smaller than the window"),
        ("max_pool2d", (real(4, 4),), {**POOL, "padding": (2, 0)}, ValueError, "at most half of the kernel"),
        ("max_pool2d", (real(4, 4),), {**POOL, "stride": (0, 1)}, ValueError, "must be positive"),
    ],
)
def test_wrong_shapes_and_dtypes_are_refused_at_the_line(name, operands, options, error, message):
    with pytest.raises(error) as caught:
        plan(TABLE[name], tuple(map(meta_of, operands)), options)
    assert message in str(caught.value)


def test_a_layer_without_features_has_gradients():
    empty, x = real(4, 0), real(4, 3)
    assert resolve(TABLE["linear_weight_grad"], np)(empty, x).shape == (0, 3)
    assert resolve(TABLE["accurate_sum"], np)(empty, axis=(0,)).shape == (0,)
    np.testing.assert_array_equal(resolve(TABLE["linear_weight_grad"], np)(x, empty), real(3, 0))


def test_a_target_outside_the_classes_is_an_index_error():
    kernel = resolve(TABLE["cross_entropy"], np)
    for target in (3, -1):
        with pytest.raises(IndexError, match="use 0 to 2"):
            kernel(real(2, 3), np.array([0, target]), **ENTROPY)


@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
@pytest.mark.parametrize("size", [(9, 7), (40, 300)])
def test_a_convolution_in_tiles_equals_the_sums_over_windows(monkeypatch, stride, size):
    """Several small images at once, or some rows of a large one; padding may be more than a window reaches."""
    monkeypatch.setattr(windows, "COLUMNS", 9_000)
    images, kernel, bias = real(5, 2, *size, dtype="f8"), real(3, 2, 2, 3, dtype="f8"), real(3, dtype="f8")
    options = {"stride": stride, "padding": (2, 1), "dilation": (1, 2)}
    padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (2, 5), axis=(2, 3))[:, :, :: stride[0], ..., ::2]
    cut = windows.tiles(kernel.shape, 5, seen.shape[2:4])
    assert len({tile.images.start for tile in cut}) < 5 if size == (9, 7) else len(cut) > 5
    y = resolve(TABLE["conv2d"], np)(images, kernel, bias, **options)
    np.testing.assert_allclose(y, np.einsum("ncijkl,ockl->noij", seen, kernel) + bias[:, None, None], rtol=1e-10)
    gradients_fit(images, kernel, seen, options)


def test_a_tile_may_lie_on_the_padding_alone():
    images, kernel = real(1, 2048, 3, 40, dtype="f8"), real(2, 2048, 2, 1, dtype="f8")
    options = {"stride": (1, 1), "padding": (10, 0), "dilation": (1, 1)}
    padded = np.pad(images, ((0, 0), (0, 0), (10, 10), (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (2, 1), axis=(2, 3))
    y = resolve(TABLE["conv2d"], np)(images, kernel, **options)
    np.testing.assert_allclose(y, np.einsum("ncijkl,ockl->noij", seen, kernel, optimize=True), rtol=1e-10, atol=1e-12)
    gradients_fit(images, kernel, seen, options)


def test_an_infinite_weight_reaches_no_pixel_that_its_window_does_not_see():
    kernel, grad = real(1, 1, 1, 2), real(1, 1, 3, 9)
    kernel[0, 0, 0, 1] = np.inf
    options = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    with np.errstate(all="ignore"):
        found = resolve(TABLE["conv2d_input_grad"], np)(grad, kernel, shape=(1, 1, 3, 10), **options)
    assert np.isfinite(found[..., 0]).all()
    assert np.isinf(found[..., 1:]).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_begin_where_rows_have_the_bits_of_the_whole(monkeypatch, threads):
    monkeypatch.setattr(parallel.here, "threads", threads)
    found = blocks.long_blocks(np, 1000, 1001)
    assert [block.start for block in found[1:]] == [block.stop for block in found[:-1]]
    assert all(block.start % blocks.ROWS == 0 for block in found)
    assert (found[0].start, found[-1].stop) == (0, 1000)
    assert len(found) == (11 if threads == 1 else 3)
    assert len(blocks.long_blocks(np, 3, 10**7)) == 3


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_layer_norm_in_the_blocks_of_several_threads_has_the_same_bits(monkeypatch, dtype):
    operands = [real(2001, 700).astype(dtype), real(700).astype(dtype), real(700).astype(dtype)]
    found = []
    for threads in (1, 2):
        monkeypatch.setattr(parallel.here, "threads", threads)
        found.append(resolve(TABLE["layer_norm"].exact, np)(*operands, eps=1e-5).tobytes())
    assert found[0] == found[1]


FAR = np.broadcast_to(2000 + np.arange(20_000) % 16 * 1e-3, (8, 20_000)).astype(np.float32)


@pytest.mark.parametrize("mean", [2000, -3e5, 0])
@pytest.mark.parametrize("name", ["layer_norm", "layer_norm_input_grad", "layer_norm_weight_grad"])
def test_a_mean_far_larger_than_the_spread_is_rounded_as_little_as_numpys(name, mean):
    x, g = FAR + np.float32(mean - 2000), real(8, 20_000)
    ones, zeros = np.ones(20_000, np.float32), np.zeros(20_000, np.float32)
    operands, options = {
        "layer_norm": ((x, ones, zeros), {}),
        "layer_norm_input_grad": ((x, ones, g), {}),
        "layer_norm_weight_grad": ((x, g), {"shape": ones.shape}),
    }[name]
    exact = TABLE[name].exact or TABLE[name]
    single, double = [
        resolve(exact, np)(*[a.astype(dtype) for a in operands], eps=1e-5, **options)
        for dtype in (np.float32, np.float64)
    ]
    np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-4 * np.abs(double).max())


@pytest.mark.parametrize("width", [20_000, 50_257, 300_000])
def test_sums_of_long_rows_are_rounded_as_little_as_numpys(width):
    row = (2000 + np.arange(width) % 16 * 1e-3).astype(np.float32)
    total, rows = row.sum(dtype="f8"), np.tile(row, (8, 1))
    for array in (rows, rows[None], np.repeat(rows, 2, axis=0)[::2]):
        np.testing.assert_allclose(blocks.totals(np, array), np.full(array.shape[:-1], total), rtol=5e-7)
    kernel = resolve(TABLE["accurate_sum"], np)
    np.testing.assert_allclose(kernel(rows.reshape(-1, 1), axis=(0,)), [8 * total], rtol=5e-7)


def test_sums_of_few_rows_let_go_of_the_interpreters_lock():
    rows = real(400, 8_000)  # `matmul` keeps it where the result is so short
    blocks.totals(np, rows)  # what it multiplies with is there from now on

    assert another_thread_runs_during(lambda: blocks.totals(np, rows))


@pytest.mark.parametrize("shape", [(1000, 300), (37, 65), (1, 500), (3, 40, 50)])
def test_sums_have_the_bits_of_a_product_with_ones(shape):
    array = real(*shape)
    assert blocks.totals(np, array).tobytes() == (array @ np.ones(shape[-1], np.float32)).tobytes()


@pytest.mark.parametrize(("rows", "width"), [(1001, 512), (129, 2050), (33, 8200), (6, 50_000)])
def test_a_bias_is_added_with_the_bits_of_numpys(rows, width):
    x, weight, bias = real(rows, 3), real(width, 3), real(width)
    expected = np.matmul(x, weight.T) + bias
    assert resolve(TABLE["linear"], np)(x, weight, bias).tobytes() == expected.tobytes()
    out = np.empty((rows, width + 64), np.float32)[:, 64:]  # as the part of a product is
    assert resolve(TABLE["linear"], np)(x, weight, bias, out=out).tobytes() == expected.tobytes()


def test_without_numpys_buffers_the_bits_are_the_same_and_they_are_back_afterwards(monkeypatch):
    size, sizes = np.getbufsize(), []
    rows, column = real(300, 700), real(300, 1)
    expected = rows - column
    with pytest.raises(ValueError, match="on purpose"), blocks.unbuffered(np, 700):
        sizes.append(np.getbufsize())
        assert (rows - column).tobytes() == expected.tobytes()
        raise ValueError("on purpose")
    with blocks.unbuffered(np, 20):  # short rows want them
        sizes.append(np.getbufsize())
    assert sizes == [16, size]
    assert np.getbufsize() == size


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_relu_and_its_gradient_cover_the_last_of_many_elements_and_infinities(dtype, monkeypatch):
    monkeypatch.setattr(compiled, "_loops", {})
    x, grad = np.random.default_rng(0).standard_normal((2, 3, 33_331)).astype(dtype)  # no multiple of anything
    x[0, :3], x[1, :3], grad[:, -3:] = (np.nan, -np.inf, -0.0), (np.inf, 0, -np.nan), (np.nan, np.inf, -np.inf)
    relu, backward = [resolve(TABLE[name], np) for name in ("relu", "relu_backward")]
    assert relu(x).tobytes() == relu(x, out=np.empty_like(x)).tobytes() == np.maximum(x, 0).tobytes()
    expected = np.where(x <= 0, np.zeros((), dtype), grad).tobytes()
    assert backward(grad, x).tobytes() == expected
    assert backward(over := grad.copy(), x, out=over).tobytes() == expected


def test_streams_import_no_module_of_a_package():
    """Two that do so at the same time may each see half of the package: `KeyError: 'numpy.polynomial'`."""
    script = """
import asyncio, sys
import numpy as np
import asyncsched as asc
from asyncsched import nn

async def main():
    async with asc.Scheduler("cpu", streams=2) as s:
        x = await s.put(np.ones((512, 512)))
        before = set(sys.modules)
        await asc.gather(nn.gelu(x), asc.erf(x))
        print(sorted(name for name in set(sys.modules) - before if name.startswith("numpy")))

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
