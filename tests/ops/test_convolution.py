"""Convolution in fewer products, or of few channels: with loops of these tests, and numba's where that is installed."""

from __future__ import annotations

import importlib.util
import tracemalloc
from typing import Any

import numpy as np
import pytest
from conftest import meta_of

from asyncsched.ops import TABLE, parallel, plan, resolve
from asyncsched.ops.kernels import compiled, conv, few_channels, winograd
from asyncsched.ops.kernels.windows import Windows

pytestmark = pytest.mark.one_loop

RNG = np.random.default_rng(0)
INPUT = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], "f4")
OUTPUT = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], "f4")
NAMES = ("conv2d", "conv2d_input_grad", "conv2d_weight_grad")
# images, channels, height, width, out channels, padding: even and odd, one tile across, more than eight, rows cut.
SHAPES = (
    (3, 9, 28, 28, 8, (1, 1)),
    (2, 8, 27, 45, 12, (0, 2)),
    (9, 8, 61, 4, 8, (2, 0)),
    (1, 8, 70, 33, 8, (1, 0)),
    (40, 8, 7, 9, 9, (1, 1)),
)
# The same of few channels: many images, rows cut, more padding than a window reaches.
FEW = ((70, 1, 9, 7, 3, (1, 1)), (2, 3, 50, 61, 9, (0, 2)), (9, 4, 20, 17, 2, (3, 4)))


def squares(images: Any, first: Any, rows: int, across: int, around: tuple[int, int], size: int) -> Any:
    """The squares that tiles take: (channels, images, rows, across, size, size)."""
    top, left = around
    padded = np.pad(images, ((0, 0), (0, 0), (top, top + 2 * rows + 4), (left, left + 2 * across + 4)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(2, 3))[:, :, 2 * first :: 2, ::2]
    return seen[:, :, :rows, :across].swapaxes(0, 1)


def put(out: Any, side: Any, found: Any) -> None:
    out[...] = np.nan  # what is spare holds nothing that counts
    places = np.einsum("ka,cnijab,lb->klcnij", side, found, side, optimize=True)
    out[..., : places[0, 0, 0].size] = places.reshape(16, len(found), -1)


def tiles_in(x: Any, first: int, rows: int, across: int, top: int, left: int, lines: Any, out: Any) -> None:
    put(out, INPUT, squares(x, first, rows, across, (top, left), 4))


def tiles_back(grad: Any, first: int, rows: int, across: int, lines: Any, out: Any) -> None:
    put(out, OUTPUT.T, squares(grad, first, rows, across, (0, 0), 2))


def tiles_out(tiles: Any, bias: Any, first: int, rows: int, across: int, lines: Any, out: Any) -> int:
    count, channels = out.shape[:2]
    places = tiles[..., : count * rows * across].reshape(4, 4, channels, count, rows, across)
    found = np.einsum("ak,klcnij,bl->nciajb", OUTPUT, places, OUTPUT, optimize=True)
    there = out[:, :, 2 * first : 2 * (first + rows)]
    found = found.reshape(count, channels, 2 * rows, 2 * across) + bias[:, None, None]
    there[...] = found[:, :, : there.shape[2], : there.shape[3]]
    return int(not np.isfinite(there).all())


def windows_of(x: Any, first: int, rows: int, top: int, left: int) -> Any:
    padded = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, first : first + rows]


def weigh_few(grad, x, first: int, rows: int, top: int, left: int, lines, run, out) -> None:  # type: ignore[no-untyped-def]
    seen = windows_of(x, first, rows, top, left)
    out[..., 3] += np.einsum("ncijkl,noij->ockl", seen, grad[:, :, first : first + rows]).reshape(out.shape[:3])


LOOPS = {one.__name__: one for one in (tiles_in, tiles_back, tiles_out, weigh_few)}


@pytest.fixture(params=["plain", "numba"])
def loops(request, monkeypatch):
    """The names of loops that ran."""
    if request.param == "numba":
        if importlib.util.find_spec("numba") is None:
            pytest.skip("numba is not installed")
        assert compiled.finish()
    ran: list[str] = []

    def noted(name: str, loop: Any) -> Any:
        return lambda *given: (ran.append(name), loop(*given))[1]

    found = LOOPS if request.param == "plain" else {name: compiled._loops[name] for name in LOOPS}
    monkeypatch.setattr(compiled, "_started", True)
    monkeypatch.setattr(compiled, "_loops", {name: noted(name, loop) for name, loop in found.items()})
    return ran


def given(shape: tuple[Any, ...], dtype: str = "f4") -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    images, channels, height, width, outs, padding = shape
    options = {"stride": (1, 1), "padding": padding, "dilation": (1, 1)}
    count = Windows((3, 3), **options).fit((height, width))
    x, weight, bias, grad = [
        RNG.standard_normal(one).astype(dtype)
        for one in ((images, channels, height, width), (outs, channels, 3, 3), (outs,), (images, outs, *count))
    ]
    return {
        "conv2d": ((x, weight, bias), options),
        "conv2d_input_grad": ((grad, weight), {"shape": x.shape, **options}),
        "conv2d_weight_grad": ((grad, x), {"shape": weight.shape, **options}),
    }


