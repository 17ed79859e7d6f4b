"""What failed holds no bytes once it was told; where somebody's frame makes a circle, no longer than someone waits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.runtime import stall
from tests.ledger import engine_of
from tests.waiting import fail, no_collector, until

BLOCK = np.ones((100, 100))
NB = BLOCK.nbytes
LIMIT = 8 * NB


def broken(s: asc.Scheduler, *args: Any) -> asc.Tensor:
    """A tensor that will not be there."""
    return s.submit_nowait(lambda *_: fail(), *args, shape=(100, 100), dtype=float)


def used(s: asc.Scheduler) -> int:
    return s.statistics().bytes_retained


Form = Callable[[asc.Scheduler], Coroutine[Any, Any, None]]


# -- no circles ----------------------------------------------------------------------------------------------------


async def caught(s: asc.Scheduler) -> None:
    """The frame that catches it holds the handles on what failed, and on what that read."""
    x = await s.put(BLOCK)
    y = broken(s, x)
    z = y + x
    for handle in (y, z, y):
        try:
            await handle
        except LookupError:
            large = x + 1
            await large


async def caught_in_an_inner_coroutine(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    y = broken(s, x)

    async def inner() -> None:
        large = x * 2
        await y
        await large

    with contextlib.suppress(LookupError):
        await inner()
    with contextlib.suppress(LookupError):
        await inner()


async def left_by_the_error(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    y = broken(s, x)
    await (y + x)


async def read_without_awaiting(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    y = broken(s, x)
    await until(y.done)
    assert isinstance(y.exception(), LookupError)
    with pytest.raises(LookupError):
        y.result()


async def dependents_of_a_cancelled_task(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    y = x + 1
    z = asc.exp(y @ x)
    y.cancel()
    z.cancel()
    for handle in (z, y, z * 2):
        with contextlib.suppress(asc.TaskCancelled):
            await handle


async def cancelled_from_outside(s: asc.Scheduler) -> None:
    async def work() -> None:
        x = await s.put(BLOCK)
        y = x + 1
        await asyncio.Event().wait()
        await y

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await work()


async def failed_gradients(s: asc.Scheduler) -> None:
    w = await s.put(BLOCK)
    w.requires_grad = True
    x = broken(s, w.detach())
    for _ in range(2):
        loss = (asc.tanh(w @ w) * x).sum()
        loss.backward()
    for handle in (loss, w.grad):
        assert handle is not None
        with contextlib.suppress(LookupError):
            await handle


async def in_a_scope(s: asc.Scheduler) -> None:
    async with s.scope(reserve=4 * NB) as scope:
        x = await scope.put(BLOCK)
        y = broken(s, x)
        await (x @ y)


async def told_by_a_barrier(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    y = broken(s, x) + 1
    with contextlib.suppress(ExceptionGroup):
        await s.barrier()
    del y


async def gathered_here(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    y = broken(s, x)
    with contextlib.suppress(LookupError):
        await asc.gather(x + 1, y, y + x)


async def called(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    for _ in range(2):
        with contextlib.suppress(LookupError):
            await s.call(lambda a: fail(), x)


async def in_a_task_group(s: asc.Scheduler) -> None:
    """What the group's own frame does is asyncio's business: here each child handles its own."""

    async def child(x: asc.Tensor) -> None:
        y = broken(s, x)
        try:
            await (y + x)
        except LookupError:
            large = x + 1
            await large

    async with asyncio.TaskGroup() as group:
        x = await s.put(BLOCK)
        for _ in range(3):
            group.create_task(child(x))


FORMS: list[Form] = [
    caught, caught_in_an_inner_coroutine, left_by_the_error, read_without_awaiting, dependents_of_a_cancelled_task,
    cancelled_from_outside, failed_gradients, in_a_scope, told_by_a_barrier, gathered_here, called, in_a_task_group,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
async def test_the_bytes_come_back_without_the_collector(s: asc.Scheduler, form: Form) -> None:
    with no_collector():
        for _ in range(3):
            try:
                await form(s)
            except* LookupError:
                pass
            with contextlib.suppress(ExceptionGroup):
                await s.barrier()
        # The thread that ran a body may still be in the call that wakes the loop, with the task.
        await until(lambda: used(s) == 0)


# -- circles -------------------------------------------------------------------------------------------------------


async def kept_in_a_variable(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    try:
        await broken(s, x)
    except LookupError as error:
        kept = error
    assert kept.__traceback__ is not None
    del s


async def held_by_an_awaited_task(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)

    async def child() -> None:
        await broken(s, x)

    task = asyncio.create_task(child())
    with contextlib.suppress(LookupError):
        await task


async def left_by_a_task_group(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)

    async def child() -> None:
        large = x + 1
        await large
        await broken(s, large)

    with contextlib.suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(child())


CIRCLES: list[Form] = [kept_in_a_variable, held_by_an_awaited_task]
if sys.version_info < (3, 14):  # from then on a task group lets go of what its tasks raised
    CIRCLES.append(left_by_a_task_group)


@pytest.mark.drops_at_once
@pytest.mark.parametrize("form", CIRCLES, ids=lambda form: form.__name__)
async def test_waiting_for_bytes_collects_cycles_at_once(monkeypatch: pytest.MonkeyPatch, form: Form) -> None:
    monkeypatch.setattr(stall, "FIRST_LOOK", 3600.0)  # so not by the first look for holders
    async with asc.Scheduler("cpu", max_bytes=LIMIT) as s:
        with no_collector():
            for _ in range(20):
                await form(s)
            assert used(s)
            all_there_is = [await s.put(BLOCK) for _ in range(8)]
        del all_there_is


class Collector:
    """In the place of `gc`: takes half a second, and lets go of what is garbage, if it is young enough."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: int = 0) -> None:
        self.now = 1000.0
        self.collected: list[int] = []
        self.garbage: list[Any] = []
        self.of = of  # the generation that the garbage is in
        monkeypatch.setattr(stall, "thread_time", lambda: self.now)
        monkeypatch.setattr(stall, "gc", self)
        monkeypatch.setattr(stall, "FIRST_LOG", 3600.0)
        monkeypatch.setattr(stall, "PROBABLE", 3600.0)  # no search, during which nothing is collected

    def collect(self, generation: int = 2) -> None:
        self.collected.append(generation)
        self.now += 0.5
        if generation >= self.of:
            self.garbage.clear()


