"""Fourier transforms against eager NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import assert_same, values

import asyncsched as asc

ALONG = ("fft", "ifft", "rfft", "irfft")
SEVERAL = ("fftn", "ifftn", "rfftn", "irfftn")
DTYPES = ("f4", "f8", "c8", "c16", "i4", "?", "f2")


def layouts(dtype: str) -> list[np.ndarray]:
    x = values((4, 3, 5), dtype)
    return [x, np.asfortranarray(x), x[::-1, :, ::2], x[:1]]


@pytest.mark.parametrize("name", ALONG)
@pytest.mark.parametrize("axis", [-1, 0, 1, 3])
def test_along_an_axis(check, name, axis):
    for dtype in DTYPES:
        for x in layouts(dtype):
            for n in (None, 1, 2, 7):
                options = {"n": n, "axis": axis, "norm": "backward"}
                check(name)(lambda x=x, o=options: getattr(np.fft, name)(x, **o), x, **options)


@pytest.mark.parametrize("name", ALONG)
@pytest.mark.parametrize("norm", ["ortho", "forward"])
def test_norms(check, name, norm):
    for dtype in ("f4", "f8"):
        x = values((4, 5), dtype)
        check(name)(lambda x=x: getattr(np.fft, name)(x, norm=norm), x, n=None, axis=-1, norm=norm)


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize(
    ("axes", "s"), [(None, None), ((1,), None), ((0, 2), (3, -1)), ((2, 0), (-1, 6)), ((1, 2), (0, 3)), ((0, 5), None)]
)
def test_along_several(check, name, axes, s):
    for dtype in DTYPES:
        for x in layouts(dtype):
            options = {"s": s, "axes": axes, "norm": "backward"}
            check(name)(lambda x=x, o=options: getattr(np.fft, name)(x, **o), x, **options)


@pytest.mark.parametrize("name", ["hfft", "ihfft"])
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
async def test_half_of_a_symmetric_signal(s, name, norm):
    for dtype in DTYPES if name == "hfft" else ("f4", "f8", "i4", "f2"):
        for a in layouts(dtype):
            for options in ({}, {"axis": 1}, {"n": 2}, {"n": 7, "axis": 0}):
                found = getattr(asc.fft, name)(await s.put(a), norm=norm, **options)
                assert_same(await found, getattr(np.fft, name)(a, norm=norm, **options))
    with pytest.raises(ValueError, match=f"{name}: norm must be"):
        getattr(asc.fft, name)(asc.ones(3), norm="forwards")


@pytest.mark.parametrize("n", [1, 2, 5, 6])
async def test_frequencies(s, n):
    for d in (1.0, 0.1):
        assert_same(await asc.fft.fftfreq(n, d=d), np.fft.fftfreq(n, d=d))
        assert_same(await asc.fft.rfftfreq(n, d=d, dtype="f4"), np.fft.rfftfreq(n, d=d).astype("f4"))


async def test_functions(s):
    a = values((3, 4), "f8")
    x = await s.put(a)
    assert_same(await asc.fft.fftn(x, s=(2,)), np.fft.fftn(a, s=(2,), axes=(-1,)))
    assert_same(await asc.fft.fftshift(x), np.fft.fftshift(a))
    assert_same(await asc.fft.ifftshift(x, axes=1), np.fft.ifftshift(a, axes=1))
    with pytest.raises(ValueError, match="norm must be"):
        asc.fft.fft(x, norm="forwards")
    with pytest.raises(ValueError, match="must be positive"):
        asc.fft.fftfreq(0)