def run(name: str, operands: Any, options: Any, exact: bool = False) -> Any:
    row = TABLE[name].exact if exact else TABLE[name]
    assert row is not None
    with np.errstate(all="ignore"):  # as rows run
        return resolve(row, np)(*operands, **options)


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for shape in SHAPES for name in NAMES] + [("conv2d_weight_grad", shape) for shape in FEW],
)
def test_it_is_as_near_the_truth_as_the_plain_kernel(loops, monkeypatch, name, shape):
    monkeypatch.setattr(compiled, "WORTH", 1000)
    monkeypatch.setattr(few_channels, "_RESULTS", 400)
    monkeypatch.setattr(winograd, "_FEW", 100)  # several blocks, of rows where an image has more
    monkeypatch.setattr(winograd, "_LEAST", 100)
    monkeypatch.setattr(winograd, "_BLOCK", 100)
    operands, options = given(shape)[name]
    found = run(name, operands, options)
    assert len(loops) >= 4
    truth = run(name, [one.astype("f8") for one in operands], options, exact=True)
    plain = np.abs(run(name, operands, options, exact=True) - truth).max()
    assert np.abs(found - truth).max() <= 3 * plain


def test_without_a_bias_there_is_none(loops):
    (x, weight, _), options = given(SHAPES[0])["conv2d"]
    np.testing.assert_allclose(
        run("conv2d", (x, weight), options), run("conv2d", (x, weight), options, exact=True), atol=1e-4
    )
    assert loops


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


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_is_where_the_plain_kernel_has_it(loops, name, which, value):
    operands, options = given(SHAPES[0])[name]
    assert np.isfinite(operands[which]).all()
    operands[which][1, 2, 0, 1] = value
    found = run(name, operands, options)
    assert loops
    assert found.tobytes() == run(name, operands, options, exact=True).tobytes()
    assert np.isfinite(found).any()


@pytest.mark.parametrize(("which", "value"), [(0, np.inf), (1, -np.inf), (0, np.nan)])
def test_what_is_not_finite_in_few_channels_reaches_what_has_a_part_in_it(loops, which, value):
    name = "conv2d_weight_grad"
    operands, options = given((12, 2, 30, 30, 4, (1, 1)))[name]
    operands[which][3, 1, 0, 1] = value
    found, plain = run(name, operands, options), run(name, operands, options, exact=True)
    assert loops
    np.testing.assert_array_equal(np.isnan(found), np.isnan(plain))
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-3)
    assert np.isfinite(found).any()


@pytest.mark.parametrize(("name", "shape"), [(name, SHAPES[0]) for name in NAMES] + [("conv2d_weight_grad", FEW[1])])
def test_bits_do_not_depend_on_the_number_of_threads(loops, monkeypatch, name, shape):
    operands, options = given(shape)[name]
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(parallel._here, "threads", threads)
        found.append(run(name, operands, options).tobytes())
    assert found == found[:1] * 3


@pytest.mark.parametrize("channels", [3, 20])
def test_the_gradient_of_a_weight_is_added_up_in_turns_with_the_same_bits(monkeypatch, channels):
    operands, options = given((40, channels, 40, 40, 16, (1, 1)))["conv2d_weight_grad"]
    monkeypatch.setattr(parallel._here, "threads", 2)
    found = []
    for seconds in (1e9, 1e-5):
        turns = []
        monkeypatch.setattr(parallel, "run", lambda parts, turns=turns: turns.append([part() for part in parts]))
        monkeypatch.setattr(conv, "_SUM_SECONDS", seconds)
        found.append(run("conv2d_weight_grad", operands, options).tobytes())
        assert (len(turns) > 1) == (seconds < 1)
    assert found[0] == found[1]


@pytest.mark.parametrize("loops", ["numba"], indirect=True)  # those of these tests make arrays
@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, (2, 48, 40, 40, 64, (1, 1))) for name in NAMES] + [("conv2d_weight_grad", (40, 4, 30, 20, 64, (1, 1)))],
)
def test_no_more_memory_is_taken_than_the_plan_says(loops, name, shape):
    operands, options = given(shape)[name]
    found = plan(TABLE[name], tuple(map(meta_of, operands)), options)
    out = np.empty(found.meta.bound, found.meta.dtype)
    tracemalloc.start()
    try:
        resolve(TABLE[name], np)(*operands, out=out, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert loops
    assert peak <= found.workspace + 20_000


@pytest.mark.parametrize(
    "change", [{"stride": (2, 1)}, {"dilation": (1, 2)}, {"padding": (3, 3)}], ids=["stride", "dilation", "padding"]
)
def test_what_it_is_not_made_for_is_left_to_the_plain_kernel(loops, change):
    (x, weight, bias), options = given(SHAPES[0])["conv2d"]
    options |= change
    y = run("conv2d", (x, weight, bias), options)
    assert bool(loops) == ("padding" in change)
    loops.clear()
    if "padding" in change:
        run("conv2d_input_grad", (y, weight), {"shape": x.shape, **options})
    run("conv2d", (x[:, :7].copy(), weight[:, :7].copy(), bias), options)  # few channels
    run("conv2d", (x[:1, :, :6].copy(), weight, bias), options)  # few windows
    run("conv2d", (x[:, ::-1], weight, bias), options)  # not in one piece
    run("conv2d", (x[:0], weight, bias), options)
    assert not loops


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
@pytest.mark.parametrize("shape", [(40, 5, 28, 28), (40, 9, 15, 21), (70, 8, 9, 8)])
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


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
def test_the_gradient_of_relu_has_the_bits_of_the_plain_kernel_also_over_an_operand(monkeypatch):
    assert compiled.finish()
    grad, y = RNG.standard_normal((2, 101, 203)).astype("f4")
    grad[:3], grad[3:5], y[2:4], y[4:8] = np.nan, np.inf, np.nan, 0
    relu_backward = resolve(TABLE["relu_backward"], np)
    found = [relu_backward(grad, y), relu_backward(given := grad.copy(), y, out=given)]
    monkeypatch.setattr(compiled, "_loops", {})
    plain = relu_backward(grad, y).tobytes()
    assert [one.tobytes() for one in found] == [plain, plain]
