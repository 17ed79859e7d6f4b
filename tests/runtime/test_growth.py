"""Nothing grows: neither the process nor the ledgers, in any kind of loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest

import asyncsched as asc
from asyncsched.devices.sim import SimDevice
from tests.ledger import engine_of, used
from tests.waiting import fail, no_collector, settled, until

BLOCK = np.ones((200, 200))  # 320,000 bytes: from the pool
NB = BLOCK.nbytes


async def iteration(s: asc.Scheduler, i: int) -> None:
    async with s.scope(reserve=8 * NB if i % 2 else None):
        x = await s.put(BLOCK)
        y = (x @ x + i).sum(axis=0)
        z = x[1:] * 2
        assert (await y)[0] == 200 * (200 + i)
        assert await s.call(np.shape, z) == (199, 200)
        x[0] = 3
        await x.numpy()
        await asc.gather(x, z)


def resident() -> int:
    return int(psutil.Process(os.getpid()).memory_info().rss)


@pytest.mark.one_loop
@pytest.mark.timeout(120)  # nine thousand turns of loop and threads, each of which may wait for a busy machine
async def test_a_thousand_iterations_leave_nothing() -> None:
    async with asc.Scheduler("cpu", max_bytes="16 MiB") as s:
        for i in range(100):
            await iteration(s, i)
        with_pool = await asyncio.to_thread(resident)
        for i in range(1000):
            await iteration(s, i)
        assert await asyncio.to_thread(resident) - with_pool < 12 * 2**20
        await until(lambda: used(s) == 0)
        assert asc.observe.Probe(s).waits == 0
        assert not engine_of(s).root.children
        now = s.statistics()
        assert now.bytes_retained == now.bytes_reserved == now.bytes_in_flight == 0
        assert not s.devices[0].memory.escapes


async def test_no_reference_cycles(s: asc.Scheduler) -> None:
    window = s.window(2)
    with no_collector():
        for i in range(5):
            await iteration(s, i)
        gc.collect()
        for i in range(50):
            async with window:
                await iteration(s, i)
            t = s.submit_nowait(int)
            t.cancel()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await s.put(BLOCK)
            await s.barrier()
        del t
        await s.barrier()
        await until(lambda: used(s) == 0)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = [g for g in gc.garbage if type(g).__module__.startswith("asyncsched")]
        assert not ours, {type(g).__qualname__ for g in ours}


async def test_a_failure_raised_often_does_not_grow(s: asc.Scheduler) -> None:
    def depth(error: BaseException) -> int:
        count, trace = 0, error.__traceback__
        while trace is not None:
            count, trace = count + 1, trace.tb_next
        return count

    task = s.submit_nowait(fail)
    y = s.submit_nowait(int, task)
    seen = set()
    for handle in (task, y) * 20:
        try:
            await handle
        except LookupError as error:
            seen.add((handle is y, len(error.__notes__), depth(error)))
    assert len(seen) == 2
    assert {count for _, count, _ in seen} == {1, 2}


async def test_a_failed_body_pins_nothing(s: asc.Scheduler) -> None:
    def fail(a: Any) -> None:
        mine = a * 2
        raise LookupError(mine.shape)

    x = await s.put(BLOCK)
    task = s.submit_nowait(fail, x)
    del x
    await until(lambda: used(s) == 0)  # its end is told after its failure
    with pytest.raises(LookupError):
        await task


@pytest.mark.parametrize("device", ["cpu", "captured", "sim"])
async def test_a_failed_operation_keeps_no_variable_of_its_caller(device: str) -> None:
    """It may have been called beneath the user's frames, and an exception's frames keep those that called them."""

    class Held:
        pass

    async with asc.Scheduler(SimDevice(seed=1) if device == "sim" else "cpu") as s:
        x, good = await s.put(np.zeros((2, 2))), await s.put(np.eye(2))
        root = await s.capture(asc.linalg.cholesky, good) if device == "captured" else asc.linalg.cholesky

        async def write() -> tuple[asc.Tensor, weakref.ref[Held]]:
            mine = Held()
            return await settled(root(x)), weakref.ref(mine)

        with no_collector():
            y, mine = await write()
            assert mine() is None
        with pytest.raises(np.linalg.LinAlgError, match="(?s)positive definite") as told:
            await y
        assert "submitted at" in told.value.__notes__[-1]


def broken(*_: Any) -> Any:
    raise LookupError("broken on purpose")


async def _too_much(s: asc.Scheduler) -> None:
    await s.put(np.ones(NB))


FAILING: dict[str, Callable[[asc.Scheduler, asc.Tensor], Any]] = {
    "put": lambda s, x: _too_much(s),
    "reserve": lambda s, x: s.scope(reserve=8 * NB).__aenter__(),
    "submit": lambda s, x: _result(s.submit(broken, x)),
    "call": lambda s, x: s.call(broken, x),
    "numpy": lambda s, x: s.submit_nowait(broken, x, shape=(), dtype=float).numpy(),
    "item": lambda s, x: s.submit_nowait(broken, x, shape=(), dtype=float).item(),
    "gather": lambda s, x: _result(_gathered(s, x)),
    "barrier": lambda s, x: (s.submit_nowait(broken, x), s.barrier())[1],
}


async def _result(handle: Any) -> None:
    await (await handle)


async def _gathered(s: asc.Scheduler, x: asc.Tensor) -> Any:
    return asc.gather(x, s.submit_nowait(broken, x), x + 1)


@pytest.mark.parametrize("what", FAILING)
async def test_a_failure_that_was_seen_holds_nothing(what: str) -> None:
    """An exception holds the frames it passed, and their tensors: these are free without the collector."""

    async def attempt() -> None:
        large = x + 1
        await large.sum().item()
        await FAILING[what](s, x)

    async with asc.Scheduler("cpu", max_bytes=12 * NB) as s:
        x = await s.put(BLOCK)
        other = [await s.put(BLOCK) for _ in range(4)]  # held by this coroutine, which waits: a deadlock
        before = used(s)
        with no_collector():
            with contextlib.suppress(asc.AsyncSchedError, LookupError, ExceptionGroup):
                await attempt()
                pytest.fail(f"{what} did not fail")
            await s.barrier()
            # Not quite at once: the thread that ran it tells of the end first, and lets go of the task second.
            await until(lambda: used(s) == before)
        del other
