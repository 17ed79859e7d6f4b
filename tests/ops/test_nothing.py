"""Averages of nothing, and variances with nothing left to divide by: NumPy's numbers without its warnings."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from conftest import assert_same

import asyncsched as asc

TOO_FEW = [np.ones((3, 4)), np.random.default_rng(0).random((3, 4)), np.arange(12).reshape(3, 4), np.ones((3, 4)) * 1j]


async def silent(s: asc.Scheduler, name: str, array: np.ndarray, **options: object) -> np.ndarray:
    found = getattr(asc, name)(await s.put(array), **options)  # a warning would be an error
    return await found


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "i4", "?"])
@pytest.mark.parametrize("name", ["mean", "var", "std", "median", "nanmean", "nanvar", "nanstd"])
async def test_averages_of_nothing_are_nan(s, name, dtype):
    for shape, axis in (((0,), None), ((3, 0), 1), ((0, 3), 0), ((3, 0, 2), (0, 1))):
        if name == "median" and dtype == "c8":
            continue
        array = np.zeros(shape, dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = np.asarray(getattr(np, name)(array, axis=axis, keepdims=True))
        found = await silent(s, name, array, axis=axis, keepdims=True)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert np.isnan(found).all()


@pytest.mark.parametrize("array", TOO_FEW, ids=["equal", "different", "int", "complex"])
@pytest.mark.parametrize("name", ["var", "std"])
async def test_variances_with_as_much_correction_as_elements_are_those_of_numpy(s, name, array):
    for correction in (4, 9):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = getattr(np, name)(array, axis=1, ddof=correction)
        assert_same(await silent(s, name, array, axis=1, correction=correction), expected)


async def test_objects_and_tables_are_told_what_can_be_put(s):
    class Table:
        columns = ("a", "b")
        astype = None

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.array([[1, "x"]], object)

    for given in (np.array([1.5, 2], object), Table()):
        with pytest.raises(TypeError, match=r"use `.astype\(float\)`, or put the columns of numbers one by one"):
            await s.put(given)
    assert (await (await s.put(np.array([1.5, 2], object).astype(float)))).tolist() == [1.5, 2]
