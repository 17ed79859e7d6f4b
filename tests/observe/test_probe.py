"""A probe reads what no event tells, in the middle of an event too; the package's instruments use nothing else."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.sim import SimDevice

from ..waiting import held, until

PRIVATE = re.compile(r"\b(scheduler\._|\w+\._runtime\b|import .*\b(Runtime|innermost|current_scope)\b)")


def test_instruments_use_the_public_interface_alone() -> None:
    room = Path(asc.observe.__file__).parent
    others = {
        "probe.py",
        "blocked.py",
    }  # the interface; explanations on a signal, which read a blocked loop from outside
    private = {path.name: found.group() for path in room.glob("*.py") if (found := PRIVATE.search(path.read_text()))}
    assert private.keys() == others
    assert not PRIVATE.search(inspect.getsource(asc.observe.LoopGuard))


@pytest.mark.parametrize("seed", range(3))
async def test_counts_are_those_of_the_statistics_also_in_an_event(seed: int) -> None:
    class Counts(asc.observe.Instrument):
        def attached(self, scheduler: Any) -> None:
            self.probe = asc.observe.Probe(scheduler)
            self.full = self.backlog = self.loads = 0

        def task_launched(self, task: Any) -> None:
            self.full += self.probe.full
            self.backlog = max(self.backlog, self.probe.pending)
            assert 0 < self.probe.in_flight <= 2
            assert self.probe.used_bytes >= task.cost
            self.loads = max(self.loads, sum(lane.load for lane in self.probe.lanes))

    counts = Counts()
    async with asc.Scheduler(SimDevice(seed), max_ops=2, max_bytes="1 MiB", instruments=[counts]) as s:
        probe, x = counts.probe, await s.put(np.ones(100))
        for i in range(20):
            y = x * i
        found = s.statistics()
        assert (probe.pending, probe.in_flight) == (found.tasks_pending, found.tasks_in_flight)
        assert probe.used_bytes == found.bytes_in_flight + found.bytes_retained
        async with s.scope(reserve="4 KiB"):
            assert probe.reserved_bytes == 4096
        await y
        limits = probe.limits
        assert (limits.max_ops, limits.max_bytes, limits.max_pending) == (2, 1 << 20, 65_536)
    assert counts.full
    assert counts.backlog > 10
    assert counts.loads == 2


async def test_scopes_and_their_priority() -> None:
    async with asc.Scheduler("cpu") as s, asc.Scheduler("cpu") as other:
        probe = asc.observe.Probe(s)
        context = contextvars.copy_context()
        assert probe.current is probe.root
        async with s.scope(name="outer", priority=2), s.scope(name="inner"), other.scope(name="elsewhere"):
            inner = probe.current
            assert (inner.name, inner.parent.name if inner.parent else "") == ("inner", "outer")
            assert asc.observe.priority_of(inner) == 2
            assert context.run(lambda: probe.current) is probe.root
            left = contextvars.copy_context()
        assert asc.observe.priority_of(probe.root) == 0
        left.run(lambda: probe.current)  # of a closed scope, as a caller of a batch may be: nothing raises
        assert {lane.stream for lane in probe.lanes} == {*s.devices[0].streams, s.devices[0].copier}


async def test_who_waits(s: asc.Scheduler, gate: threading.Event) -> None:
    probe = asc.observe.Probe(s)
    task = s.submit_nowait(held, gate, name="long")

    async def waits() -> None:
        await task

    waiter = asyncio.create_task(waits())
    await until(lambda: probe.waits == 1)
    ((found, tasks),) = probe.waiting()
    assert found is waiter
    assert [one.name for one in tasks] == ["long"]
    gate.set()
    await waiter
    assert probe.waits == 0
