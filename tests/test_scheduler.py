"""Opening a scheduler and waiting for it; `test_submitting` and `test_closing` have the rest."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cpu import CPUDevice
from asyncsched.devices.sim import SimDevice
from tests.waiting import fail, held, settled, turns, until

BLOCK = np.ones((200, 200))


async def test_a_scheduler_and_its_parts_cannot_be_pickled_or_copied(s: asc.Scheduler) -> None:
    """A copy that went would stop the threads of the one that is open."""
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        for owned in (s, s.scope()):
            with pytest.raises(TypeError, match="lives on its event loop"):
                duplicate(owned)
    for duplicate in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="lives on its event loop"):
            duplicate(s.window(2))
    assert await s.call(divmod, 7, 2) == (3, 1)


# -- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["streams", "max_ops", "max_pending"])
def test_counts_out_of_range(name: str) -> None:
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError), ("2", TypeError)):
        with pytest.raises(error, match=name):
            asc.Scheduler("cpu", **{name: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["tpu", "cpu:x", "", []])
def test_unknown_devices(wrong: Any) -> None:
    with pytest.raises(ValueError, match="device"):
        asc.Scheduler(wrong)


def test_other_bad_arguments() -> None:
    with pytest.raises(TypeError, match="device"):
        asc.Scheduler(3)  # type: ignore[arg-type]
    for wrong in (0, -1.0):
        with pytest.raises(ValueError, match="stall_timeout"):
            asc.Scheduler("cpu", stall_timeout=wrong)
    for bytes_ in (0, -5, "none", "3 parsecs"):
        with pytest.raises(ValueError, match="max_bytes"):
            asc.Scheduler("cpu", max_bytes=bytes_)
    with pytest.raises(TypeError, match="max_bytes"):
        asc.Scheduler("cpu", max_bytes=1.5)  # type: ignore[arg-type]


# -- waiting --------------------------------------------------------------------------------------------------------


async def test_gather_keeps_the_order_and_raises_the_first_failure_at_once(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", streams=2) as s:
        x = await s.put([1])
        assert await asc.gather() == []
        assert [int(a[0]) for a in await asc.gather(x + 2, x, x + 1, x)] == [3, 1, 2, 1]
        slow, broken = s.submit_nowait(held, gate, 7), s.submit_nowait(fail)
        with pytest.raises(LookupError):
            await asc.gather(slow, broken)
        assert not slow.done()
        gate.set()
        assert await slow == 7
        with pytest.raises(TypeError, match=r"asyncio\.gather"):
            asc.gather(asyncio.sleep)  # type: ignore[arg-type]


async def test_gather_passes_through_the_loop_also_with_a_failure(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", streams=2) as s:
        slow, broken = s.submit_nowait(held, gate), await settled(s.submit_nowait(fail))
        others: list[int] = []
        asyncio.get_running_loop().call_soon(others.append, 1)
        with pytest.raises(LookupError):
            await asc.gather(slow, broken)
        assert others == [1]
        gate.set()


async def test_gather_of_two_schedulers_tells_of_the_first_failure_of_either(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu") as s, asc.Scheduler("cpu", streams=2) as other:
        begin = threading.Event()
        slow, quick = s.submit_nowait(held, gate, 1), other.submit_nowait(held, gate, 2)
        broken = other.submit_nowait(lambda: begin.wait(60) and fail())
        results = asyncio.ensure_future(asc.gather(slow, quick))
        failing = asyncio.ensure_future(asc.gather(slow, broken))
        await turns()
        assert asc.observe.Probe(s).waits == asc.observe.Probe(other).waits == 2
        begin.set()
        with pytest.raises(LookupError):
            await failing
        assert not slow.done()
        gate.set()
        assert await results == [1, 2]
        assert asc.observe.Probe(s).waits == asc.observe.Probe(other).waits == 0


async def test_await_always_lets_others_run(s: asc.Scheduler) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    x = await s.put([1])
    await x
    counting = asyncio.create_task(count())
    for step in (lambda: x, lambda: asc.gather(x), s.barrier, lambda: s.put([1]), x.item, x.numpy):
        before = turns
        await step()
        assert turns > before, step
    counting.cancel()


async def test_barrier_covers_tasks_submitted_before_it() -> None:
    early, late = threading.Event(), threading.Event()
    async with asc.Scheduler("cpu", streams=2) as s:
        first = s.submit_nowait(held, early)
        waiting = asyncio.create_task(s.barrier())
        await asyncio.sleep(0)
        second = s.submit_nowait(held, late)
        await turns()
        assert not waiting.done()
        early.set()
        await waiting
        assert first.done()
        assert not second.done()
        late.set()


async def test_barrier_raises_unseen_failures_once(s: asc.Scheduler) -> None:
    seen, unseen = s.submit_nowait(fail, "seen"), s.submit_nowait(fail, "unseen")
    dependents = [s.submit_nowait(int, unseen) for _ in range(3)]
    with pytest.raises(LookupError, match="seen"):
        await seen
    with pytest.raises(ExceptionGroup) as caught:
        await s.barrier()
    assert [str(error) for error in caught.value.exceptions] == ["unseen"]
    await s.barrier()
    del caught
    with pytest.raises(LookupError):
        await dependents[0]


async def test_statistics_count_everything(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", streams=1, max_ops=2, max_bytes="1 MiB") as s:
        x = await s.put(BLOCK)
        s.submit_nowait(held, gate, nbytes=1000)
        tasks = [s.submit_nowait(fail), s.submit_nowait(int)]
        tasks[1].cancel()
        y = x + 1
        now = s.statistics()
        assert (now.tasks_pending, now.tasks_in_flight, now.max_ops, now.max_bytes) == (1, 2, 2, 2**20)
        assert (now.bytes_retained, now.bytes_in_flight) == (BLOCK.nbytes, 1000)
        gate.set()
        await y
        with pytest.raises(LookupError):
            await tasks[0]
        await s.barrier()
        now = s.statistics()
        assert now.tasks_submitted == 5
        assert (now.tasks_completed, now.tasks_failed, now.tasks_cancelled) == (3, 1, 1)
        assert (now.tasks_pending, now.tasks_in_flight, now.bytes_in_flight) == (0, 0, 0)
        assert (now.bytes_retained, now.peak_tasks_in_flight) == (2 * BLOCK.nbytes, 2)
        assert now.peak_bytes == 2 * BLOCK.nbytes
        assert repr(s) == f"Scheduler(cpu; 0 pending, 0 in flight, {2 * BLOCK.nbytes:,} bytes)"
    assert repr(s) == "Scheduler(cpu; closed)"
    assert s.statistics().tasks_submitted == 5


# -- opening -------------------------------------------------------------------------------------------------------


async def test_opening_that_is_cancelled_ends_before_it_is_undone() -> None:
    entered, gate, steps = threading.Event(), threading.Event(), []

    class Slow(CPUDevice):
        def prepare(self) -> None:
            entered.set()
            held(gate)
            super().prepare()
            steps.append("prepared")

        def close(self) -> None:
            steps.append("closed")
            super().close()

    opening = asyncio.create_task(asc.Scheduler(Slow(streams=2)).__aenter__())
    await until(entered.is_set)
    opening.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert steps == ["prepared", "closed"]


async def test_a_device_that_cannot_open_leaves_nothing_behind() -> None:
    class Broken(CPUDevice):
        def prepare(self) -> None:
            raise OSError("no such device")

    class Late(CPUDevice):
        def open(self, completions: Any, max_bytes: int | None) -> None:
            raise OSError("no such device")

    for broken in (Broken(), Late()):
        first = CPUDevice(streams=2)
        s = asc.Scheduler([first, broken])
        with pytest.raises(OSError, match="no such device"):
            async with s:
                pass
        assert repr(s).endswith("closed)")
        assert not first.streams  # told to end


async def test_a_device_object_serves_one_scheduler_alone() -> None:
    device = CPUDevice()
    async with asc.Scheduler(device) as s:
        memory, x = device.memory, await s.put(BLOCK)
        with pytest.raises(RuntimeError, match="'cpu' was given to a scheduler before.* make another CPUDevice"):
            await asc.Scheduler(["cpu", device]).__aenter__()
        assert device.memory is memory
        assert (await (x + 1))[0, 0] == 2
    with pytest.raises(RuntimeError, match="even after that has closed"):
        await asc.Scheduler(device).__aenter__()
    assert device.memory is memory
    twice = CPUDevice()
    with pytest.raises(RuntimeError, match="make another"):
        await asc.Scheduler([twice, twice]).__aenter__()


def test_a_device_object_has_its_own_streams() -> None:
    for devices in (CPUDevice(), SimDevice(), ["cpu", CPUDevice()]):
        with pytest.raises(ValueError, match=r"streams=4 is for devices given by name: give it to the \w+Device"):
            asc.Scheduler(devices, streams=4)


async def test_of_several_devices_the_smallest_default_limit_holds() -> None:
    class Asking(CPUDevice):
        def __init__(self, name: str, most: int | None) -> None:
            super().__init__(name)
            self.most = most

        def default_bytes(self) -> int | None:
            return self.most

    for wanted in ([3000, 1000, None, 2000], [None, 1000, 5000]):
        devices = [Asking(f"cpu:{i}", most) for i, most in enumerate(wanted)]
        async with asc.Scheduler(devices) as s:
            assert s.statistics().max_bytes == 1000
    async with asc.Scheduler([Asking("cpu:0", 1000)], max_bytes=7000) as s:
        assert s.statistics().max_bytes == 7000


@pytest.mark.parametrize("turned", [False, True])
async def test_tiny_rows_run_at_once_only_where_every_device_is_the_hosts(turned: bool, gate: threading.Event) -> None:
    devices = [CPUDevice(streams=1), SimDevice(1)]
    async with asc.Scheduler(devices[::-1] if turned else devices) as s:
        s.submit_nowait(held, gate, device="cpu")
        y = (await s.put(np.ones(3), device="cpu")) + 1
        assert not y.done()
        gate.set()
        assert (await y).tolist() == [2, 2, 2]
    async with asc.Scheduler(["cpu", "cpu"]) as s:
        assert ((await s.put(np.ones(3))) + 1).done()


def gets(s: asc.Scheduler, **where: Any) -> bool:
    """Whether a scheduler gets what is issued here."""
    before = s.statistics().tasks_submitted
    asc.zeros(3, **where)
    return s.statistics().tasks_submitted == before + 1


async def test_which_scheduler() -> None:
    with pytest.raises(asc.SchedulerClosed, match="no scheduler is open"):
        asc.zeros(3)
    async with asc.Scheduler("cpu") as s:
        assert gets(s)
        async with asc.Scheduler("cpu") as inner:
            assert gets(inner)
            assert not gets(s)
            assert gets(s, scheduler=s)
        assert gets(s)


@pytest.mark.usefixtures("may_block")  # the threads wait for each other
def test_which_scheduler_is_found_while_others_open_on_other_threads() -> None:
    over, interval = threading.Event(), sys.getswitchinterval()

    async def come_and_go() -> None:
        while not over.is_set():
            async with asc.Scheduler("cpu", streams=1):
                pass

    async def look() -> None:
        s = await asc.open("cpu", streams=1)
        for _ in range(20_000):
            asc.zeros(3)
        assert s.statistics().tasks_submitted == 20_000
        await s.aclose()

    threads = [threading.Thread(target=asyncio.run, args=(come_and_go(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    sys.setswitchinterval(1e-6)
    try:
        asyncio.run(look())
    finally:
        sys.setswitchinterval(interval)
        over.set()
        for thread in threads:
            thread.join()


def test_run_returns_the_coroutines_result() -> None:
    async def main(value: int = 3) -> int:
        async with asc.Scheduler("cpu") as s:
            return int(await s.call(partial(int, value)))

    assert asc.run(main) == asc.run(main(3)) == 3


async def test_tasks_that_name_a_resource_run_one_after_the_other() -> None:
    gate, order = threading.Event(), []

    def first() -> None:
        assert gate.wait(60)
        order.append("first")

    async with asc.Scheduler("cpu", streams=2) as s:
        s.submit_nowait(first, resource="a generator")
        s.submit_nowait(lambda: order.append("second"), resource="a generator")
        await s.call(lambda: order.append("other"))  # on the other stream, where "second" would have been by now
        gate.set()
    assert order == ["other", "first", "second"]
