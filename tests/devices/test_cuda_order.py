"""Launching ahead on CUDA streams: order by events alone, events that are reused, first calls off the loop."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cuda import memory, threads
from asyncsched.devices.cuda.device import CUDADevice
from tests.fake_cupy import Fake
from tests.ledger import engine_of, lane_of
from tests.waiting import until

from .conftest import BLOCK, all_issued, assert_nothing_left_set, finished, issued, opened

pytestmark = pytest.mark.one_loop  # how the host hears of the device's work is the same on both
BLOCKING_UNTIMED = 3  # cudaEventBlockingSync | cudaEventDisableTiming


async def test_a_chain_is_issued_while_the_device_has_done_nothing(fake: Fake) -> None:
    async with opened(1, max_ops=None) as s:
        x = await s.put(BLOCK)
        before, done = await all_issued(s), finished(s)
        with fake.pause():
            y = x
            for _ in range(50):
                y = y + 1
            await until(lambda: issued(s) == before + 50)
            assert finished(s) == done
        assert (await y.numpy()).max() == 51


async def test_a_diamond_uses_two_streams_and_joins(fake: Fake) -> None:
    """Another stream's work is waited for on the device, by events."""
    async with opened(2) as s:
        x = await s.put(BLOCK)
        await ((x + 1) + (x * 5))
        await s.barrier()  # so that both lanes are empty
        before, waits = await all_issued(s), fake.statistics["waits"]
        with fake.pause():
            left, right = x + 1, x * 5
            assert lane_of(left) is not lane_of(right)
            both = left + right
            await until(lambda: issued(s) == before + 3)
            assert fake.statistics["waits"] == waits + 1
        assert (await both.numpy()).max() == 7


async def test_the_host_does_not_wait_for_a_producer_on_another_stream(fake: Fake) -> None:
    async with opened(2, max_ops=None) as s:
        x = await s.put(BLOCK)
        before = await all_issued(s)
        with fake.pause():
            for _ in range(10):
                x = (x + 1) - (x * 0.5)
            await until(lambda: issued(s) == before + 30)
        await x


async def test_a_producer_that_is_not_issued_yet_is_waited_for(fake: Fake) -> None:
    """An event that was never recorded would be no wait at all."""
    gate = threading.Event()

    def held(array: Any = None) -> Any:
        assert gate.wait(60)
        return 0 if array is None else array * 3

    async with opened(2) as s:
        x = await s.put(BLOCK)
        await (x - 1)
        first = s.submit_nowait(held, x, shape=x.shape, dtype=x.dtype)
        here = lane_of(first)
        s.submit_nowait(held)  # so that both streams have a tail
        s.submit_nowait(held)
        readers = [first - 1 for _ in range(4)]
        assert {lane_of(reader) for reader in readers} != {here}
        for _ in range(20):
            await asyncio.sleep(0)
        gate.set()
        for reader in readers:
            assert (await reader.numpy()).max() == 2


async def test_crossing_chains_on_four_streams(fake: Fake) -> None:
    """Events go back to the pool and are recorded again while others still wait for their stream's events."""
    async with opened(4, max_ops=12) as s:
        rows = [await s.put(BLOCK * i) for i in range(4)]
        expected = [BLOCK * i for i in range(4)]
        for step in range(40):
            rows = [rows[i] * 0.5 + rows[(i + 1 + step) % 4] for i in range(4)]
            expected = [expected[i] * np.float32(0.5) + expected[(i + 1 + step) % 4] for i in range(4)]
        for op, array in zip(rows, expected, strict=True):
            assert (await op.numpy()).tobytes() == array.tobytes()


async def test_few_events_serve_many_tasks_and_none_is_timed_or_spins(fake: Fake) -> None:
    async with opened(2, max_ops=8) as s:
        x = await s.put(BLOCK)
        for _ in range(500):
            x = x + 1
        await x
        slots = 2 * 4  # of staging
        assert fake.statistics["events"] <= 8 + 1 + slots
        assert fake.statistics["events"] == fake.statistics[f"events with flags {BLOCKING_UNTIMED}"]


