"""The error function and its inverse against SciPy's, within the bounds that their docstrings state."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import DTYPES, layouts, meta_of, strides

from asyncsched.ops import TABLE, plan, resolve

special = pytest.importorskip("scipy.special", reason="SciPy is not installed")
BOUNDS = {"erf": 5e-16, "erfinv": 1e-15}  # of SciPy's, which is off itself
rng = np.random.default_rng(0)


def scipys(name, x):
    """SciPy's result. From 1.18 on that of `erf` is float32 for bool, small integers and float16: it was float64."""
    x = np.asarray(x)
    return getattr(special, name)(x.astype("f8") if name == "erf" and x.dtype != np.float32 else x)


_SIZES = 10.0 ** rng.uniform(-300, 0, 2000) * rng.choice([-1, 1], 2000)
_NEAR_ONE = np.concatenate([1 - 2.0 ** -np.arange(1, 54), 1 - 10.0 ** rng.uniform(-16, 0, 2000)])
NUMBERS = {
    "erf": np.concatenate([rng.uniform(-7, 7, 5000), _SIZES, np.linspace(0.74, 0.76, 501), [1e300, -1e300, 5e-324]]),
    "erfinv": np.concatenate([rng.uniform(-1, 1, 5000), _SIZES, _NEAR_ONE, -_NEAR_ONE, np.linspace(0.84, 0.86, 501)]),
}
ENDS = np.array([-np.inf, -2, -1, -0.0, 0.0, 1, 1.5, np.inf, np.nan])


@pytest.fixture(autouse=True)
def quiet():
    """As operations run."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("name", BOUNDS)
def test_double_precision_is_as_near_as_is_said(name):
    found, expected = resolve(TABLE[name], np)(NUMBERS[name]), getattr(special, name)(NUMBERS[name])
    np.testing.assert_allclose(found, expected, rtol=BOUNDS[name], atol=0)


def test_erf_is_within_4e_16_of_the_truth():
    expected = [math.erf(x) for x in NUMBERS["erf"].tolist()]
    np.testing.assert_allclose(resolve(TABLE["erf"], np)(NUMBERS["erf"]), expected, rtol=4e-16, atol=0)


@pytest.mark.parametrize("name", BOUNDS)
def test_single_precision_is_rounded_once(name):
    x = NUMBERS[name].astype("f4")
    expected = getattr(special, name)(x.astype("f8")).astype("f4")
    found = resolve(TABLE[name], np)(x)
    assert np.count_nonzero(found != expected) <= 1  # where 1e-16 decides which way it is rounded
    np.testing.assert_array_max_ulp(found, expected, 1)


@pytest.mark.parametrize("name", BOUNDS)
def test_infinities_and_nan(name):
    for dtype in ("f2", "f4", "f8"):
        found = resolve(TABLE[name], np)(ENDS.astype(dtype))
        np.testing.assert_allclose(found, scipys(name, ENDS.astype(dtype)), rtol=5e-16)
        assert np.signbit(found[3])


@pytest.mark.parametrize("name", BOUNDS)
def test_dtypes_and_layouts_are_scipys(name):
    kernel = resolve(TABLE[name], np)
    for dtype in (*DTYPES, "u2", "i2", "u4", "u8", "g"):
        for array in layouts("f8").values():
            x = np.clip(array, -0.9, 0.9).astype(dtype, order="K") if array.size else array.astype(dtype)
            if np.dtype(dtype).kind == "c" or dtype == "g":
                with pytest.raises(TypeError, match="real numbers of at most 64 bits"):
                    plan(TABLE[name], (meta_of(x),), {})
                continue
            expected, found = scipys(name, x), np.asarray(kernel(x))
            planned = plan(TABLE[name], (meta_of(x),), {}).meta
            assert planned.dtype == found.dtype == expected.dtype
            assert planned.shape == found.shape == expected.shape
            assert strides(found) == strides(np.asarray(expected))
            assert found.flags.c_contiguous or not planned.contiguous
            np.testing.assert_allclose(found, expected, rtol=1e-6 if found.dtype == "f4" else 1e-15, atol=0)
            out = np.empty(x.shape, found.dtype)
            assert kernel(x, out=out) is out
            assert out.tobytes() == found.tobytes()


@pytest.mark.parametrize("name", BOUNDS)
def test_numbers_are_operands(name):
    for number in (True, 0, 0.5, np.float32(0.5), np.int8(0)):
        found = resolve(TABLE[name], np)(number)
        assert found.dtype == scipys(name, number).dtype
        assert plan(TABLE[name], (number,), {}).meta.dtype == found.dtype
        np.testing.assert_allclose(found, scipys(name, number), rtol=1e-7)


def test_blocks_are_alike():
    x = rng.uniform(-1, 1, 300_000)
    for name in BOUNDS:
        kernel = resolve(TABLE[name], np)
        whole = kernel(x)
        assert whole[250_001:].tobytes() == kernel(x[250_001:]).tobytes()
        assert kernel(x, out=(over := x.copy())).tobytes() == whole.tobytes()
        assert kernel(over, out=over).tobytes() == kernel(whole).tobytes()
