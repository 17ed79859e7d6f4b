"""Who is being ended lets go of what it holds, though the loop has not come to it: nobody is told of a deadlock then.

Here the test says when a timer fires, and looks at every turn of the loop from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import asyncsched as asc
from asyncsched.runtime import deadlock, stall
from tests.waiting import until

from .holding import BLOCK, NB, wants_a_third

Work = Callable[[], Awaitable[Any]]


class Looks:
    """Looks for a deadlock at every turn of the loop, from when something ends until it is told to stop.

    Attributes:
        found: what each look found.
        ends: what ends the work, as its timer does.
        begun_by_these: they begin the looks themselves.
    """

    def __init__(self, s: asc.Scheduler) -> None:
        self._runtime = s._runtime
        self.ends: list[Callable[[], object]] = []
        self.begun_by_these = False
        self._next: asyncio.Handle | None = None
        self.found: list[deadlock.Finding] = []

    def look(self) -> None:
        stuck = {task.scope.account: task for task in self._runtime.engine.admission.stuck()}
        if stuck:
            self.found += deadlock.investigate(self._runtime, stuck, 60.0).values()

    def go_on(self) -> None:
        self.look()
        self._next = asyncio.get_running_loop().call_soon(self.go_on)

    def stop(self) -> None:
        assert self._next is not None
        self._next.cancel()


def now() -> float:
    return asyncio.get_running_loop().time()


async def timeout(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    async with asyncio.timeout(60) as timer:
        looks.ends.append(lambda: timer.reschedule(now()))
        await work()


async def fail_after(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    with anyio.fail_after(60) as scope:
        looks.ends.append(lambda: setattr(scope, "deadline", now()))
        await work()


async def deadline(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    async with s.scope(deadline=60) as scope:
        assert scope._timeout is not None
        looks.ends.append(lambda: scope._timeout.reschedule(now()))  # type: ignore[union-attr]
        await work()


async def cancelled(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    task = asyncio.ensure_future(work())
    looks.ends.append(task.cancel)
    await task


async def grouped(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(work())  # type: ignore[arg-type]


async def grouped_by_anyio(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(work)


async def grouped_beside_another(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(work())  # type: ignore[arg-type]
        await asyncio.create_task(asyncio.Event().wait())


async def grouped_beside_several(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(work())  # type: ignore[arg-type]
        await asyncio.gather(asyncio.Event().wait(), asyncio.Event().wait())


async def woken_as_well(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    event = asyncio.Event()
    looks.ends.insert(0, event.set)
    async with asyncio.TaskGroup() as group:
        group.create_task(work())  # type: ignore[arg-type]
        await event.wait()
        event.clear()
        await event.wait()


async def fails(looks: Looks) -> None:
    asyncio.get_running_loop().call_soon(looks.go_on)  # before anybody hears of it
    raise TimeoutError


async def failed_beside(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(work())  # type: ignore[arg-type]
        looks.begun_by_these = True
        looks.ends.append(lambda: group.create_task(fails(looks)))


async def failed_beside_by_anyio(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        looks.begun_by_these = True
        looks.ends.append(lambda: group.start_soon(fails, looks))


async def failed_inside(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    failing = asyncio.get_running_loop().create_future()
    looks.ends.append(lambda: failing.set_exception(TimeoutError()))
    async with asyncio.TaskGroup() as group:
        group.create_task(work())  # type: ignore[arg-type]
        await failing


async def gathered(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    await asyncio.gather(work())


async def waited_for(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    await asyncio.wait_for(work(), 60)


async def caught(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    try:
        await work()
    except asyncio.CancelledError:
        await work()


async def in_a_shield(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    with anyio.CancelScope(shield=True):
        await work()


async def after_a_timeout(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    async with asyncio.timeout(60) as timer:
        await asyncio.sleep(0)
    await work()
    assert not timer.expired()


async def after_one_that_expired(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(-1) as timer:
            await asyncio.Event().wait()
    await work()
    assert timer.expired()


async def after_an_anyio_timeout(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    with anyio.move_on_after(60) as scope:
        await asyncio.sleep(0)
    await work()
    assert not scope.cancel_called


async def after_a_cancelled_scope(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await asyncio.Event().wait()
    await work()
    assert scope.cancel_called


async def after_a_deadline(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    async with s.scope(deadline=60) as scope:
        pass
    await work()
    assert scope.name


async def caught_at_first(s: asc.Scheduler, work: Work, looks: Looks) -> None:
    """As in an anyio scope, which cancels again at each turn."""
    try:
        await work()
    finally:
        await s.put(BLOCK)


Form = Callable[[asc.Scheduler, Work, Looks], Awaitable[None]]
ENDS: list[Form] = [timeout, fail_after, deadline, cancelled]
FORMS: list[tuple[Form, ...]] = [
    *[(end,) for end in ENDS],
    *[(end, around) for end in ENDS for around in (grouped, grouped_by_anyio, gathered, waited_for)],
    (timeout, grouped_beside_another),
    (timeout, grouped_beside_several),
    (timeout, woken_as_well),
    (timeout, grouped, grouped, grouped),
    (timeout, waited_for, grouped, gathered, grouped_by_anyio),
    (fail_after, caught_at_first),
    (fail_after, grouped_by_anyio, caught_at_first),
    (failed_beside,),
    (failed_beside_by_anyio,),
    (failed_inside,),
]
NOT_ENDED: list[tuple[Form, ...]] = [
    *[(end, caught) for end in (timeout, deadline, cancelled)],
    *[(timeout, around, caught) for around in (grouped, gathered)],
    (fail_after, in_a_shield),
    (fail_after, grouped_by_anyio, in_a_shield),
    (timeout, grouped_by_anyio, in_a_shield),
    *[(after,) for after in (after_a_timeout, after_one_that_expired, after_an_anyio_timeout)],
    *[(after,) for after in (after_a_cancelled_scope, after_a_deadline)],
]
if sys.version_info < (3, 12):  # from then on the timer of `wait_for` is still armed, and will end it
    NOT_ENDED.append((timeout, waited_for, caught))
NAMED = {"ids": lambda forms: "-".join(form.__name__ for form in forms)}


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """But the test."""
    monkeypatch.setattr(stall, "FIRST_LOOK", 3600.0)
    monkeypatch.setattr(stall, "FIRST_LOG", 3600.0)


def inside(s: asc.Scheduler, forms: tuple[Form, ...], work: Work, looks: Looks) -> Work:
    for form in reversed(forms):
        work = lambda form=form, work=work: form(s, work, looks)  # type: ignore[misc]  # noqa: E731
    return work


@pytest.mark.parametrize("asks_first", ["ended", "other"])
@pytest.mark.parametrize("forms", FORMS, **NAMED)
async def test_a_task_that_is_being_ended_is_no_lasting_holder(
    nobody_looks: None, forms: tuple[Form, ...], asks_first: str
) -> None:
    async def greedy(s: asc.Scheduler, name: str) -> None:
        kept = [await s.put(BLOCK), await s.put(BLOCK)]
        await until(lambda: s.statistics().bytes_retained == 4 * NB)
        await until(lambda: name == asks_first or s.statistics().tasks_pending)
        try:
            await s.put(BLOCK)
        finally:
            kept.clear()

    async with asc.Scheduler("cpu", max_bytes=4 * NB) as s:
        looks = Looks(s)
        ended = asyncio.ensure_future(inside(s, forms, lambda: greedy(s, "ended"), looks)())
        other = asyncio.create_task(greedy(s, "other"))
        await until(lambda: s.statistics().tasks_pending == 2)
        for end in looks.ends:
            end()
        if not looks.begun_by_these:
            looks.go_on()
        found, _ = await asyncio.gather(ended, other, return_exceptions=True)
        looks.stop()
        assert other.exception() is None
    assert looks.found
    assert not any(finding.deadlock for finding in looks.found)
    if isinstance(found, BaseExceptionGroup):
        (found,) = found.exceptions
    assert isinstance(found, (TimeoutError, asc.DeadlineExceeded, asyncio.CancelledError))


@pytest.mark.parametrize("forms", NOT_ENDED, **NAMED)
async def test_a_task_that_waits_again_after_its_end_began_is_a_holder(
    nobody_looks: None, forms: tuple[Form, ...]
) -> None:
    async def greedy(s: asc.Scheduler, looks: Looks) -> None:
        kept = [await s.put(BLOCK), await s.put(BLOCK)]
        await until(lambda: s.statistics().tasks_pending)
        try:
            await inside(s, forms, lambda: s.put(BLOCK), looks)()
        finally:
            kept.clear()

    async with asc.Scheduler("cpu", max_bytes=4 * NB) as s:
        looks = Looks(s)
        tasks = [asyncio.create_task(wants_a_third(s)), asyncio.create_task(greedy(s, looks))]
        await until(lambda: s.statistics().tasks_pending == 2)
        for end in looks.ends:
            end()
        looks.go_on()
        await until(lambda: looks.found and looks.found[-1].deadlock)
        looks.stop()
        tasks[0].cancel()
        await asyncio.wait(tasks)
        if not tasks[1].cancelled():  # whatever came of the timer, once the work was done
            assert not isinstance(tasks[1].exception(), asc.MemoryDeadlockError)
