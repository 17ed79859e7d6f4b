"""Plans of Fourier transforms. CuPy keeps them, with their work areas, for each thread: none outlives its scheduler,
and no graph keeps their address."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.ops.kernels.fourier import PLAN_BYTES
from asyncsched.ops.table import TABLE
from asyncsched.ops.traits import Blas
from asyncsched.tensors.tensor import apply
from tests.waiting import until

from .cases import PACKED, absent, cases_of, groups
from .conftest import NONE

pytestmark = pytest.mark.one_loop
TRANSFORMS = ["fft", "ifft", "rfft", "irfft", "fftn", "ifftn", "rfftn", "irfftn"]
# By name: steps of one array, by a namespace.
STEPS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: lambda xp, x, name=name: abs(getattr(xp.fft, name)(x)) * 1.0 for name in TRANSFORMS},
    "convolve": lambda xp, x: xp.convolve(x[0], x[1], mode="full") * 1.0,
}


async def evict_plans(s: asc.Scheduler) -> None:
    """More lengths than CuPy keeps plans for."""
    for n in range(65, 85):
        asc.fft.fft(asc.ones(n, scheduler=s))
    await s.barrier()


@pytest.mark.parametrize("name", STEPS)
async def test_replays_write_to_no_plan_that_is_gone(card, name):
    array, step = np.random.default_rng(0).random((6, 64)), STEPS[name]
    async with asc.Scheduler("cuda", streams=1, max_bytes="256 MiB") as s:
        x = await s.put(array)
        await step(asc, x)
        graph = await s.capture(lambda x: step(asc, x), x)
        for _ in range(2):
            assert np.allclose(await graph(x).numpy(), step(np, array))
            await evict_plans(s)
            held = [await s.put(np.full(64 * n, n, np.float64)) for n in range(1, 40)]
            for n, h in enumerate([*held, *[h + 0.0 for h in held]]):
                await graph(x)
                assert (await h.numpy() == n % 39 + 1).all()


async def test_replays_of_a_plan_that_is_too_large_to_keep(card):
    batches = PLAN_BYTES // 2 // 16 + 1
    async with asc.Scheduler("cuda", streams=1, max_bytes="2 GiB") as s:
        x = await s.put(np.ones((batches, 2)))
        graph = await s.capture(lambda x: asc.abs(asc.fft.fft(x))[:, 0], x)
        for _ in range(2):
            assert (await graph(x).numpy() == 2).all()


async def test_dropping_large_plans_runs_no_collection(card):
    """One holds the GIL for as long as the program has objects, and runs users' finalisers on the stream's thread."""
    batches, seen = PLAN_BYTES // 2 // 16 + 1, list[str]()
    async with asc.Scheduler("cuda", streams=1, max_bytes="2 GiB") as s:
        x = await s.put(np.ones((batches, 2)))
        gc.disable()  # but for those that are asked for
        gc.callbacks.append(lambda phase, _: seen.append(phase))
        try:
            await asc.fft.fft(x)
        finally:
            gc.callbacks.pop()
            gc.enable()
    assert seen == []


def transform_of_the_users(array: Any) -> Any:
    import cupy

    return cupy.fft.fft(array)


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["operation", "captured", "function"])
async def test_plans_hold_nothing_of_a_scheduler_that_closed(has_card, how):
    if not has_card:
        pytest.skip("the fake's plans have no work areas")
    for n in range(3):
        async with asc.Scheduler("cuda", max_bytes="64 MiB") as s:
            x = await s.put(np.ones(5000 + n))
            if how == "function":
                found = await s.submit(transform_of_the_users, x, shape=x.shape, dtype=np.complex128)
            else:
                found = (await s.capture(asc.fft.fft, x))(x) if how == "captured" else asc.fft.fft(x)
            assert (await found.numpy())[0] == 5000 + n
            pool = s.devices[0].memory.pool
        del x, found, s
        await until(lambda: not pool.reserved())  # noqa: B023


def captured(name: str, operands: tuple[Any, ...], options: dict[str, Any]) -> Callable[..., asc.Tensor]:
    """A step of one operation of the table: a function of the arrays among its operands."""

    def step(*tensors: asc.Tensor) -> asc.Tensor:
        given = iter(tensors)
        args = tuple([next(given) if isinstance(a, np.ndarray) else a for a in operands])
        return apply(TABLE[name], args, options)

    return step


@pytest.mark.gpu
@pytest.mark.parametrize("names", groups(name for name in TABLE if name not in PACKED))
async def test_replays_of_each_operation_give_the_same_when_plans_are_gone(has_card, names):
    """Nothing that a library keeps is part of a graph: not in memory that others get, and not in what ends."""
    if not has_card:
        pytest.skip(NONE)
    differ, graphs = [], 0
    for name in names:
        case = cases_of(name, 1)[0]
        async with asc.Scheduler("cuda", streams=1, max_bytes="256 MiB") as s:
            tensors = [await s.put(a) for a in case.operands if isinstance(a, np.ndarray)]
            step = captured(name, case.operands, case.options)
            try:
                expected = await step(*tensors).numpy()
                graph = await s.capture(step, *tensors)
            except Exception as error:
                # A length that depends on data, or no tensor to capture with.
                assert isinstance(error, asc.CaptureError | TypeError) or absent(str(error)), name
                continue
            for _ in range(3):
                found = await graph(*tensors).numpy()
                if found.tobytes() != expected.tobytes():
                    differ.append(name)
                await evict_plans(s)
            graphs += any(graph._recorded is not None for graph in s.devices[0]._graphs)
            del graph, tensors
    assert not differ
    assert graphs or all(TABLE[name].blas is not Blas.NONE or TABLE[name].resource for name in names)
