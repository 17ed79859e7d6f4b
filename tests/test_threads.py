"""No thread can be started: one clear error at each place that needs one, and nothing is half open."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import asyncsched as asc
import asyncsched.flow.pipeline  # imported where no loop runs, since that reads files
from asyncsched.background import Background
from asyncsched.devices.host import blas
from tests.waiting import until

REFUSED = "no thread can be started, and asyncsched needs one"


@contextmanager
def threads_left(count: int) -> Iterator[None]:
    """So many threads can be started, and no more."""
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        nonlocal count
        if count <= 0:
            raise RuntimeError("can't start new thread")
        count -= 1
        begin(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        yield


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("asyncsched")}


@pytest.mark.parametrize("left", range(5))
async def test_a_scheduler_that_gets_too_few_has_none_in_the_end(left: int) -> None:
    before = ours()
    with threads_left(left), pytest.raises(RuntimeError, match=REFUSED) as raised:
        async with asc.Scheduler("cpu", streams=4):
            pytest.fail("it has no thread")
    assert "start new thread" in str(raised.value.__cause__)
    await until(lambda: ours() <= before)
    assert not blas.devices
    async with asc.Scheduler("cpu", streams=4) as s:
        assert await s.call(pow, 2, 10) == 1024


async def map_in_threads(s: asc.Scheduler, path: Path) -> None:
    async with s.pipeline([1, 2]).map(abs, workers=2).open() as items:
        async for _ in items:
            pass


async def read_a_source(s: asc.Scheduler, path: Path) -> None:
    async with s.pipeline(lambda epoch: iter([1])).open() as items:
        async for _ in items:
            pass


async def save(s: asc.Scheduler, path: Path) -> None:
    await asc.save(path / "state", {"a": np.ones(3)})


PLACES: list[Callable[[asc.Scheduler, Path], Awaitable[None]]] = [map_in_threads, read_a_source, save]


@pytest.mark.parametrize("place", PLACES)
async def test_each_place_says_so(
    s: asc.Scheduler, tmp_path: Path, place: Callable[[asc.Scheduler, Path], Awaitable[None]], may_block: None
) -> None:
    before = ours()
    with threads_left(0), pytest.raises(RuntimeError, match=REFUSED):
        await place(s, tmp_path)
    await until(lambda: ours() <= before)
    assert not os.listdir(tmp_path)
    await place(s, tmp_path)


async def test_a_trace_that_cannot_begin(
    s: asc.Scheduler, tmp_path: Path, caplog: pytest.LogCaptureFixture, may_block: None
) -> None:
    with threads_left(0), pytest.raises(RuntimeError, match="the trace could not begin"):
        async with asc.Trace(tmp_path / "trace.json"):
            pytest.fail("it has not begun")
    assert REFUSED in caplog.text
    async with asc.Trace(tmp_path / "trace.json"):
        await s.call(int)


async def test_a_deadlock_is_found_all_the_same() -> None:
    """The search has a thread of its own, while the heap is large."""
    async with asc.Scheduler("cpu", max_bytes=1000) as small:
        kept = await small.put(np.ones(100))
        with threads_left(0), pytest.raises(asc.MemoryDeadlockError):
            await small.put(np.ones(100))
        del kept


async def test_a_loop_guard_that_cannot_begin(s: asc.Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    with threads_left(0):
        s.add_instrument(asc.observe.LoopGuard())
    assert REFUSED in caplog.text
    assert await s.call(pow, 2, 10) == 1024


def test_the_kept_scheduler_of_arrays() -> None:
    options = {"device": "cpu", "streams": 2}
    for left in range(3):
        with threads_left(left), pytest.raises(RuntimeError, match=REFUSED):
            Background("test", options)
    Background("test", options).end()
