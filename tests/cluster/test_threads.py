"""A worker with several threads; and a cluster as an executor."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.cluster.device import DaskDevice

pytestmark = pytest.mark.one_loop

# On the worker.
BUSY = threading.Lock()
MET = threading.Barrier(2)


def alone(x: Any) -> Any:
    """Raises where another runs at the same time."""
    if not BUSY.acquire(blocking=False):
        raise AssertionError("another one runs")
    try:
        threading.Event().wait(0.02)  # for somebody who must not come
        return x
    finally:
        BUSY.release()


def meet(x: Any) -> Any:
    """Ends when another runs at the same time."""
    MET.wait(30)
    return x


async def test_what_uses_a_resource_runs_one_by_one_and_the_rest_side_by_side(one_worker, blockbuster):
    async with asc.Scheduler(DaskDevice(one_worker, workers=1)) as s:
        found = [s.submit_nowait(meet, i) for i in range(4)]
        assert [await task for task in found] == list(range(4))
        found = [s.submit_nowait(alone, i, resource="a file") for i in range(8)]
        assert [await task for task in found] == list(range(8))


async def test_a_cluster_is_an_executor(one_worker, blockbuster):
    loop = asyncio.get_running_loop()
    async with asc.Scheduler(DaskDevice(one_worker, workers=1)) as s:
        executor = s.as_executor()
        assert await loop.run_in_executor(executor, sum, [1, 2, 3]) == 6
        x = await s.put(np.ones((2, 3)))
        total = await asyncio.wrap_future(executor.submit(partial(np.sum, axis=0), x))
        assert total.tolist() == [2, 2, 2]
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(executor, divmod, 1, 0)
        futures = [executor.submit(pow, 2, i) for i in range(3)]
        assert futures[1].cancel()
        assert await asyncio.to_thread(futures[2].result, 30) == 4
        executor.shutdown()
        assert await asyncio.wrap_future(futures[0]) == 1
