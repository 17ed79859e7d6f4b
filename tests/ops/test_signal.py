"""Interpolation, differences, integrals, convolution, padding and windows: NumPy's bits, errors and strides."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from conftest import DTYPES, another_thread_runs_during, assert_same, in_every_layout, layouts, values

import asyncsched as asc
from asyncsched.ops import TABLE, resolve
from asyncsched.ops.kernels import signal
from tests.thorough import usually
from tests.waiting import held

pytestmark = pytest.mark.one_loop
nan, inf = np.nan, np.inf
LINES = {dtype: values((9,), dtype) for dtype in DTYPES}


def both(call, *arrays):
    """What NumPy gives or raises for a call, and the same call for tensors in a scheduler."""
    with np.errstate(all="ignore"):
        try:
            return call(np, *arrays), None
        except Exception as error:
            return None, error


async def compare(s, call, *arrays, np_call=None) -> None:
    """The call gives NumPy's bits, in NumPy's layout, or raises an error of NumPy's class at once.

    Where NumPy warns that it drops imaginary parts, that is a TypeError.
    """
    tensors = [await s.put(a) if isinstance(a, np.ndarray) else a for a in arrays]
    expected, error = both(np_call or call, *[await t if isinstance(t, asc.Tensor) else t for t in tensors])
    if error is not None:
        kind = next(
            (kind for kind in (IndexError, ZeroDivisionError, ValueError) if isinstance(error, kind)), TypeError
        )
        with pytest.raises(kind):
            call(asc, *tensors)
        return
    found = call(asc, *tensors)
    several = isinstance(expected, tuple)
    for mine, theirs in zip(found if several else [found], expected if several else [expected], strict=True):
        theirs = np.asarray(theirs)
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        assert_same(await mine, theirs)


# -- interp ------------------------------------------------------------------------------------------------------------

XP = np.array([-1.0, 0.0, 0.5, 2.0, 4.0])
FP = {
    "f8": np.array([3.0, -1, 0.5, 0, 7]),
    "c16": np.array([1j, 2, 3 - 1j, 0, 1]),
    "i4": np.array([3, 1, 4, 1, 5], "i4"),
}
ENDS = (
    {},
    {"left": -5},
    {"left": nan, "right": np.float32(2)},
    {"period": 3.5},
    {"period": -2, "left": 1},
    {"right": 1j},
)


@pytest.mark.parametrize("fp", FP)
@in_every_layout
def test_interp(check, fp, x):
    for ends in ENDS:
        options = {"left": None, "right": None, "period": None, **ends}
        if not x.size and options["right"] == 1j and FP[fp].dtype.kind != "c":
            continue  # from 2.5 on NumPy refuses it only where there is anything to give
        call = partial(np.interp, x, XP, FP[fp], **options)
        if x.dtype.kind == "c" and options["period"]:
            call = partial(np.interp, x, XP, FP[fp])  # where NumPy warns, and drops the imaginary part
        check("interp")(call, x, XP, FP[fp], **options)


def test_interp_of_odd_points(check):
    options = {"left": None, "right": None, "period": None}
    x = np.array([-inf, -2, -1, 0.25, 4, 5, inf, nan])
    for points in (
        XP,
        XP[::-1],
        XP[:1],
        XP[[0, 0, 2, 2, 4]],
        np.array([nan, 0, 1, inf, inf]),
        XP.astype("f4"),
        XP * 1j,
    ):
        for found in (FP["f8"], FP["c16"], np.array([inf, inf, nan, 1, -inf])):
            some = found[: len(points)]
            for more in (options, {**options, "period": 3.0})[: 1 if points.dtype.kind == "c" else 2]:
                check("interp")(lambda p=points, f=some, o=more: np.interp(x, p, f, **o), x, points, some, **more)
    for x in (2.5, np.float32(1), values((2, 3), "f4").T, np.zeros((0, 3))):
        check("interp")(lambda x=x: np.interp(x, XP[::1], FP["f8"]), x, XP, FP["f8"], **options)
    for points, some in ((XP, XP[1:]), (XP[:0], XP[:0]), (XP[:, None], XP), (XP, XP[:, None]), (XP[:, None],) * 2):
        check("interp")(lambda p=points, f=some: np.interp(XP, p, f), XP, points, some, **options)


async def test_wrong_arguments_of_interp_are_refused(s):
    x = await s.put(XP)
    with pytest.raises(ValueError, match="period must be a non-zero value"):
        asc.interp(x, x, x, period=0)
    with pytest.raises(TypeError, match=r"x = await s.put\(a\)"):
        asc.interp(x, x, x, left=[1.0])
    with pytest.raises(TypeError):
        asc.interp(x, x, x, left=1j)
    leaf = await s.put(XP)
    leaf.requires_grad = True
    with pytest.raises(NotImplementedError, match="interp: no derivative is known"):
        asc.interp(x, x, leaf)


# -- gradient and trapezoid --------------------------------------------------------------------------------------------

EVEN, ODD = np.array([0.0, 0.5, 1.0, 1.5]), np.array([0.0, 1.0, 1.5, 3.5])
SPACINGS = ((), (2,), (0.3,), (np.float64(0.7),), (np.float32(0.7),), (np.array(0.7),), (1j,))


def recorded(m, f, *spacing, **options):
    """The same where its gradient is asked for: composed of other operations, as on a GPU."""
    if m is not np:
        f = f.detach()
        f.requires_grad = True
    return m.gradient(f, *spacing, **options)


@pytest.mark.parametrize("order", [1, 2])
async def test_gradient(s, order, some_dtype):
    for x, axis in itertools.product(layouts(some_dtype).values(), (None, 0, -1, (1, 0), (0, 0), 5)):
        for spacing in SPACINGS[:: 1 if axis is None else 3]:
            await compare(s, lambda m, x, *h, a=axis: m.gradient(x, *h, axis=a, edge_order=order), x, *spacing)
            if x.dtype.kind == "f":
                await compare(s, lambda m, x, *h, a=axis: recorded(m, x, *h, axis=a, edge_order=order), x, *spacing)


@pytest.mark.parametrize("order", [1, 2])
async def test_gradient_at_coordinates(s, order):
    for dtype, (x, y) in itertools.product(DTYPES[1:], ((EVEN, ODD), (ODD, EVEN), (ODD.astype("f4"), 0.7))):
        f, rows = values((4, 4), dtype), np.array([3, 1, 7, 2], "i4")
        for fortran in (f, np.asfortranarray(f)):
            await compare(s, lambda m, f, x, y: m.gradient(f, x, y, edge_order=order), fortran, x, y)
            if f.dtype.kind == "f":
                await compare(s, lambda m, f, x, y: recorded(m, f, x, y, edge_order=order), fortran, x, y)
        for where in (rows, rows.astype("u1"), np.array([nan, 1, 2, 3]), np.array([0.0, 0, 0, 0]), ODD[:3], ODD[None]):
            await compare(s, lambda m, f, x: m.gradient(f, x, axis=0, edge_order=order), f, where)
    for n in (2, 3):
        await compare(s, lambda m, f, x: m.gradient(f, x, edge_order=order), EVEN[:n] ** 2, ODD[:n])


async def test_wrong_arguments_of_gradient_are_refused(s, gate):
    f = await s.put(values((4, 4), "f4"))
    with pytest.raises(TypeError, match="3 spacings for 2 axes"):
        asc.gradient(f, 1, 2, 3)
    with pytest.raises(ValueError, match="edge_order must be 1 or 2, not 3"):
        asc.gradient(f, edge_order=3)
    with pytest.raises(TypeError, match=r"x = await s.put\(a\)"):
        asc.gradient(f, ODD, 1)
    with pytest.raises(ValueError, match=r"coordinates along axis 1 must have shape \(4,\)"):
        asc.gradient(f, 1, f[0, :3])
    late = await s.submit(held, gate, values((4,), "f4"), shape=4, dtype="f4")
    with pytest.raises(ValueError, match="`await` it first"):
        asc.gradient(late[late > 0])
    gate.set()
    await s.barrier()


async def test_trapezoid(s, some_dtype):
    for x in layouts(some_dtype).values():
        for axis in (0, -1, 5):
            for dx in (1.0, 2, np.float64(0.3), np.array(0.3)):
                await compare(s, lambda m, y, dx, a=axis: m.trapezoid(y, dx=dx, axis=a), x, dx)
        if not x.ndim:
            continue
        line = np.linspace(0, 1, x.shape[-1]) ** 2
        await compare(s, lambda m, y, x: m.trapezoid(y, x), x, line)
        await compare(s, lambda m, y, x: m.trapezoid(y, x, axis=0), x, x[::-1])
        await compare(s, lambda m, y, x: m.trapezoid(y, x), x, values((7,), "f8"))
        await compare(s, lambda m, y, x: m.trapezoid(y, x), x, values((), "f8"))


# -- convolve ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolve(check, mode):
    special = np.array([1, nan, inf, -inf, 0])
    for (a, x), (b, y) in itertools.product(LINES.items(), LINES.items()):
        check("convolve")(lambda x=x, y=y: np.convolve(x, y[:4], mode), x, y[:4], mode=mode)
        if a == b:
            for n, m in itertools.product(range(10), range(10)):
                x, y = values((n,), a), values((m,), a, 1)
                check("convolve")(lambda x=x, y=y: np.convolve(x, y, mode), x, y, mode=mode)
            check("convolve")(lambda x=x, y=y: np.convolve(x[::-2], y[::3], mode), x[::-2], y[::3], mode=mode)
            check("convolve")(lambda x=x: np.convolve(x, x[0], mode), x, np.asarray(x[0]), mode=mode)
    for x, y in ((special, LINES["f8"]), (LINES["f8"], 2), (2.5, LINES["f4"]), (np.zeros((2, 2)), LINES["f8"])):
        check("convolve")(lambda x=x, y=y: np.convolve(x, y, mode), x, y, mode=mode)


async def test_wrong_arguments_of_convolve_are_refused(s):
    a = await s.put(LINES["f8"])
    with pytest.raises(ValueError, match="mode must be 'full', 'same' or 'valid', not 'half'"):
        asc.convolve(a, a, "half")
    with pytest.raises(ValueError, match="v must have one dimension, not shape"):
        asc.convolve(a, a[None])


# -- pad ---------------------------------------------------------------------------------------------------------------

WIDTHS = (0, 2, (1, 3), ((1, 2),), ((1, 2), (0, 3)), {0: 2}, {-1: (4, 0)}, 9, ((0, 0), (7, 1)), [[1], [2]])
MODES = (
    {}, {"constant_values": 2}, {"constant_values": ((1, 2), (3, 4))}, {"constant_values": (1.5, 2)}, {"mode": "edge"},
    {"mode": "wrap"}, {"mode": "reflect"}, {"mode": "symmetric"}, {"mode": "reflect", "reflect_type": "odd"},
    {"mode": "symmetric", "reflect_type": "odd"}, {"mode": "linear_ramp"}, {"mode": "maximum"}, {"mode": "mean"},
    {"mode": "linear_ramp", "end_values": (5, -4)}, {"mode": "minimum", "stat_length": 1}, {"mode": "median"},
    {"mode": "mean", "stat_length": (2, 3)}, {"mode": "median", "stat_length": ((1, 2),)},
)  # fmt: skip


def in_pairs(width, ndim):
    """A dict, which newer versions of NumPy alone take, as all take it."""
    if not isinstance(width, dict):
        return width
    pairs = [(0, 0)] * ndim
    for axis, around in width.items():
        pairs[axis] = (around, around) if isinstance(around, int) else around
    return pairs


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_pad(s, mode, some_dtype):
    """By default a third of the layouts and widths, of which each dtype has others; all in CI."""
    combinations = itertools.product(layouts(some_dtype).values(), WIDTHS)
    for x, width in itertools.islice(combinations, DTYPES.index(some_dtype) % 3, None, usually(3, 1)):
        await compare(
            s,
            lambda m, x, w=width: m.pad(x, w, **mode),
            x,
            np_call=lambda m, x, w=width: m.pad(x, in_pairs(w, x.ndim), **mode),
        )


async def test_a_pad_that_is_empty_has_the_shape(s):
    x = await s.put(values((3, 4), "f4"))
    found = await asc.pad(x, 2, "empty")
    assert found.shape == (7, 8)
    assert found[2:-2, 2:-2].tobytes() == (await x).tobytes()


REFUSED = (
    (1.5, {}), (-1, {}), ((1, 2, 3), {}), (1, {"mode": "mirror"}), (1, {"mode": "edge", "constant_values": 1}),
    (1, {"mode": "maximum", "stat_length": 0}), (1, {"mode": "mean", "stat_length": -1}), ({5: 1}, {}), ({0: 1.5}, {}),
    (1, {"constant_values": ((1, 2, 3),)}), ({0: (1, 2, 3)}, {}), (1, {"device": "cpu"}), (1, {"out": None}),
)  # fmt: skip


@pytest.mark.parametrize(("width", "options"), REFUSED, ids=str)
async def test_wrong_arguments_of_pad_are_refused(s, width, options):
    x = await s.put(values((3, 4), "f4"))
    with pytest.raises((TypeError, ValueError)):
        asc.pad(x, width, **options)


async def test_messages_of_pad(s):
    x = await s.put(values((3, 4), "f4"))
    with pytest.raises(TypeError, match=r"run a function of your own as a task, `await s.call\(fn, t\)`"):
        asc.pad(x, 1, lambda *_: None)
    with pytest.raises(ValueError, match="stat_length of 0 yields no value"):
        asc.pad(x, 1, "mean", stat_length=0)
    with pytest.raises(TypeError, match="is no operand"):
        asc.pad(x, 1, constant_values=x)


@pytest.mark.parametrize("mode", ["edge", "wrap", "reflect", "symmetric"])
def test_where_a_padding_comes_from(mode):
    for n, before, after in itertools.product(range(1, 5), range(10), range(10)):
        at = np.arange(-before, n + after)
        assert signal.gathered_from(np, at, n, mode).tolist() == np.pad(np.arange(n), (before, after), mode).tolist()


# -- windows -----------------------------------------------------------------------------------------------------------

WINDOWS = ((2, 0), (3, -1), ((2, 3), None), ((1, 2), (1, 0)), ((2, 2), (1, 1)), ((2, 2), (0, -2)), (0, 0), ((), ()))


@pytest.mark.parametrize(("shape", "axis"), WINDOWS, ids=str)
async def test_sliding_windows(s, shape, axis, some_dtype):
    for x in layouts(some_dtype).values():
        await compare(
            s,
            lambda m, x: m.sliding_window_view(x, shape, axis),
            x,
            np_call=lambda m, x: np.lib.stride_tricks.sliding_window_view(x, shape, axis),
        )


async def test_windows_are_views_that_take_no_memory(s):
    x = await s.put(np.arange(1_000_000.0))
    before = s.statistics().bytes_retained
    windows = asc.sliding_window_view(x, 1000)
    assert windows.shape == (999_001, 1000)
    array = await windows
    assert s.statistics().bytes_retained == before
    assert array.strides == (8, 8)
    assert np.shares_memory(array, await x)
    assert not array.flags.writeable
    changed = asc.sliding_window_view(x[:5], 2)
    changed[0, 1] = 7.0  # a new version of its own
    assert (await changed).tolist() == [[0, 7], [1, 2], [2, 3], [3, 4]]
    assert (await x)[:3].tolist() == [0, 1, 2]


@pytest.mark.parametrize("shape", [3, -1, 7, (2, 2)])
async def test_wrong_arguments_of_sliding_windows_are_refused(s, shape):
    x = await s.put(values((2, 4), "f4"))
    with pytest.raises(ValueError, match="window"):
        asc.sliding_window_view(x, shape, axis=0)


@pytest.mark.parametrize(("n", "width"), [(7, 1), (7, 3), (7, 6), (7, 7), (7, 0), (1, 1)])
def test_windows_that_are_added_meet_where_they_lie(check, n, width):
    for axis in (0, 1, -2):
        windows = np.lib.stride_tricks.sliding_window_view(values((n, n), "i8"), width, axis)
        expected = np.zeros((n, n), "i8")
        there = np.lib.stride_tricks.sliding_window_view(expected, width, axis, writeable=True)
        for at in np.ndindex(there.shape):
            there[at] += windows[at]
        check("overlap_add")(lambda e=expected: e, np.ascontiguousarray(windows), axis=axis % 2)


# -- the interpreter's lock --------------------------------------------------------------------------------------------

LONG = np.linspace(0, 1, 2_000_000)
BUSY = {
    "interp": ((LONG, LONG, LONG), {"left": None, "right": None, "period": None}),
    "convolve": ((LONG, LONG[:40]), {"mode": "full"}),
    "pad": ((LONG.reshape(2000, 1000),), {"pad_width": ((2, 2), (2, 2)), "mode": "reflect"}),
}


@pytest.mark.parametrize("name", BUSY)
def test_others_run_meanwhile(name):
    operands, options = BUSY[name]
    assert another_thread_runs_during(partial(resolve(TABLE[name], np), *operands, **options))


async def test_unknown_lengths_are_charged_for_the_most_there_can_be(s, gate):
    x = await s.submit(held, gate, np.array([1.0, -2, 3, 4]), shape=4, dtype=float)
    some = x[x > 0]
    padded = asc.pad(some, 1)
    assert (padded.shape, padded.nbytes) == ((None,), 48)
    gate.set()
    assert (await padded).tolist() == [0, 1, 3, 4, 0]
    assert (await asc.erf(some)).shape == (3,)
    assert (await asc.interp(some, x[2:], x[2:])).tolist() == [3, 3, 4]
