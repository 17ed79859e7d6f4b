"""What a summary adds up and tells is what happened; it keeps no tensor."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.sim import SimDevice
from asyncsched.observe.summary import MOST_NAMES, OTHERS

from ..waiting import fail, held, until


async def test_operations_and_streams_add_up() -> None:
    summary = asc.observe.Summary()
    async with asc.Scheduler("cpu", streams=2, instruments=[summary]) as s:
        x = await s.put(np.ones((200, 200)))
        y = x @ x
        for _ in range(3):
            y = y @ x
        await y
        small = await s.put(np.ones(3))
        _ = small + 1  # on the loop's thread
        found = summary.read()
    counts = {operation.name: operation.count for operation in found.operations}
    assert counts == {"put": 2, "matmul": 4, "add": 1}
    seconds = [operation.seconds for operation in found.operations]
    assert seconds == sorted(seconds, reverse=True)
    assert [stream.name for stream in found.streams] == ["cpu stream 0", "cpu stream 1", "cpu copies"]
    inline = next(operation.seconds for operation in found.operations if operation.name == "add")
    assert sum(stream.busy_seconds for stream in found.streams) == pytest.approx(sum(seconds) - inline)
    assert all(stream.running is None for stream in found.streams)


async def test_what_runs_and_who_waits_for_what(gate: threading.Event) -> None:
    summary = asc.observe.Summary()
    async with asc.Scheduler("cpu", streams=1, instruments=[summary]) as s:
        began = threading.Event()
        running = s.submit_nowait(lambda: began.set() or held(gate), name="long")
        behind = s.submit_nowait(held, gate, name="behind")

        async def waits_here() -> None:
            await behind

        waiting = [asyncio.create_task(waits_here()) for _ in range(3)]
        both = asyncio.create_task(asyncio.wait_for(asc.gather(running, behind), None))
        await until(lambda: began.is_set() and summary.read().waiting_count == 4)
        found = summary.read()
        stream = found.streams[0]
        assert (stream.running, stream.tasks) == ("long", 2)
        assert stream.line.endswith("in test_what_runs_and_who_waits_for_what")
        assert 0 < stream.running_seconds <= stream.busy_seconds <= found.seconds
        first, second = found.waiting
        assert (first.count, first.name, first.more) == (3, "behind", 0)
        assert first.place.endswith("waits_here")
        assert (second.count, second.name, second.state, second.more) == (1, "long", "launched", 1)
        gate.set()
        await asyncio.gather(both, *waiting)
        assert summary.read().waiting == ()


async def test_scopes_windows_and_failures(s: asc.Scheduler) -> None:
    summary = asc.observe.Summary()
    s.add_instrument(summary)
    broken = s.submit_nowait(fail, name="bad")
    after = s.submit_nowait(repr, broken, name="after")
    with pytest.raises(LookupError):
        await after
    async with s.scope(name="request", reserve="1 MiB"):
        x = await s.put(np.ones(1000))
        async with s.window(2):
            found = summary.read()
        del x
    (scope,) = found.scopes
    assert (scope.name, scope.reserve, scope.used, found.scope_count) == ("request", 2**20, 8000, 1)
    async with s.window(2):
        assert summary.read().iterations == 1
    (failure,) = found.failures  # the cause alone
    assert failure.startswith("bad: LookupError, ")
    assert failure.endswith("in test_scopes_windows_and_failures")


async def test_names_are_bounded() -> None:
    summary = asc.observe.Summary()
    async with asc.Scheduler("cpu", streams=2, instruments=[summary]) as s:
        for i in range(3 * MOST_NAMES):
            s.submit_nowait(int, name=f"job {i}")
        await s.barrier()
        found = {operation.name: operation.count for operation in summary.operations()}
    assert sum(found.values()) == 3 * MOST_NAMES
    assert len(found) == MOST_NAMES + 1
    assert found[OTHERS] >= MOST_NAMES


async def test_it_serves_one_scheduler_and_can_be_read_afterwards() -> None:
    summary = asc.observe.Summary()
    with pytest.raises(RuntimeError, match="no scheduler yet"):
        summary.read()
    async with asc.Scheduler(SimDevice(0), instruments=[summary]) as s:
        await s.call(max, 1, 2)
        with pytest.raises(RuntimeError, match="make another"):
            asc.Scheduler("cpu", instruments=[summary])
    assert summary.read().statistics.tasks_completed == 1


async def test_it_keeps_no_tensor(s: asc.Scheduler) -> None:
    summary = asc.observe.Summary()
    s.add_instrument(summary)
    x = await s.put(np.ones(1000))
    y = await s.submit(np.add, x, 1)
    await y
    found = summary.read()
    del x, y
    assert s.statistics().bytes_retained == 0
    assert found.statistics.bytes_retained == 16000
