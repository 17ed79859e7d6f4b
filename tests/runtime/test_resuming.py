"""Who waited goes on after a wake-up, whatever the others who waited do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

import asyncsched as asc
from tests.ledger import engine_of, runtime_of
from tests.waiting import held, turns, until


async def _answered(
    s: asc.Scheduler, gate: threading.Event, *waiting: Callable[[Any], Coroutine[Any, Any, None]]
) -> list[asyncio.Task[None]]:
    """A held task for each of these, which are given its handle; the tasks end, and the loop is not woken for that."""
    tasks = [s.submit_nowait(held, gate, place) for place in range(len(waiting))]
    started = [asyncio.create_task(wait(task)) for wait, task in zip(waiting, tasks, strict=True)]
    await turns()
    completions = engine_of(s).completions
    completions.awake = True  # as if it were already
    gate.set()
    await until(lambda: len(completions.items) == len(tasks))
    return started


def _wake(s: asc.Scheduler) -> None:
    asyncio.get_running_loop().call_soon(runtime_of(s).on_wake)


async def test_a_waiter_cancelled_by_another_that_resumed_first_is_cancelled(gate: threading.Event) -> None:
    started: list[asyncio.Task[None]] = []

    async def first(task: Any) -> None:
        await task
        started[1].cancel()

    async def second(task: Any) -> None:
        await task

    async with asc.Scheduler("cpu", streams=1) as s:  # so that the first ends first
        started += await _answered(s, gate, first, second)
        _wake(s)
        await asyncio.wait(started)
    assert started[1].cancelled()
    assert started[0].exception() is None


async def test_one_that_goes_on_may_wait_again(s: asc.Scheduler, gate: threading.Event) -> None:
    found: list[int] = []

    async def wait(task: Any) -> None:
        for _ in range(3):
            found.append(await s.call(int, await task))
        await s.barrier()
        found.append(-1)

    await _answered(s, gate, wait, wait)
    _wake(s)
    await until(lambda: found.count(-1) == 2)
    assert sorted(found) == [-1, -1, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("kind", [asyncio, uvloop], ids=["asyncio", "uvloop"])
def test_an_exception_that_ends_the_loop_holds_up_no_other_waiter(kind: Any) -> None:
    loop = kind.new_event_loop()
    found: list[int] = []

    async def interrupted(task: Any) -> None:
        await task
        raise KeyboardInterrupt

    async def second(task: Any) -> None:
        found.append(await task)

    async def main() -> tuple[asc.Scheduler, asyncio.Task[None]]:
        s = asc.Scheduler("cpu", streams=1)
        await s.__aenter__()
        return s, (await _answered(s, threading.Event(), interrupted, second))[0]

    s, ended = loop.run_until_complete(main())
    loop.call_soon(runtime_of(s).on_wake)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(turns())
    loop.run_until_complete(turns())
    assert found == [1]
    assert type(ended.exception()) is KeyboardInterrupt
    loop.run_until_complete(s.aclose())
    loop.close()
