"""Functions that are composed of operations, and derivatives of padding and windows, on the device as on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncsched as asc

pytestmark = pytest.mark.one_loop
RNG = np.random.default_rng(0)
X, AT, WHOLE = RNG.normal(size=(6, 8)), np.sort(RNG.normal(size=8)), RNG.integers(0, 9, (6, 8))


async def computed(s: asc.Scheduler) -> list[Any]:
    x, at, whole = await s.put(X), await s.put(AT), await s.put(WHOLE)
    found = [*asc.gradient(x), *asc.gradient(x, 2.0, at, edge_order=2), *asc.gradient(whole), asc.trapezoid(x, at)]
    found += [asc.trapezoid(whole), asc.erf(whole), asc.pad(x, (2, 12), "reflect"), asc.pad(at, 9, "wrap")]
    x.requires_grad = at.requires_grad = True
    loss = asc.trapezoid(x, at).sum() + (asc.gradient(x, 2.0, at)[1] ** 2).sum() + asc.erf(x).sum()
    for some in (asc.pad(x, 3, "symmetric"), asc.sliding_window_view(x, 3, 1), asc.convolve(x[0], at, "same")):
        loss = loss + (some**2).sum()
    loss.backward()
    return [await t.numpy() for t in (*found, loss, x.grad, at.grad)]


async def test_functions_and_derivatives_equal_the_hosts(card):
    async with asc.Scheduler("cpu") as s:
        expected = await computed(s)
    async with asc.Scheduler("cuda") as s:
        for found, wanted in zip(await computed(s), expected, strict=True):
            assert found.dtype == wanted.dtype
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


async def test_what_cupy_cannot_pad_says_so_and_goes_no_further(card):
    async with asc.Scheduler("cuda") as s:
        x = await s.put(AT)
        for options in ({"mode": "median"}, {"mode": "reflect", "reflect_type": "odd"}):
            with pytest.raises(NotImplementedError, match="CuPy has no mode"):
                await asc.pad(x, 20, **options)
        assert (await asc.pad(x, 2, "reflect", reflect_type="odd").numpy()).shape == (12,)
