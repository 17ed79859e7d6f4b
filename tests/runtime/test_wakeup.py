"""How the loop is woken: by a descriptor of the scheduler's own, and what becomes of that."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

import asyncsched as asc
from asyncsched.runtime.loops import Wakeup
from tests.ledger import engine_of, runtime_of
from tests.waiting import held, no_collector, turns

needs_counters = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="no event counters here")


def _counters() -> int:
    """The event counters that this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += "eventfd" in os.readlink(link)
        except FileNotFoundError:  # the one that is being listed
            continue
    return found


def _counters_at_rest() -> int:
    """Their number, once the streams of the test before have ended."""
    for thread in threading.enumerate():
        if thread.name.startswith("asyncsched cpu "):
            thread.join(60)
    return _counters()


@pytest.fixture(params=[asyncio, uvloop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    loop = request.param.new_event_loop()
    yield loop
    loop.close()


def _wait_for_threads(others: set[threading.Thread]) -> None:
    """Wait for all but those: a stream's thread holds what it wakes the loop by, until it ends at the latest."""
    for thread in set(threading.enumerate()) - others:
        thread.join(60)


async def _opened() -> asc.Scheduler:
    s = asc.Scheduler("cpu")
    await s.__aenter__()
    assert await s.call(int) == 0
    return s


@needs_counters
def test_a_scheduler_has_a_counter_while_it_is_open(loop: asyncio.AbstractEventLoop) -> None:
    before, others = _counters_at_rest(), set(threading.enumerate())
    with no_collector():
        for _ in range(3):
            s = loop.run_until_complete(_opened())
            assert _counters() == before + 1
            loop.run_until_complete(s.aclose())
            _wait_for_threads(others)
            assert _counters() == before


@needs_counters
@pytest.mark.parametrize("closed", [False, True], ids=["its loop goes on", "its loop is closed"])
@pytest.mark.filterwarnings("ignore:.*never closed:ResourceWarning")
def test_an_abandoned_scheduler_leaves_no_counter(loop: asyncio.AbstractEventLoop, closed: bool) -> None:
    before, others = _counters_at_rest(), set(threading.enumerate())
    s = loop.run_until_complete(_opened())
    assert _counters() == before + 1
    if closed:
        loop.close()
        gc.collect()
        before = _counters() - 1  # less those of the loop
    del s
    gc.collect()
    _wait_for_threads(others)
    if not closed:
        loop.run_until_complete(turns())
    assert _counters() == before


@needs_counters
async def test_a_wake_up_on_its_way_when_the_scheduler_closes_is_not_lost(gate: threading.Event) -> None:
    s = asc.Scheduler("cpu")
    await s.__aenter__()
    task = s.submit_nowait(held, gate, 5)
    waiting = asyncio.ensure_future(task)
    await turns()
    completions = engine_of(s).completions
    completions.notify()  # by the counter, which the loop reads in its next turn
    with pytest.raises(TimeoutError):
        await s.aclose(timeout=0)
    runtime_of(s).close()
    await turns()
    assert not completions.awake
    gate.set()
    with pytest.raises(asc.TaskCancelled):
        await waiting
    await turns()


@pytest.mark.parametrize("missing", ["counters", "descriptors", "files"])
async def test_without_a_counter_the_loop_is_woken_in_its_own_way(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "counters":
        monkeypatch.delattr(os, "eventfd", raising=False)
    elif missing == "descriptors":
        monkeypatch.setattr(os, "eventfd", _none_left, raising=False)
    else:
        monkeypatch.setattr("asyncsched.runtime.runtime.Wakeup", lambda loop, target: Wakeup(_NoFiles(), target))
    async with asc.Scheduler("cpu") as s:
        assert not isinstance(engine_of(s).completions.wake, Wakeup)
        assert await s.call(int) == 0
        assert await asc.gather(*[s.submit_nowait(int, i) for i in range(20)]) == list(range(20))


def _none_left(*_: Any) -> int:
    raise OSError(24, "Too many open files")


class _NoFiles(asyncio.AbstractEventLoop):
    """As the proactor loop of Windows: `add_reader` raises NotImplementedError."""


@needs_counters
@pytest.mark.one_loop
async def test_a_thread_that_still_wakes_a_closed_scheduler_writes_to_no_other_file() -> None:
    async with asc.Scheduler("cpu") as s:
        wake = engine_of(s).completions.wake
        assert isinstance(wake, Wakeup)
        its = wake._fd
    read, write = os.pipe()
    try:
        assert its not in (read, write)  # as long as somebody holds it
        wake()
    finally:
        os.close(read)
        os.close(write)


@needs_counters
@pytest.mark.one_loop
async def test_the_child_of_a_fork_does_not_wake_its_parent(s: asc.Scheduler) -> None:
    wake = engine_of(s).completions.wake
    assert isinstance(wake, Wakeup)
    wake.forget()  # as after a fork
    wake()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(wake._fd)
    wake._loop = asyncio.get_running_loop()
    assert await s.call(int) == 0
