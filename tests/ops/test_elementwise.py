"""Element by element: ufuncs, comparisons, casts and choices."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from conftest import DTYPES, in_every_dtype, in_every_layout, layouts, values

from asyncsched.ops import TABLE, power_op
from asyncsched.ops.kernels.elementwise import comparison_rule, ufunc_rule

UFUNCS = [name for name, op in TABLE.items() if op.rule in (ufunc_rule, comparison_rule)]
UNARY = [name for name in UFUNCS if getattr(np, TABLE[name].kernel).nin == 1]
BINARY = [name for name in UFUNCS if getattr(np, TABLE[name].kernel).nin == 2]
SCALARS = (True, 2, 2.5, 1 - 2j, np.float32(1.5), np.int8(3), np.float64(2), np.bool(True))


@pytest.mark.parametrize("name", UNARY)
@in_every_dtype
def test_unary(check, name, dtype):
    function = getattr(np, TABLE[name].kernel)
    for x in layouts(dtype).values():
        check(name)(lambda x=x: function(x), x)


@pytest.mark.parametrize("name", BINARY)
@in_every_dtype
def test_binary_of_one_dtype(check, name, dtype):
    function = getattr(np, TABLE[name].kernel)
    arrays = layouts(dtype)
    for other in ("c", "fortran", "columns", "row", "column", "no axis", "cube"):
        y = layouts(dtype, seed=1)[other]
        for x in arrays.values():
            check(name)(lambda x=x, y=y: function(x, y), x, y)


@pytest.mark.parametrize("name", BINARY)
def test_binary_of_two_dtypes(check, name):
    function = getattr(np, TABLE[name].kernel)
    for first in DTYPES:
        for second in DTYPES:
            x, y = values((3, 4), first), values((4,), second, seed=1)
            check(name)(lambda x=x, y=y: function(x, y), x, y)


@pytest.mark.parametrize("name", BINARY)
@in_every_dtype
def test_scalars(check, name, dtype):
    function = getattr(np, TABLE[name].kernel)
    for x in (values((3, 4), dtype), values((), dtype)):
        for scalar in SCALARS:
            check(name)(lambda x=x, s=scalar: function(x, s), x, scalar)
            check(name)(lambda x=x, s=scalar: function(s, x), scalar, x)


@pytest.mark.parametrize("value", [300, -1, 2**40, 2**63, -(2**63) - 1])
def test_integers_that_do_not_fit(check, value):
    for dtype in ("u1", "i1", "i8", "u8"):
        x = values((4,), dtype)
        for name in ("add", "bitwise_and", "maximum", "less", "equal"):
            function = getattr(np, TABLE[name].kernel)
            check(name)(lambda f=function, x=x: f(x, value), x, value)
            check(name)(lambda f=function, x=x: f(value, x), value, x)


def test_shapes_that_do_not_broadcast(check):
    x, y = values((3, 4), "f4"), values((3,), "f4")
    check("add")(lambda: x + y, x, y)
    check("where")(lambda: np.where(x > 0, x, y), x > 0, x, y)


@in_every_layout
def test_round(check, x):
    check("round")(lambda: np.round(x), x)


@in_every_layout
def test_clip(check, x, some_dtype):
    for low, high in ((0, 1), (0.5, 1.5), (np.float32(0), 1), (values((4,), some_dtype), 3), (False, True)):
        check("clip")(lambda low=low, high=high: np.clip(x, low, high), x, low, high)


@in_every_layout
def test_where(check, some_dtype, layout):
    x, y = layouts(some_dtype)[layout], values((4,), some_dtype, seed=1)
    for condition in (layouts("?", 2)["c"], layouts("?", 2)["fortran"], values((4,), "i8"), values((), "?")):
        for a, b in ((x, y), (y, x), (x, 2), (2.5, x), (x, np.float32(1)), (1, 2.0), (x, 300)):
            check("where")(lambda c=condition, a=a, b=b: np.where(c, a, b), condition, a, b)


@in_every_layout
def test_astype_copy(check, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        for wanted in DTYPES:
            check("astype")(lambda d=wanted: x.astype(d), x, dtype=np.dtype(wanted))
    check("copy")(lambda: x.copy(order="K"), x)


@in_every_layout
def test_parts(check, x):
    check("real")(lambda: x.real, x)
    check("imag")(lambda: x.imag, x)


@pytest.mark.parametrize("k", [-1, 0, 2])
@in_every_layout
def test_triangles(check, x, k):
    check("tril")(lambda: np.tril(x, k), x, k=k)
    check("triu")(lambda: np.triu(x, k), x, k=k)


NEW = np.lib.NumpyVersion(np.__version__) >= "2.3.0"


@pytest.mark.parametrize("exponent", [-1, -1.0, 0, 0.5, 1, 2, 2.0, 3, 1.5, True, 2j, np.float64(0.5), np.int64(2)])
@in_every_dtype
def test_operator_power(check, dtype, exponent):
    x = values((3, 4), dtype) if dtype != "?" else values((4,), dtype)
    op = power_op(x, exponent)
    operands = (x, exponent) if op.name == "pow" else (x,)
    if exponent is not True and exponent == -1 and x.dtype.kind in "iub":
        pytest.skip("negative powers of integers fail when they run, for their values")
    # Before NumPy 2.3 these were not by its own rules of promotion.
    own = NEW or not (isinstance(exponent, np.generic) or (dtype == "?" and type(exponent) is float))
    check(op.name)(lambda: x**exponent if own else np.power(x, exponent), *operands)
