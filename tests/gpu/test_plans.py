"""Plans of Fourier transforms. CuPy keeps them, with their work areas, for each thread: none outlives its scheduler,
and no graph keeps their address."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.gpu_check import libraries
from asyncsched.gpu_check.arguments import arguments
from asyncsched.gpu_check.entries import Report
from asyncsched.ops.kernels.signal import PLAN_BYTES
from asyncsched.ops.op import Blas
from asyncsched.ops.table import TABLE

from .cases import absent, groups
from .conftest import NONE, recorded

pytestmark = pytest.mark.one_loop


async def test_replays_write_to_no_plan_that_is_gone(card, tmp_path):
    await libraries.plans(Report(tmp_path, quick=True))


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


@pytest.mark.gpu
@pytest.mark.parametrize(
    "names", groups(name for name in TABLE if any(isinstance(a, np.ndarray) for a in arguments(name)[0]))
)
async def test_replays_of_each_operation_give_the_same_when_plans_are_gone(has_card, names):
    """Nothing that a library keeps is part of a graph: not in memory that others get, and not in what ends."""
    if not has_card:
        pytest.skip(NONE)
    graphs = 0
    for name in names:
        async with asc.Scheduler("cuda", streams=1, max_bytes="256 MiB") as s:
            try:
                graph = await libraries.replayed(s, name, *arguments(name))
            except Exception as error:
                # A length that depends on data, if it is no fault.
                assert isinstance(error, asc.CaptureError) or absent(str(error)), name
                continue
            graphs += any(recorded(s))
            del graph
    assert graphs or all(TABLE[name].blas is not Blas.NONE or TABLE[name].resource for name in names)