async def test_collecting_in_vain_has_a_share_of_the_loops_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes a second is not followed by another before nineteen more have passed."""
    collector = Collector(monkeypatch)
    monkeypatch.setattr(stall, "FIRST_LOOK", 3600.0)
    monkeypatch.setattr(stall, "perf_counter", lambda: collector.now)
    async with asc.Scheduler("cpu", max_bytes=NB) as s:
        for after, expected in ((0.0, 1), (0.5, 1), (10.0, 1), (10.0, 2), (19.0, 2), (2.0, 3)):
            collector.now += after
            held = await s.put(BLOCK)
            waiting = asyncio.create_task(s.put(BLOCK))
            await until(engine_of(s).admission.stuck)
            for _ in range(5):
                await asyncio.sleep(0)
            assert collector.collected == [0, 1] * expected
            del held
            await waiting
            del waiting
    assert gc.isenabled()


@pytest.mark.parametrize("of", [0, 1])
async def test_collecting_goes_on_as_long_as_it_frees_bytes(monkeypatch: pytest.MonkeyPatch, of: int) -> None:
    collector = Collector(monkeypatch, of)
    monkeypatch.setattr(stall, "FIRST_LOOK", 3600.0)
    monkeypatch.setattr(stall, "perf_counter", lambda: collector.now)
    async with asc.Scheduler("cpu", max_bytes=NB) as s:
        for times in range(5):
            collector.garbage.append(await s.put(BLOCK))
            assert collector.collected == list(range(of + 1)) * times  # the youngest first


async def test_once_that_helped_a_stall_lasts_no_longer_than_a_whole_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cycles that have outlived collections of young garbage: found late once, and soon from then on."""
    collector = Collector(monkeypatch, 2)
    monkeypatch.setattr(stall, "thread_time", lambda: 0.0)
    monkeypatch.setattr(stall, "FIRST_LOOK", 0.01)
    async with asc.Scheduler("cpu", max_bytes=NB) as s:
        for times in range(4):
            held = await s.put(BLOCK)
            assert collector.collected.count(2) == times
            collector.garbage.append(held)
            del held
