"""Medians, quantiles, counts, covariances, and reductions without NaN: the bits of NumPy's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import DTYPES, another_thread_runs_during, assert_same, in_every_dtype, in_every_layout, layouts, values

import asyncsched as asc
from asyncsched.ops import TABLE, resolve
from asyncsched.ops.kernels import releasing_gil
from asyncsched.ops.kernels.order_statistics import place_of
from tests.waiting import held

# Where nothing is left, NumPy warns.
pytestmark = [pytest.mark.one_loop, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
AXES = (None, 0, -1, 1, (0, 1), (0, 2), (1, 0), (), 5)
METHODS = [
    "inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull",
    "linear", "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest",
]  # fmt: skip


def with_nan(x: np.ndarray) -> np.ndarray:
    """The array with NaN here and there, and one line of nothing else; in its layout."""
    if x.dtype.kind not in "fc" or not x.ndim:
        return x
    array = x.copy(order="K") if x.flags.writeable else x.copy()
    array[(np.arange(array.size) % 5 == 1).reshape(array.shape)] = np.nan
    array[..., :1] = np.nan
    return array


def q_of(q: Any) -> dict[str, Any]:
    """The options of the row for some parts of the way."""
    if isinstance(q, int | float | np.generic):
        return {"q": q, "form": None, "percent": False}
    parts = np.asarray(q)
    return {"q": tuple(parts.ravel().tolist()), "form": (parts.shape, parts.dtype.str), "percent": False}


@pytest.mark.parametrize("name", ["nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd"])
@in_every_layout
def test_reductions_without_nan(check, name, x):
    function, x = getattr(np, name), with_nan(x)
    more = ({}, {"correction": 1}, {"correction": 0.5}) if name in ("nanvar", "nanstd") else ({},)
    for axis in AXES:
        for keepdims in (False, True):
            for one in more:
                options = {"axis": axis, "keepdims": keepdims, **one}
                check(name)(partial(function, x, **options), x, **options)


@pytest.mark.parametrize("name", ["nansum", "nanmean", "nanvar", "nanstd", "nanprod"])
@in_every_dtype
def test_of_many(check, name, dtype):
    x = with_nan(values((50, 300), dtype))
    for array in (x, x.T, x[::-1, ::-2]):
        for axis in (None, 0, 1):
            check(name)(partial(getattr(np, name), array, axis=axis), array, axis=axis)


@pytest.mark.parametrize("name", ["nanargmax", "nanargmin"])
@in_every_layout
def test_where_the_extremes_are(check, name, x):
    function = getattr(np, name)
    if x.dtype.kind in "fc" and x.size > 1:
        x = x.copy(order="K")
        x[(np.arange(x.size) % 5 == 1).reshape(x.shape)] = np.nan
    for axis in (None, 0, -1, 5):
        try:
            function(x, axis=axis)
        except ValueError as error:
            if "All-NaN" in str(error):
                with pytest.raises(ValueError, match="All-NaN"):
                    resolve(TABLE[name], np)(x, axis=axis)
                continue
        for keepdims in (False, True):
            check(name)(partial(function, x, axis=axis, keepdims=keepdims), x, axis=axis, keepdims=keepdims)


@in_every_layout
def test_medians(check, x):
    for array in (x, with_nan(x)):
        for axis in AXES if x.size else (None, 0, 5):
            for keepdims in (False, True):
                options = {"axis": axis, "keepdims": keepdims}
                check("median")(partial(np.median, array, **options), array, **options)


QS = (0, 1, 0.5, 0.3, True, np.float32(0.3), [0.1, 0.9], [0, 1], [], [[0.25], [0.5]], np.array([0.2, 0.7], "f4"))


@in_every_layout
def test_quantiles(check, x):
    for q in QS:
        for axis in (None, 0, -1, (0, 1), (0, 2), 5):
            options: dict[str, Any] = {"axis": axis, "keepdims": axis == 0, "method": "linear"}
            check("quantile")(partial(np.quantile, x, q, **options), x, **q_of(q), **options)


@pytest.mark.parametrize("method", [*METHODS, "nothing"])
def test_methods(check, method, some_dtype):
    for array in (values((5, 4), some_dtype), with_nan(values((4, 6), some_dtype))):
        for q in (0, 0.25, 0.3, [0.5, 0.8, 1]):
            for axis in (None, 0, 1):
                options: dict[str, Any] = {"axis": axis, "keepdims": False, "method": method}
                check("quantile")(partial(np.quantile, array, q, **options), array, **q_of(q), **options)


@pytest.mark.parametrize("method", METHODS)
def test_places_are_those_of_numpy(method):
    for n in range(1, 20):
        for q in np.linspace(0, 1, 41).tolist():
            below, above, part = place_of(n, q, method)
            assert 0 <= below <= above < n
            assert below + part == pytest.approx(np.quantile(np.arange(float(n)), q, method=method))


def test_weighted_quantiles(check):
    x, w, v = values((4, 6), "f4"), values((4, 6), "i8", 1), np.array([0.0, 1, 2, 0, 3, 1])
    w[:, 0] = 1
    for weights, axis in ((w, None), (w, 0), (w, 1), (v, 1), (v[:4], 0), (w, (0, 1)), (v, None), (v, 0), (v, (0, 1))):
        for method in ("inverted_cdf", "linear"):
            for q in (0, 0.4, [0.2, 0.6]):
                options: dict[str, Any] = {"axis": axis, "keepdims": False, "method": method}
                eager = partial(np.quantile, x, q, weights=weights, **options)
                check("quantile")(eager, x, weights, **q_of(q), **options)


COUNTS: list[Callable[[Any, Any], Any]] = [
    lambda m, x: m.bincount(x),
    lambda m, x: m.bincount(x, minlength=9),
    lambda m, x: m.bincount(x, x),
    lambda m, x: m.bincount(x, minlength=-1),
]


@pytest.mark.parametrize("count", COUNTS, ids=range(len(COUNTS)))
@pytest.mark.parametrize("shape", [(), (0,), (1,), (50,), (2, 2)])
async def test_counts(s, count, shape):
    for dtype in (*DTYPES, "u8", "u4"):
        a = values(shape, dtype)
        x = await s.put(a)
        try:
            expected = count(np, a)
        except (TypeError, ValueError) as error:
            with pytest.raises(type(error)):
                count(asc, x)
            continue
        found = count(asc, x)
        assert found.shape in ((None,), expected.shape)  # a quick one may have run already
        assert found.dtype == expected.dtype
        assert_same(await found, expected)
        assert found.shape == expected.shape


async def test_counts_of_views_and_with_weights(s):
    a, w = np.arange(40, dtype="u1")[::-3] % 7, values((40,), "f4")[::3]
    x, weights = (await s.put(np.arange(40, dtype="u1")))[::-3] % 7, (await s.put(values((40,), "f4")))[::3]
    assert_same(await asc.bincount(x, weights), np.bincount(a, w))
    with pytest.raises(ValueError, match=r"the weights have shape \(13,\), but the numbers \(14,\)"):
        asc.bincount(x, weights[1:])
    with pytest.raises(TypeError):
        asc.bincount(x, weights * 1j)
    negative = asc.bincount(x.astype(int) - 3)
    with pytest.raises(ValueError, match="negative"):
        await negative


@pytest.mark.parametrize("size", [0, 1000])
def test_counts_in_pieces_are_those_of_the_whole(monkeypatch, size):
    monkeypatch.setattr(releasing_gil, "LARGE", 1)
    monkeypatch.setattr(releasing_gil, "PIECE", 97)
    kernel, x, w = resolve(TABLE["bincount"], np), values((size,), "i4"), values((size,), "f8")
    assert_same(kernel(x, minlength=3), np.bincount(x, minlength=3))
    assert_same(kernel(x, w), np.bincount(x, w) if size else np.zeros(0, int))
    assert_same(kernel(x[::-2], w[::2]), np.bincount(x[::-2], w[::2]) if size else np.zeros(0, int))
    with pytest.raises(ValueError, match="negative"):
        kernel(np.append(x, -1))


@pytest.mark.parametrize("name", ["bincount", "digitize", "nansum", "median"])
def test_others_run_meanwhile(name):
    x = values((2_000_000,), "i8")
    operands = {"bincount": (x, x * 0.5), "digitize": (x * 0.7, np.arange(5.0))}.get(name, (x * 0.7,))
    assert another_thread_runs_during(partial(resolve(TABLE[name], np), *operands))


@in_every_layout
def test_bins_of_elements(check, x):
    for bins in (np.array([0, 1, 3]), np.array([2.5, 1, 1, -1]), np.array([0.5], "f4"), np.array([]), np.zeros((2, 2))):
        for right in (False, True):
            check("digitize")(partial(np.digitize, x, bins, right), x, bins, right=right)


async def test_bins_in_a_list_and_in_no_order(s):
    x = await s.put(np.array([0.2, 6.4, 3.0]))
    assert_same(await asc.digitize(x, [0.0, 1.0, 2.5, 4.0, 10.0]), np.array([1, 4, 3]))
    wrong = asc.digitize(x, [0, 2, 1])
    with pytest.raises(ValueError, match="monotonically"):
        await wrong
    with pytest.raises(TypeError, match="bin edges must be a list"):
        asc.digitize(x, ["a"])
    with pytest.raises(TypeError, match="bin edges must be a list, an array or a tensor of one dimension"):
        asc.digitize(x, np.ones((2, 2)))


async def test_arguments_by_numpys_names_and_edges_in_an_array_of_the_hosts(s):
    a = np.array([0.2, 6.4, 3.0, 1.0], np.float32)
    x, edges = await s.put(a), np.linspace(0, 7, 5)
    assert_same(await asc.digitize(x, bins=edges), np.digitize(a, bins=edges))
    assert_same(await asc.quantile(x, q=[0.2, 0.5]), np.quantile(a, q=[0.2, 0.5]))
    assert_same(await asc.percentile(x, q=30), np.asarray(np.percentile(a, q=30)))
    for found, theirs in zip(await asc.histogram(x, bins=edges), np.histogram(a, bins=edges), strict=True):
        assert_same(found, theirs)
    assert (await asc.argpartition(x, kth=0))[0] == 0
    assert_same(await asc.topk(x, k=1).values, a[1:2])


HISTOGRAMS: list[dict[str, Any]] = [
    {},
    {"bins": 3},
    {"bins": np.int64(200)},
    {"bins": 4, "range": (0, 3)},
    {"bins": 4, "range": (1, 1)},
    {"bins": 4, "range": (np.float32(0), np.float64(2.5))},
    {"bins": 4, "range": (np.float32(0), np.float32(2.5))},
    {"bins": 5, "range": (0.5, 4.5), "density": True},
    {"bins": [0, 1, 1, 3]},
    {"bins": [0.5, 1.5, 4], "density": True},
    {"bins": [1]},
    {"bins": 0},
    {"bins": 2.5},
    {"bins": 2, "range": (3, 1)},
    {"bins": 2, "range": (0, np.inf)},
    {"bins": 2, "range": (0, np.nan)},
    {"bins": [2, 1]},
]


@pytest.mark.parametrize("options", HISTOGRAMS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
async def test_histograms(s, options, weighted):
    for dtype in ("?", "i1", "u8", "i8", "f2", "f4", "f8"):
        for a in (values((3, 40), dtype)[::-1, ::3], values((40,), dtype), values((0,), dtype), values((), dtype)):
            for w in [values(a.shape, kind, 1) for kind in ("?", "i8", "f4", "c8")] if weighted else [None]:
                await compare_histograms(s, a, w, options)


async def compare_histograms(s: asc.Scheduler, a: np.ndarray, w: Any, options: dict[str, Any]) -> None:
    x, weights = await s.put(a), None if w is None else await s.put(w)
    with np.errstate(all="ignore"):
        try:
            expected = np.histogram(a, weights=w, **options)
        except (TypeError, ValueError):
            with pytest.raises((TypeError, ValueError)):
                await asc.histogram(x, weights=weights, **options)
            return
    found = asc.histogram(x, weights=weights, **options)
    assert [part.dtype for part in found] == [part.dtype for part in expected]
    for got, like in zip(await found, expected, strict=True):
        assert_same(got, like)


async def test_wrong_arguments_of_histograms_are_refused(s):
    x = await s.put(np.array([1.0, np.nan, 2.0]))
    with pytest.raises(TypeError, match=r"the number of bins for 'auto' depends on data.*await s.call"):
        asc.histogram(x, "auto")
    with pytest.raises(TypeError, match="no order"):
        asc.histogram(x * 1j)
    with pytest.raises(ValueError, match=r"the weights have shape \(2,\), but the elements \(3,\)"):
        asc.histogram(x, weights=x[1:])
    with pytest.raises(TypeError, match=r"bool weights cannot be summed between given edges: use `w.astype"):
        asc.histogram(x, [0, 1], weights=x > 1)  # as NumPy, though at the line
    sums = await asc.histogram(x, [0, 1, 2], weights=(x > 1).astype(asc.int64)).hist
    assert_same(sums, np.array([0, 1]))
    found = asc.histogram(x)
    with pytest.raises(ValueError, match="finite"):
        await found
    y = asc.where(asc.isnan(x), 0, x)
    y.requires_grad = True
    with pytest.raises(NotImplementedError, match="histogram: no derivative"):
        asc.histogram(y)
    edges = await s.put(np.array([0.0, 1.5, 3]))
    assert_same(await asc.histogram(x, edges).hist, np.array([1, 1]))


COVARIANCES: list[tuple[str, dict[str, Any]]] = [
    ("x", {}),
    ("x", {"rowvar": False}),
    ("x", {"bias": True}),
    ("x", {"ddof": 0}),
    ("x", {"ddof": 5}),
    ("x", {"dtype": "f4"}),
    ("xy", {}),
    ("xy", {"rowvar": False}),
    ("x", {"fweights": True}),
    ("x", {"aweights": True, "ddof": 0}),
    ("x", {"aweights": True, "fweights": True}),
    ("xy", {"aweights": True, "dtype": "f4"}),
]
SHAPES = [
    ((3, 50), (2, 50)),
    ((50,), (50,)),
    ((1, 7), (7,)),
    ((0, 3), (1, 3)),
    ((), ()),
    ((60, 2), (1, 2)),
    ((3, 1),) * 2,
]


@pytest.mark.parametrize(("given", "options"), COVARIANCES, ids=str)
async def test_covariances(s, given, options):
    for shapes in SHAPES:
        for dtype in ("i4", "f2", "f4", "f8", "c8", "c16"):
            arrays = [values(shape, dtype, i) for i, shape in enumerate(shapes)][: len(given)]
            if options.get("rowvar") is False:
                arrays = [a.T for a in arrays]
                if len(np.atleast_2d(arrays[0])) == 1 and np.lib.NumpyVersion(np.__version__) < "2.2.0":
                    continue  # NumPy took a row for one variable all the same
            await compare_covariances(s, arrays, options)
            if shapes[0] == (3, 50):
                await compare_covariances(s, [a[..., ::-2] for a in arrays], options)


async def compare_covariances(s: asc.Scheduler, arrays: list[np.ndarray], options: dict[str, Any]) -> None:
    observations = np.atleast_2d(arrays[0]).shape[1 if options.get("rowvar", True) or arrays[0].ndim < 2 else 0]
    w = {"fweights": np.arange(observations) % 3, "aweights": np.linspace(0, 1, observations) ** 2}
    theirs = options | {name: w[name] for name in w if name in options}
    ours = options | {name: await s.put(w[name]) for name in w if name in options}
    tensors = [await s.put(a) for a in arrays]
    for name in ("cov", "corrcoef") if options.keys() <= {"rowvar", "dtype"} else ("cov",):
        with np.errstate(all="ignore"):
            try:
                expected = np.asarray(getattr(np, name)(*arrays, **theirs))
            except (ValueError, ZeroDivisionError) as error:
                with pytest.raises(type(error)):
                    await getattr(asc, name)(*tensors, **ours)
                continue
        found = getattr(asc, name)(*tensors, **ours)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(await found, expected, strict=True)


async def test_wrong_arguments_of_covariances_are_refused(s):
    x = await s.put(values((3, 4), "f8"))
    w = await s.put(np.array([1.0, 2, 3, 0.5]))
    with pytest.raises(ValueError, match="one or two dimensions"):
        asc.cov(x[None])
    with pytest.raises(ValueError, match="ddof must be an integer"):
        asc.cov(x, ddof=0.5)
    with pytest.raises(ValueError, match=r"aweights has shape \(3,\), and there are 4 observations"):
        asc.cov(x, aweights=w[1:])
    for options, error, told in (
        ({"fweights": w}, TypeError, "must be integer"),
        ({"aweights": w - 1}, ValueError, "aweights cannot be negative"),
        ({"fweights": asc.round(w) - 2, "aweights": w}, ValueError, "fweights cannot be negative"),
        ({"aweights": w * 0}, ZeroDivisionError, "sum to zero"),
    ):
        found = asc.cov(x, **options)
        with pytest.raises(error, match=told):
            await found


@in_every_layout
def test_partitions(check, x):
    for axis in (0, -1, None, 1, 5):
        for kth in (0, -1, (0, 1), 3, -9):
            check("argpartition")(partial(np.argpartition, x, kth, axis=axis), x, kth=kth, axis=axis)


def best(x: np.ndarray, k: int, axis: int, largest: bool) -> np.ndarray:
    """The values that sorting gives."""
    ordered = np.sort(x, axis=axis)
    ordered = np.flip(ordered, axis) if largest else ordered
    return np.take(ordered, range(k), axis=axis)


@pytest.mark.parametrize("largest", [True, False])
async def test_the_largest_few(s, dtype, largest):
    for layout, a in layouts(dtype).items():
        if not a.ndim:
            continue
        for array in (a, with_nan(a)):
            x = await s.put(array)
            for axis in range(-a.ndim, a.ndim):
                for k in {0, 1, min(2, a.shape[axis]), a.shape[axis]} - ({1} if not a.shape[axis] else set()):
                    found = asc.topk(x, k, axis, largest=largest)
                    got, indices = await found
                    assert (found.values.dtype, found.indices.dtype) == (a.dtype, np.int64)
                    np.testing.assert_array_equal(got, best(array, k, axis, largest), layout)
                    np.testing.assert_array_equal(np.take_along_axis(array, indices, axis), got, layout)
                    unsorted = await asc.topk(x, k, axis, largest=largest, sorted=False).values
                    np.testing.assert_array_equal(np.sort(unsorted, axis), np.sort(got, axis), layout)


async def test_equal_elements_keep_their_order_and_wrong_arguments_are_refused(s, gate):
    x = await s.put(np.array([3, 1, 3, 2, 3]))
    assert (await asc.topk(x, 5).indices).tolist() == [0, 2, 4, 3, 1]
    assert (await asc.topk(x, 5, largest=False).indices).tolist() == [1, 3, 0, 2, 4]
    for k in (-1, 6):
        with pytest.raises(ValueError, match=f"k={k} is out of range: the axis has 5 elements"):
            asc.topk(x, k)
    with pytest.raises(ValueError, match="at least one dimension"):
        asc.topk(x[0], 1)
    late = s.submit_nowait(held, gate, np.ones(5, bool), shape=5, dtype=bool)
    with pytest.raises(ValueError, match="`await` it first"):
        asc.topk(x[late], 1)
    gate.set()


async def test_percentiles_and_shapes_known_at_once(s):
    a = values((3, 4), "f4")
    x = await s.put(a)
    for q in (0, 50, 12.5, [5, 95], np.float32(30), np.float64(30), [], np.array([10, 20])):
        for axis in (None, 1, (1, 0)):
            assert_same(await asc.percentile(x, q, axis), np.asarray(np.percentile(a, q, axis)))
            assert_same(
                await asc.quantile(x, np.asarray(q) / 100, axis), np.asarray(np.quantile(a, np.asarray(q) / 100, axis))
            )
    for wrong in (-1, [50, 101], np.nan):
        with pytest.raises(ValueError, match="percentile: q must lie between 0 and 100"):
            asc.percentile(x, wrong)
    with pytest.raises(TypeError, match="q is a number or several"):
        asc.quantile(x, "half")
    with pytest.raises(TypeError, match="known at once: `await` it first"):
        asc.quantile(x, x)
    with pytest.raises(TypeError, match="real"):
        asc.quantile(x * 1j, 0.5)
    with pytest.raises(TypeError, match="use `axis=`"):
        asc.median(x, dim=0)


async def test_statistics_of_masked_elements(s, gate):
    a = values((3, 40), "f8")
    x = await s.submit(held, gate, a, shape=a.shape, dtype=a.dtype)
    some, left = x[x > 0], a[a > 0]
    assert some.shape == (None,)
    gate.set()
    for found, expected in (
        (asc.median(some), np.median(left)),
        (asc.quantile(some, [0.2, 0.5], method="lower"), np.quantile(left, [0.2, 0.5], method="lower")),
        (asc.nanmean(some), left.mean()),
        (asc.digitize(some, [0.0, 1, 2]), np.digitize(left, [0, 1, 2])),
        (asc.bincount(asc.round(some).astype(int)), np.bincount(np.round(left).astype(int))),
        (asc.histogram(some, 4, weights=some).hist, np.histogram(left, 4, weights=left)[0]),
        (asc.histogram(some, [0, 0.5, 2]).hist, np.histogram(left, [0, 0.5, 2])[0]),
    ):
        assert_same(await found, np.asarray(expected))
    gate.clear()
    edges = asc.unique_values(s.submit_nowait(held, gate, a, shape=a.shape, dtype=a.dtype))
    with pytest.raises(ValueError, match="`await` it first"):
        asc.histogram(x, edges)
    gate.set()


async def test_in_a_captured_step(s):
    a = values((6, 40), "f8")

    def step(x: asc.Tensor) -> list[asc.Tensor]:
        return [asc.nanvar(x, 0), asc.quantile(x, [0.1, 0.9], 1), *asc.histogram(x, 5), *asc.topk(x, 3), asc.cov(x)]

    x = await s.put(a)
    graph = await s.capture(step, x)
    for found, expected in zip(graph(x), step(x), strict=True):
        assert_same(await found, await expected)


async def test_weights_have_no_way_back(s):
    x = await s.put(values((9,), "f8"))
    x.requires_grad = True
    with pytest.raises(NotImplementedError, match="quantile with weights: no derivative is known: use `t.detach"):
        asc.quantile(x, 0.5, method="inverted_cdf", weights=x.detach() ** 2)


async def test_where_nothing_is_left_there_is_no_warning(s):
    x = await s.put(np.full((2, 3), np.nan))
    with warnings.catch_warnings(action="error"):
        for function in (asc.nanmax, asc.nanmin, asc.nanmean, asc.nanvar, asc.nanstd):
            assert np.isnan(await function(x, 1)).all()
    nowhere = asc.nanargmax(x)
    with pytest.raises(ValueError, match="All-NaN slice"):
        await nowhere
