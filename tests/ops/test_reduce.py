"""Along axes: reductions, cumulations, sorting."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from conftest import in_every_dtype, in_every_layout, layouts, values

AXES = (None, 0, -1, 1, (0, 1), (0, 2), 5)
REDUCTIONS = ("all", "any", "max", "min", "prod", "sum")


@pytest.mark.parametrize("name", REDUCTIONS)
@in_every_layout
def test_reductions(check, name, x):
    function = getattr(np, name)
    for axis in AXES:
        for keepdims in (False, True):
            check(name)(lambda a=axis, k=keepdims: function(x, axis=a, keepdims=k), x, axis=axis, keepdims=keepdims)


@pytest.mark.parametrize("name", ["sum", "prod", "cumulative_sum", "cumulative_prod"])
@pytest.mark.parametrize("wanted", ["f4", "i8", "c16"])
@in_every_layout
def test_in_another_dtype(check, name, wanted, layout):
    x = layouts("f4")[layout]
    if x.ndim == 0:
        pytest.skip("cumulations need an axis")
    function = getattr(np, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(name)(lambda: function(x, axis=0, dtype=wanted), x, axis=0, dtype=np.dtype(wanted))


@pytest.mark.parametrize("name", ["mean", "var", "std"])
@in_every_layout
def test_averages(check, name, x):
    function = getattr(np, name)
    more = {} if name == "mean" else {"correction": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for axis in AXES:
            for keepdims in (False, True):
                options = {"axis": axis, "keepdims": keepdims, **more}
                check(name)(lambda o=options: function(x, **o), x, **options)


@pytest.mark.parametrize("name", ["mean", "var", "std"])
@in_every_dtype
def test_averages_of_many(check, name, dtype):
    x = values((50, 300), dtype)
    for axis in (None, 0, 1):
        check(name)(lambda a=axis: getattr(np, name)(x, axis=a), x, axis=axis)


def test_a_variance_is_charged_for_its_deviations(check):
    x = values((100, 100), "f4")
    assert check("var")(lambda: np.var(x), x).workspace >= x.nbytes


@in_every_layout
def test_count_nonzero(check, x):
    for axis in (None, 0, -1, (0, 1)):
        check("count_nonzero")(lambda a=axis: np.asarray(np.count_nonzero(x, axis=a)), x, axis=axis)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@in_every_layout
def test_where_the_extremes_are(check, name, x):
    for axis in (None, 0, -1, 1, 5):
        for keepdims in (False, True):
            options = {"axis": axis, "keepdims": keepdims}
            check(name)(lambda o=options: getattr(np, name)(x, **o), x, **options)


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
@pytest.mark.parametrize("initial", [False, True])
@in_every_layout
def test_cumulations(check, name, x, initial):
    if x.ndim == 0:
        pytest.skip("NumPy adds an axis, the standard asks for one")
    for axis in (None, 0, -1, 5):
        options = {"axis": axis, "include_initial": initial}
        check(name)(lambda o=options: getattr(np, name)(x, **o), x, **options)


def test_cumulations_need_an_axis(check):
    with pytest.raises(ValueError, match="at least one dimension"):
        check("cumulative_sum").agrees(np.zeros(1), (values((), "f4"),), {})


@in_every_layout
def test_diff(check, x):
    for axis in (0, -1, 5):
        for n in (1, 2, 5):
            check("diff")(lambda a=axis, n=n: np.diff(x, axis=a, n=n), x, axis=axis, n=n)


@in_every_layout
def test_sort(check, x):
    for axis in (0, -1, 5):
        for stable in (True, False):
            check("sort")(lambda a=axis, s=stable: np.sort(x, axis=a, stable=s), x, axis=axis, stable=stable)


@in_every_layout
def test_argsort(check, x):
    if x.ndim == 0:
        pytest.skip("NumPy adds an axis, the standard asks for one")
    for axis in (0, -1, 5):
        check("argsort")(lambda a=axis: np.argsort(x, axis=a, stable=True), x, axis=axis)


def test_descending_keeps_the_order_of_equals(check):
    x = np.array([[2, 1, 2, 3, 1], [0, 0, 1, 1, 0]], "i4")
    options = {"axis": 1, "descending": True}
    check("argsort")(lambda: np.array([[3, 0, 2, 1, 4], [2, 3, 0, 1, 4]]), x, **options)
    check("sort")(lambda: np.array([[3, 2, 2, 1, 1], [1, 1, 0, 0, 0]], "i4"), x, **options)
