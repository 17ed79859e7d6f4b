"""Convolution row by row, and the gradient of images as such a one."""

from __future__ import annotations

import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
from conftest import meta_of

from asyncsched.ops import TABLE, parallel, plan
from asyncsched.ops.kernels import by_rows, conv
from asyncsched.ops.kernels.windows import Windows

pytestmark = pytest.mark.one_loop

RNG = np.random.default_rng(0)
# images, channels, height, width, out channels, kernel, stride, padding, dilation: odd sizes, windows that skip rows or
# columns, that lie on the padding alone, of one row or column; rows that are cut in pieces, out channels in parts.
SHAPES = (
    (3, 2, 9, 33, 5, (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 3, 20, 75, 4, (5, 2), (2, 2), (3, 4), (1, 3)),
    (2, 1, 7, 40, 3, (1, 3), (3, 1), (4, 0), (5, 1)),
    (9, 4, 5, 32, 2, (3, 1), (1, 1), (0, 0), (1, 1)),
    (1, 40, 8, 64, 48, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 200, 4, 64, 16, (3, 3), (1, 1), (1, 1), (1, 1)),
)
# The same of images whose gradient is made of several side by side, of few of them, with rows cut.
NARROW = (
    (37, 7, 14, 14, 9, (3, 3), (1, 1), (1, 1), (1, 1)),
    (3, 2, 9, 31, 5, (5, 2), (1, 1), (3, 1), (1, 2)),
    (19, 4, 61, 5, 8, (2, 3), (1, 1), (0, 2), (1, 1)),
)


def given(shape: tuple[Any, ...], dtype: str = "f8") -> tuple[Any, Any, Any, dict[str, Any]]:
    images, channels, height, width, outs, kernel, stride, padding, dilation = shape
    arrays = [(images, channels, height, width), (outs, channels, *kernel), (outs,)]
    x, weight, bias = [RNG.standard_normal(one).astype(dtype) for one in arrays]
    return x, weight, bias, {"stride": stride, "padding": padding, "dilation": dilation}


def run(name: str, *operands: Any, **options: Any) -> Any:
    row = TABLE[name]
    assert row is not None
    with np.errstate(all="ignore"):  # as rows run
        return row.kernel(np, *operands, **options)


@pytest.fixture
def alone(monkeypatch):
    """The other ways raise."""

    def other(*given: Any) -> None:
        raise AssertionError("not row by row")

    monkeypatch.setattr(conv, "_convolve_tile", other)
    monkeypatch.setattr(conv, "_convolve_in_place", other)
    monkeypatch.setattr(conv, "_sum_windows", other)


@pytest.mark.parametrize("lines", [by_rows._LINES, 1000])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_sums_what_windows_see(alone, monkeypatch, shape, lines):
    monkeypatch.setattr(by_rows, "_LINES", lines)
    x, weight, bias, options = given(shape)
    (up, left), (down, right), (below, beside) = options["padding"], options["dilation"], options["stride"]
    padded = np.pad(x, ((0, 0), (0, 0), (up, up), (left, left)))
    reach = Windows(weight.shape[2:], **options).reach
    seen = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))[
        :, :, ::below, ::beside, ::down, ::right
    ]
    truth = np.einsum("ncijkl,ockl->noij", seen, weight, optimize=True)
    np.testing.assert_allclose(run("conv2d", x, weight, **options), truth, atol=1e-9)
    np.testing.assert_allclose(run("conv2d", x, weight, bias, **options), truth + bias[:, None, None], atol=1e-9)


@pytest.mark.parametrize("lines", [by_rows._LINES, 500])
@pytest.mark.parametrize("shape", [one for one in (*SHAPES, *NARROW) if one[6] == (1, 1)])
def test_the_gradient_of_images_is_that_of_each_window_where_it_came_from(alone, monkeypatch, shape, lines):
    monkeypatch.setattr(by_rows, "_LINES", lines)
    x, weight, _, options = given(shape)
    grad = RNG.standard_normal((len(x), len(weight), *Windows(weight.shape[2:], **options).fit(x.shape)))
    found = run("conv2d_input_grad", grad, weight, shape=x.shape, **options)
    monkeypatch.undo()
    monkeypatch.setattr(by_rows, "suits_input_grad", lambda *given: False)
    plain = run("conv2d_input_grad", grad, weight, shape=x.shape, **options)
    np.testing.assert_allclose(found, plain, atol=1e-9)
    assert np.vdot(found, x) == pytest.approx(np.vdot(grad, run("conv2d", x, weight, **options)))


@pytest.mark.parametrize("width", [40, 14])
def test_weights_that_are_not_finite_reach_no_more_than_their_windows(width):
    x, weight, _, options = given((2, 3, 8, width, 4, (3, 3), (1, 1), (1, 1), (1, 1)))
    weight[1, 2, 0, 0] = np.inf
    found = run("conv2d_input_grad", np.ones((2, 4, 8, width)), weight, shape=x.shape, **options)
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
        monkeypatch.setattr(parallel._here, "threads", threads)
        found.append(run(name, x, weight, **options).tobytes())
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
        tracemalloc.start()
        try:
            row.kernel(np, *operands, out=out, **options)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()

    thread = threading.Thread(target=work)  # one that has no scratch memory yet
    thread.start()
    thread.join()
    assert peaks
    assert peaks[0] <= found.workspace + 20_000


def test_what_would_take_longer_so_is_left_to_the_columns():
    windows = Windows((3, 3), (1, 1), (1, 1), (1, 1))
    assert by_rows.suits(windows, (64, 32, 3, 3), 32)
    assert not by_rows.suits(windows, (64, 32, 3, 3), 31)  # short rows
    assert not by_rows.suits(windows._replace(dilation=(2, 1)), (64, 32, 3, 3), 32)  # rows apart
    assert not by_rows.suits(windows, (256, 256, 3, 3), 32)  # large products
    assert by_rows.suits_input_grad(windows, (64, 32, 3, 3), (1, 32, 32, 32))
    assert by_rows.suits_input_grad(windows, (64, 32, 3, 3), (1, 32, 14, 14))  # side by side
    assert not by_rows.suits_input_grad(windows, (4, 32, 3, 3), (1, 32, 14, 14))  # more results than columns save
    assert not by_rows.suits_input_grad(windows._replace(dilation=(2, 1)), (64, 32, 3, 3), (1, 32, 14, 14))
    assert not by_rows.suits_input_grad(windows._replace(stride=(1, 2)), (64, 32, 3, 3), (1, 32, 32, 32))
    assert not by_rows.suits_input_grad(windows._replace(padding=(1, 3)), (64, 32, 3, 3), (1, 32, 32, 32))