async def test_the_loop_is_woken_once_for_a_burst(fake: Fake) -> None:
    """Each completion is awaited by somebody, and would wake the loop if it were not known that it wakes already."""
    async with opened(1, max_ops=None) as s:
        x = await s.put(BLOCK)
        before, completions, wakes = await all_issued(s), engine_of(s).completions, []
        with fake.pause():
            wake = completions.wake
            completions.wake = lambda: (wakes.append(1), wake())[1]
            tensors = [x + i for i in range(60)]
            await until(lambda: issued(s) == before + 60)
            waiting = [asyncio.create_task(_await(tensor)) for tensor in tensors]
            await asyncio.sleep(0)
            assert wakes == []
        while len(completions.items) < 60:  # the loop is busy meanwhile
            os.sched_yield()
        await asyncio.gather(*waiting)
        assert len(wakes) <= 2  # of eight bursts; who told of the last may wake it only when all is taken in


async def _await(tensor: asc.Tensor) -> None:
    await tensor


def watched(events: list[int], event: int) -> None:
    """Note what the watcher does. The janitor waits for events, too."""
    if threading.current_thread().name.endswith("watcher"):
        events.append(event)


@pytest.mark.parametrize("spin", [0.0, 600.0])
async def test_a_spin_before_sleeping(fake: Fake, monkeypatch: pytest.MonkeyPatch, spin: float) -> None:
    import cupy

    runtime = cupy.cuda.runtime
    sleeps, synchronize = [], runtime.eventSynchronize
    questions, query = [], runtime.eventQuery
    async with opened(1, spin=spin) as s:
        x = await s.put(BLOCK)
        await s.barrier()
        monkeypatch.setattr(runtime, "eventSynchronize", lambda e: (watched(sleeps, e), synchronize(e))[1])
        monkeypatch.setattr(runtime, "eventQuery", lambda e: (watched(questions, e), query(e))[1])
        with fake.pause():
            y = x + 1
            await until(lambda: sleeps or spin)
        await y
        assert bool(sleeps) is not bool(spin)
        assert bool(questions) is bool(spin)  # each holds the GIL


