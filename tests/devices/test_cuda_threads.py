"""Threads of CUDA devices are kept for the next scheduler, with the cuBLAS handles that CuPy makes for each."""

from __future__ import annotations

import threading

import pytest

import asyncsched as asc
from asyncsched.devices import contract
from asyncsched.devices.cuda import threads
from tests.fake_cupy import Fake
from tests.waiting import until

from .conftest import BLOCK, ended, opened


async def used(s: asc.Scheduler) -> set[int]:
    """The threads that ran something on each of two streams."""
    meet = threading.Barrier(2)

    def body() -> int:
        meet.wait(60)
        return threading.get_ident()

    found = await asc.gather(await s.submit(body), await s.submit(body))
    x = await s.put(BLOCK)
    await (x + 1).numpy()
    return set(found)


async def test_the_next_scheduler_has_the_same(fake: Fake) -> None:
    async with opened(2) as s:
        first = await used(s)
    await ended()
    there = set(threading.enumerate())
    async with opened(2) as s:
        assert await used(s) == first
        assert set(threading.enumerate()) - there == set()
    await ended()


async def test_one_that_is_open_has_its_own(fake: Fake) -> None:
    async with opened(2) as s, opened(2) as other:
        assert not await used(s) & await used(other)
    await ended()


async def test_one_that_still_runs_a_body_is_not_shared(fake: Fake) -> None:
    gate, at = threading.Event(), []

    def body() -> None:
        at.append(threading.get_ident())
        gate.wait(60)

    s = asc.Scheduler("cuda", streams=1)
    await s.__aenter__()
    s.submit_nowait(body)
    await until(lambda: at)
    with pytest.raises(TimeoutError):
        await s.aclose(timeout=0)
    async with opened(2) as other:
        assert not set(at) & await used(other)
        gate.set()
    await ended()


async def test_idle_ones_hold_nothing(fake: Fake) -> None:
    async with opened(1) as s:
        await (await s.put(BLOCK) + 1).numpy()
    await ended()
    kept_ones = [kept for idle in threads._idle.values() for kept in idle]
    assert kept_ones
    for kept in kept_ones:
        assert kept.name.startswith("idle")
        assert kept._work.empty()


def test_the_interpreters_end_waits_for_threads_that_may_call_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, ended = threading.Event(), threading.Event(), list[bool]()

    def body() -> None:
        begun.set()
        ended.append(go.wait(60))

    threads.run(body, "busy")
    begun.wait(60)
    monkeypatch.setattr(contract, "sleep", lambda _: go.set())
    threads.leave()
    assert ended == [True]


def test_the_interpreters_end_does_not_wait_for_threads_that_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    threads.run(lambda: threads.resting(lambda: (begun.set(), go.wait(60))), "resting")
    begun.wait(60)
    monkeypatch.setattr(contract, "sleep", lambda _: pytest.fail("it waits"))
    threads.leave()
    go.set()
