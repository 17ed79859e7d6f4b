"""Who will be ended by a timer, and holds what others wait for, is waited for: nobody is told of a deadlock then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import asyncsched as asc
from asyncsched.runtime import deadlock
from tests.waiting import until

from .holding import BLOCK, NB, wants_a_third

SOON = 0.3  # seconds

Put = Callable[[], Awaitable[Any]]


async def timeout(s: asc.Scheduler, seconds: float, put: Put) -> None:
    async with asyncio.timeout(seconds):
        await put()


async def wait_for(s: asc.Scheduler, seconds: float, put: Put) -> None:
    await asyncio.wait_for(put(), seconds)


async def fail_after(s: asc.Scheduler, seconds: float, put: Put) -> None:
    with anyio.fail_after(seconds):
        await put()


async def deadline(s: asc.Scheduler, seconds: float, put: Put) -> None:
    async with s.scope(deadline=seconds):
        await put()


async def task_group(s: asc.Scheduler, seconds: float, put: Put) -> None:
    async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
        group.create_task(put())  # type: ignore[arg-type]


async def anyio_group(s: asc.Scheduler, seconds: float, put: Put) -> None:
    with anyio.fail_after(seconds):
        async with anyio.create_task_group() as group:
            group.start_soon(put)


async def gathered(s: asc.Scheduler, seconds: float, put: Put) -> None:
    async with asyncio.timeout(seconds):
        await asyncio.gather(put())


Form = Callable[[asc.Scheduler, float, Put], Awaitable[None]]
FORMS: list[Form] = [timeout, wait_for, fail_after, deadline, task_group, anyio_group, gathered]


async def greedy(s: asc.Scheduler, form: Form, seconds: float, *, around_all: bool) -> str:
    """Hold two blocks, and want one more. Returns how it ended."""

    kept = [await s.put(BLOCK), await s.put(BLOCK)]
    await until(lambda: s.statistics().bytes_retained == 4 * NB)  # by the two of them: no timer runs before

    async def work() -> None:
        mine = kept.copy()
        kept.clear()
        await s.put(BLOCK)
        mine.clear()

    try:
        await form(s, seconds, work if around_all else lambda: s.put(BLOCK))
    except (TimeoutError, asc.DeadlineExceeded):
        return "late"
    finally:
        kept.clear()
    return "done"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
async def test_the_first_to_time_out_lets_the_other_go_on(looks: list[deadlock.Finding], form: Form) -> None:
    async def two(around_all: bool) -> list[str]:
        async with asc.Scheduler("cpu", max_bytes=4 * NB) as s:
            tasks = [asyncio.create_task(greedy(s, form, seconds, around_all=around_all)) for seconds in (SOON, 60)]
            ends = await asyncio.gather(*tasks)
            assert s.statistics().tasks_failed == 0
            return ends

    assert await asyncio.gather(two(False), two(True)) == [["late", "done"]] * 2
    await until(lambda: bool(looks))  # a search in another thread may end after the timers


@pytest.mark.usefixtures("looks")
async def test_a_timer_around_everybody_is_waited_for() -> None:
    async with asc.Scheduler("cpu", max_bytes=4 * NB) as s:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SOON):
                await asyncio.gather(wants_a_third(s), wants_a_third(s))
        assert s.statistics().tasks_failed == 0