async def test_a_new_kernel_is_compiled_by_one_thread(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first compiles, the second stream has the time to begin, if nothing stops it."""
    yields, compiling = os.sched_yield, threading.Lock()

    def linger() -> None:
        if compiling.acquire(blocking=False):
            for _ in range(3000):
                yields()

    async with opened(2) as s:
        x = await s.put(BLOCK)
        await s.barrier()
        monkeypatch.setattr(os, "sched_yield", linger)
        left, right = asc.exp(x), asc.exp(x)
        assert lane_of(left) is not lane_of(right)
        await asc.gather(left, right)
        monkeypatch.undo()
    assert sum(key[0] == "exp" for key in fake.compiled) == 1


async def test_a_new_row_that_waits_for_its_stream_holds_up_no_other(fake: Fake) -> None:
    """What has to know its result's shape waits for all before it; another stream compiles meanwhile."""
    async with opened(2, max_ops=None) as s:
        x = await s.put(BLOCK)
        first, second = s.devices[0].streams
        await s.barrier()
        y = x * 2
        mask = y > 0
        await s.barrier()
        with fake.hold(first.cuda), fake.hold(second.cuda):
            before = fake.blocking.total()
            found = y[mask]
            lane = lane_of(found)
            assert lane is not None
            await until(lambda: fake.blocking.total() > before)
            other = asc.exp(x)
            assert lane_of(other) is not lane
            stream = lane_of(other).stream
            await until(lambda: stream.issued.count == stream.launched)
            assert not found.done()
        assert (await found).shape == (BLOCK.size,)
        await other


async def test_each_form_of_the_operands_takes_a_turn_once(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first run may compile. Strides count too, which a plan does not have."""
    turns = list[Any]()

    def first_run(kernel: Any) -> Any:
        turns.append(kernel)
        return threads.first_run(kernel)

    monkeypatch.setattr(memory, "first_run", first_run)
    async with opened(1) as s:
        x, small = await s.put(BLOCK), await s.put(BLOCK[:5])
        turned, line = small.mT, small[0]
        await s.barrier()
        before = fake.statistics["compiles"]
        for operand in (x, small, turned, line):
            turns.clear()
            for _ in range(3):
                await (operand + operand)
            assert len(turns) == 1
            assert fake.statistics["compiles"] == before + 1  # one kernel serves every shape


async def test_nothing_stays_current_on_the_loops_thread(fake: Fake) -> None:
    """The current stream, device and allocator are of the thread: they would leak into every other coroutine."""
    async with opened(2) as s:
        assert_nothing_left_set()
        x = await s.put(BLOCK)
        assert_nothing_left_set()
        for _ in range(3):
            y = x.mT @ x + 1
            assert_nothing_left_set()
            await y.numpy()
            assert_nothing_left_set()
        with fake.pause():
            y = y + 1
            assert_nothing_left_set()
        t = await s.submit(np.negative, y)
        assert_nothing_left_set()
        await s.capture(lambda a: a + 1, x)
        assert_nothing_left_set()
        assert (await t).shape == y.shape


@pytest.mark.parametrize("call", ["fft", "random"])
async def test_plans_and_generators_are_used_on_one_stream(fake: Fake, call: str) -> None:
    """Their state is not stream-safe: tasks that name the resource share a stream."""
    import cupy

    bodies = {"fft": lambda a: cupy.fft.fft(a), "random": lambda a: a + cupy.random.rand(*a.shape)}
    async with opened(3) as s:
        x = await s.put(BLOCK)
        results = [await s.submit(bodies[call], x, resource=call) for _ in range(9)]
        for result in results:
            await result


@pytest.mark.parametrize("cancel", [False, True], ids=["awaited", "cancelled"])
async def test_nothing_is_done_before_what_it_reads(
    fake: Fake, gate: threading.Event, monkeypatch: pytest.MonkeyPatch, cancel: bool
) -> None:
    """However late the thread is that sees the end of that: else it could still be cancelled."""
    async with opened(2, max_ops=None) as s:
        x = await s.put(BLOCK)
        await s.barrier()
        late: Any = None
        for stream in s.devices[0].streams:  # before it is known which: its thread may see the first event at once

            def sees(event: Any, stream: Any = stream, sees: Any = stream._sleep_until) -> None:
                sees(event)
                assert stream is not late or gate.wait(60)

            monkeypatch.setattr(stream, "_sleep_until", sees)
        with fake.pause():
            y = x + 1
            readers = [y * i for i in range(8)]
            lanes = [lane_of(reader).stream for reader in readers]  # type: ignore[union-attr]
            late = lane_of(y).stream  # type: ignore[union-attr]
        apart = [reader for reader, lane in zip(readers, lanes, strict=True) if lane is not late]
        assert apart
        await until(lambda apart=apart: late.finished.waiters or apart[0].done())  # type: ignore[misc]
        assert not any(reader.done() for reader in apart)
        if cancel:
            assert y.cancel()
        gate.set()
        for reader in readers:
            if cancel:
                with pytest.raises(asc.TaskCancelled):
                    await reader
            else:
                await reader
        del y, readers, apart, reader


async def test_operations_shorter_than_a_hop_stay_where_others_are(fake: Fake) -> None:
    """On another stream each would need an event, and a thread that waits."""
    device = CUDADevice(0, 2)
    device.hop = 60.0  # however long this takes here
    async with asc.Scheduler(device) as s:
        x = await s.put(BLOCK)
        await s.barrier()
        before, waits = await all_issued(s), fake.statistics["waits"]
        with fake.pause():
            y = x + 1
            assert len({lane_of(t) for t in [y, x * 3, *[y * i for i in range(4)]]}) == 1
            await until(lambda: issued(s) == before + 6)
        assert fake.statistics["waits"] == waits
        await s.barrier()


async def test_functions_go_to_stream_by_stream(fake: Fake) -> None:
    gate = threading.Event()
    async with asc.Scheduler("cuda") as s:
        functions = [s.submit_nowait(gate.wait, 60) for _ in range(2)]
        assert lane_of(functions[0]) is not lane_of(functions[1])
        gate.set()
        await s.barrier()
