"""Sets: what is unique, what is among others, and what is repeated as often as a tensor says."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import DTYPES, assert_same, values

import asyncsched as asc
from tests.waiting import held

pytestmark = pytest.mark.one_loop

SHAPES = ((7,), (3, 4), (2, 3, 2), (0,), (1, 0), ())
PACKED = ("unique_all", "unique_counts", "unique_inverse")


def with_nan(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Few different values; some are NaN where there is such a thing."""
    x = np.asarray(np.round(values(shape, dtype).real)).astype(dtype)
    if x.dtype.kind in "fc" and x.size > 2:
        x.flat[1] = x.flat[2] = np.nan
    return x


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
async def test_unique(s, dtype, shape):
    for array in (with_nan(shape, dtype), np.asfortranarray(with_nan(shape, dtype))):
        x = await s.put(array)
        assert_same(await asc.unique_values(x), np.unique_values(array))
        for name in PACKED:
            expected = getattr(np, name)(array)
            found = getattr(asc, name)(x)
            assert found._fields == expected._fields
            for got, like in zip(found, expected, strict=True):
                assert got.dtype == like.dtype
                assert got.shape in ((None,), like.shape)
                assert_same(await got, like)
                assert got.shape == like.shape


async def test_a_length_that_depends_on_data_is_known_when_it_is_done(gate):
    async with asc.Scheduler("cpu", streams=1) as s:
        x = await s.put(np.array([[2, 1], [2, 2]]))
        s.submit_nowait(held, gate)
        found = asc.unique_all(x)
        assert [part.shape for part in found] == [(None,), (None,), (2, 2), (None,)]
        gate.set()
        assert (await (found.counts * 2)).tolist() == [2, 6]
        await found.values
        assert found.values.shape == (2,)
        assert (await asc.take(found.values, found.inverse_indices)).tolist() == [[2, 1], [2, 2]]


async def test_elements_that_were_not_found_are_charged_no_more(s):
    x = await s.put(np.zeros(10_000))
    before = s.statistics().bytes_retained
    found = asc.unique_counts(x)
    await s.barrier()
    assert s.statistics().bytes_retained - before == 16
    del found
    assert s.statistics().bytes_retained == before


@pytest.mark.parametrize("dtype", DTYPES)
async def test_isin(s, dtype):
    a, b = values((3, 4), dtype), values((5,), dtype, 1)
    x, y = await s.put(a), await s.put(b)
    for invert in (False, True):
        assert_same(await asc.isin(x, y, invert=invert), np.isin(a, b, invert=invert))
    assert_same(await asc.isin(x, 1), np.isin(a, 1))
    assert_same(await asc.isin(1, x), np.isin(1, a))
    assert_same(await asc.isin(x.mT, y), np.isin(a.T, b))


async def test_repeats_of_a_tensor(s, gate):
    a, often = np.arange(6.0).reshape(2, 3), np.array([2, 0, 3])
    x = s.submit_nowait(held, gate, a, shape=a.shape, dtype=a.dtype)
    repeats = await s.put(often)
    found = asc.repeat(x, repeats, axis=1)
    assert found.shape == (2, None)
    gate.set()
    assert_same(await found, np.repeat(a, often, axis=1))
    assert found.shape == (2, 5)
    assert_same(await asc.repeat(x, await s.put(np.array(2))), np.repeat(a, 2))
    more = asc.repeat(x, await s.put(np.array([100, 1])), axis=0)
    assert_same(await more, np.repeat(a, [100, 1], axis=0))
    with pytest.raises(ValueError, match="an element for each of the 2"):
        asc.repeat(x, repeats, axis=0)
    negative = asc.repeat(x, -repeats, axis=1)
    with pytest.raises(ValueError, match="negative"):
        await negative


def test_shapes_broadcast_with_unknown_lengths():
    assert asc.broadcast_shapes() == ()
    assert asc.broadcast_shapes((2, 1), (3,)) == (2, 3)
    assert asc.broadcast_shapes((None, 1), (4, 3)) == (None, 3)
    with pytest.raises(ValueError, match="shape mismatch"):
        asc.broadcast_shapes((2,), (3,))


async def test_other_libraries_arrays_and_back(s):
    a = np.arange(6.0).reshape(2, 3)
    x = asc.from_dlpack(a)
    assert_same(await x, a)
    assert asc.from_dlpack(x) is x
    with pytest.raises(BufferError, match="is always a copy"):
        asc.from_dlpack(a, copy=False)
    with pytest.raises(TypeError, match=r"await s\.put"):
        asc.from_dlpack([1, 2])
    assert x.to_device(x.device) is x
    with pytest.raises(ValueError, match="leave `stream` out"):
        x.to_device(x.device, stream=1)


async def test_the_namespaces_own_description(s):
    info = asc.__array_namespace_info__()
    assert info.capabilities()["data-dependent shapes"]
    assert info.default_device() is s.devices[0]
    assert info.devices() == s.devices
    assert info.default_dtypes()["real floating"] == np.float64
    assert info.dtypes(kind="bool") == {"bool": np.dtype(bool)}
