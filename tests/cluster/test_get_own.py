"""Dask's graphs on a scheduler of one's own: from a thread, within its scopes and its limits."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from types import SimpleNamespace

import dask
import dask.array as da
import pytest
from dask.utils_test import inc

import asyncsched as asc
from asyncsched import cluster
from asyncsched.cluster import compute
from asyncsched.devices.sim import SimDevice
from tests.ledger import engine_of
from tests.waiting import fail, held, until

GRAPH = {"a": 1, "b": (inc, "a")}


async def test_on_a_loops_thread_it_is_refused(s):
    with pytest.raises(asc.ImplicitBarrierError, match=r"await asyncio.to_thread\(x.compute\)"):
        da.ones(3).compute(scheduler=cluster.get)
    with pytest.raises(asc.ImplicitBarrierError):
        cluster.get(GRAPH, "b", on=s)


async def test_the_ambient_one_computes(s):
    with dask.config.set(scheduler=cluster.get):
        assert await asyncio.to_thread(da.ones((8, 8), chunks=4).sum().compute) == 64
    assert s.statistics().tasks_completed >= 4
    assert s.statistics().bytes_retained == 0


async def test_one_that_is_given_computes():
    loop, s = asyncio.get_running_loop(), asc.Scheduler("cpu", streams=2)
    async with s:
        lazily = partial(cluster.get, GRAPH, "b", on=s)
        assert await loop.run_in_executor(None, lazily) == 2  # which hands on no context
        assert s.statistics().tasks_completed == 1
    with pytest.raises(asc.SchedulerClosed):
        await asyncio.to_thread(lazily)


async def test_leaving_its_scope_cancels_it(s):
    begun, gate, ran = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        held(gate)

    graph = {"first": (first,)} | {f"x{i}": (ran.append, "first") for i in range(300)}
    with pytest.raises(LookupError):
        async with s.scope(name="request"):
            computing = asyncio.create_task(asyncio.to_thread(cluster.get, graph, list(graph)))
            await until(begun.is_set)
            asyncio.get_running_loop().call_soon(gate.set)
            fail()
    with pytest.raises(asc.TaskCancelled, match="scope 'request'"):
        await computing
    assert not ran
    assert s.statistics().tasks_pending == s.statistics().tasks_in_flight == 0


async def test_leaving_its_scope_cancels_it_also_while_it_has_no_task(s):
    ran = list[int]()
    with pytest.raises(LookupError):
        async with s.scope(name="request"):
            graph = {i: (ran.append, i + 0.5) for i in range(3)}
            computing = asyncio.create_task(asyncio.to_thread(cluster.get, graph, list(graph)))
            await until(lambda: any(scope.name == "dask" for scope in engine_of(s).root.tree()))
            fail()
    with pytest.raises(asc.TaskCancelled, match="scope 'request', in which it was called, was left"):
        await computing
    assert not ran


async def test_closing_its_scheduler_refuses_what_was_not_submitted_yet():
    begun, gate, ran = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        held(gate)

    graph = {"first": (first,)} | {f"x{i}": (ran.append, "first") for i in range(300)}
    async with asc.Scheduler("cpu", streams=1, max_ops=1) as s:
        computing = asyncio.create_task(asyncio.to_thread(cluster.get, graph, list(graph), on=s))
        await until(begun.is_set)
        asyncio.get_running_loop().call_soon(gate.set)
    with pytest.raises(asc.SchedulerClosed):
        await computing
    assert len(ran) < 300


async def test_a_reserve_is_its_limit(s):
    async with s.scope(reserve="1 MiB"):
        x = da.ones((1024, 1024), chunks=(64, 256))  # 8 MiB, in blocks of 128 KiB
        assert await asyncio.to_thread((x + 1).sum().compute, scheduler=cluster.get) == 2 * 1024**2
    assert s.statistics().peak_bytes == 2**20


def test_it_needs_the_cpu():
    card, host = SimpleNamespace(name="cuda"), SimDevice()
    assert compute._device(SimpleNamespace(devices=[card, host])) is host
    with pytest.raises(ValueError, match=r"this scheduler has cuda: list it, as Scheduler\(\[..., 'cpu'\]\)"):
        compute._device(SimpleNamespace(devices=[card]))
