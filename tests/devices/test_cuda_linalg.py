"""Linear algebra, transforms and sets on CUDA: what CuPy has of them, their errors, and plans that one stream uses."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from numpy.linalg import LinAlgError

import asyncsched as asc
from asyncsched.ops.kernels.signal import PLAN_BYTES
from asyncsched.ops.meta import meta
from asyncsched.ops.op import plan, resolve
from asyncsched.ops.table import TABLE
from asyncsched.tensors.tensor import apply
from tests.fake_cupy import Fake
from tests.gpu.cases import CASES, RANDOM, _matrices, _sets, _transforms
from tests.ledger import lane_of

from .conftest import opened

pytestmark = pytest.mark.one_loop


def _gives_several(name: str) -> bool:
    """Whether an operation gives several results packed in one."""
    case = CASES[name][0]
    operands = [meta(a.shape, a.dtype) if isinstance(a, np.ndarray) else a for a in case.operands]
    return bool(plan(TABLE[name], tuple(operands), case.options).parts)


# Those of decompositions may differ in their signs; what is packed of a set may not.
_PACKED = {name for name in (*_matrices(), *_transforms(), *_sets()) if _gives_several(name)} - {"unique_packed"}
NAMES = [name for name in (*_matrices(), *_transforms(), *_sets()) if name not in _PACKED and name not in RANDOM]


@pytest.mark.parametrize("name", NAMES)
async def test_rows_equal_numpys(fake: Fake, name: str) -> None:
    async with opened(2) as s:
        for case in CASES[name]:
            expected = np.asarray(resolve(TABLE[name], np)(*case.operands, **case.options))
            operands = [await s.put(a) if isinstance(a, np.ndarray) else a for a in case.operands]
            tensor = apply(TABLE[name], tuple(operands), case.options, scheduler=s)
            got = await tensor.numpy()
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            assert tensor.dtype == expected.dtype
            if name == "unique_values":  # NumPy's are in no order
                got, expected = np.sort(got), np.sort(expected)
            assert np.allclose(got, expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["eigh", "eig", "qr", "svd", "slogdet"])
async def test_several_results_equal_numpys(fake: Fake, name: str) -> None:
    async with opened(2) as s:
        for case in CASES[name]:
            found = getattr(asc.linalg, name)(await s.put(case.operands[0]), **case.options)
            for part, expected in zip(found, getattr(np.linalg, name)(*case.operands, **case.options), strict=True):
                assert part.shape == expected.shape
                assert np.allclose(await part.numpy(), expected)


async def test_transforms_share_one_stream(fake: Fake) -> None:
    """CuPy's plans have a work area each, which two streams must not use at once: the fake would tell."""
    async with opened(2) as s:
        x = await s.put(np.ones((32, 32), np.complex64))
        graphs = [await s.capture(asc.fft.fftn, x), await s.capture(asc.fft.ifft, x)]
        with fake.pause():
            found = [transform(x) for _ in range(10) for transform in (asc.fft.fft, asc.fft.ifftn, *graphs)]
            lanes = {lane_of(t) for t in found}
        await asc.gather(*found)
        assert len(lanes - {None}) == 1


async def test_plans_that_hold_much_are_dropped(fake: Fake) -> None:
    async with opened(1) as s:
        x = await s.put(np.ones(8))
        cache = await s.call(_plan_cache)  # of the one stream's thread
        cache.held, cache.cleared = PLAN_BYTES, 0  # a thread may have served another test before
        await asc.fft.fft(x)
        assert cache.held == PLAN_BYTES
        cache.held += 1
        await asc.fft.fft(x)
        assert cache.held == 0


def _plan_cache() -> Any:
    import cupy

    return cupy.fft.config.get_plan_cache()


async def test_a_singular_matrix_is_an_error_there_too(fake: Fake) -> None:
    async with opened(1) as s:
        inverse = asc.linalg.inv(await s.put(np.zeros((3, 3))))
        with pytest.raises(LinAlgError):
            await inverse


async def test_several_results_and_lengths_that_depend_on_data(fake: Fake) -> None:
    async with opened(2) as s:
        array = np.array([3.0, 1.0, 3.0])
        found = asc.unique_all(await s.put(array))
        for part, expected in zip(found, np.unique_all(array), strict=True):
            assert (await part.numpy()).tolist() == expected.tolist()
        q, r = asc.linalg.qr(await s.put(np.eye(3) * 2))
        assert (await (q @ r).numpy()).tolist() == (np.eye(3) * 2).tolist()
        del found, q, r, part
        gc.collect()


async def test_random_numbers_are_equal_from_run_to_run_and_none_waits_for_another(fake: Fake) -> None:
    async def numbers() -> list[np.ndarray]:
        async with opened(2) as s:
            rng, x = asc.random.default_rng(4), await s.put(np.arange(6))
            drawn = [rng.normal(1.0, 2.0, (2, 3)), rng.normal(1.0, 2.0, (2, 3)), rng.integers(10, size=4)]
            drawn += [rng.uniform(size=3, dtype="f4"), rng.permutation(x), rng.permutation(5), rng.choice(x, 4)]
            drawn += [rng.choice(x, 3, replace=False), rng.choice(6, (2, 2), p=await s.put(np.ones(6) / 6))]
            found = [await t.numpy() for t in drawn]
            assert [(a.shape, a.dtype) for a in found] == [(t.shape, t.dtype) for t in drawn]
            return found

    first, again = await numbers(), await numbers()
    assert [a.tobytes() for a in first] == [a.tobytes() for a in again]
    assert first[0].tobytes() != first[1].tobytes()
    assert sorted(first[4]) == list(range(6))
    assert len(set(first[7].tolist())) == 3
