"""Arrays from numbers."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import DTYPES, in_every_dtype, in_every_layout, values

SHAPES = ((), (0,), (3, 4), (-1,))


@pytest.mark.parametrize("shape", SHAPES)
@in_every_dtype
def test_zeros_ones(check, shape, dtype):
    for name in ("zeros", "ones"):
        check(name)(lambda n=name: getattr(np, n)(shape, dtype), shape=shape, dtype=np.dtype(dtype))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("value", [0, 2, -1, 300, 2.5, True, 1j, np.float32(2), np.int8(3)])
def test_full(check, shape, value):
    check("full")(lambda: np.full(shape, value), value, shape=shape)
    for dtype in ("i4", "u1", "f4", "c8"):
        if np.dtype(dtype).kind != "c" and isinstance(value, complex):
            continue
        check("full")(lambda d=dtype: np.full(shape, value, d), value, shape=shape, dtype=np.dtype(dtype))


def test_full_of_an_array(check):
    x = values((), "f4")
    check("full")(lambda: np.full((2, 3), x), x, shape=(2, 3))
    check("full")(lambda: np.full((2, 3), values((2,), "f4")), values((2,), "f4"), shape=(2, 3))


@in_every_layout
def test_full_like(check, x):
    for wanted in (None, np.dtype("f8")):
        check("full_like")(lambda w=wanted: np.full_like(x, 1, dtype=w), x, 1, dtype=wanted)


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [(0, 5, 1), (2, 11, 3), (5, 0, -2), (0, 5, -1), (0.0, 1, 0.1), (1, 2, 0.3), (0, 3.5, 1), (3, 3, 1), (0, 1, 0)],
)
def test_arange(check, start, stop, step):
    for dtype in (None, "f4", "i8", "c8"):
        options = {"start": start, "stop": stop, "step": step, "dtype": None if dtype is None else np.dtype(dtype)}
        check("arange")(lambda d=dtype: np.arange(start, stop, step, d), **options)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (2.5, -3), (1, 2j), (np.float32(0), np.float32(1)), (1, 1)])
def test_linspace(check, start, stop):
    for num in (0, 1, 2, 7, -1):
        for dtype in (None, "f4", "i4", "c16"):
            if dtype in ("f4", "i4") and isinstance(stop, complex):
                continue
            for endpoint in (True, False):
                options = {"num": num, "dtype": None if dtype is None else np.dtype(dtype), "endpoint": endpoint}
                check("linspace")(lambda o=options: np.linspace(start, stop, **o), start, stop, **options)


def test_eye(check):
    for n, m, k in ((3, 3, 0), (3, 5, 1), (4, 2, -1), (0, 3, 0), (-1, 3, 0), (2, 2, 5)):
        for dtype in DTYPES:
            options = {"n_rows": n, "n_cols": m, "k": k, "dtype": np.dtype(dtype)}
            check("eye")(lambda n=n, m=m, k=k, d=dtype: np.eye(n, m, k, d), **options)
