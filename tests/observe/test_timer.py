"""Times of blocks: what is between the barriers, told apart by when it was issued. On a clock that tests set."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from math import isnan

import pytest

import asyncsched as asc
from asyncsched.observe import timer as timer_module
from asyncsched.observe.timer import Times
from tests.waiting import Clock, cancelled, fail, held, turns, until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timer_module, "perf_counter", clock)
    return clock


async def test_issue_and_finish_are_told_apart(s, clock, gate):
    async def block() -> asc.Timer:
        async with asc.Timer("a block") as t:
            s.submit_nowait(held, gate)
            clock.passes(1)
        return t

    timed = asyncio.create_task(block())
    await turns()
    assert not timed.done()
    clock.passes(10)
    gate.set()
    t = await timed
    assert (t.issue, t.seconds) == (1, 11)
    assert repr(t) == "a block: 11 s, issued in 1 s"


async def test_what_was_there_before_is_not_paid_for(s, clock, gate):
    s.submit_nowait(held, gate)
    entered = asyncio.Event()

    async def block() -> asc.Timer:
        async with asc.Timer() as t:
            entered.set()
            clock.passes(2)
        return t

    timed = asyncio.create_task(block())
    await turns()
    assert not entered.is_set()
    clock.passes(1000)
    gate.set()
    t = await timed
    assert (t.issue, t.seconds) == (2, 2)


async def test_which_scheduler(clock):
    async with asc.Scheduler("cpu") as outer, asc.Scheduler("cpu") as inner:
        gates = {s: threading.Event() for s in (outer, inner)}
        for given, waits_for in ((None, inner), (outer, outer)):
            other = inner if waits_for is outer else outer
            other.submit_nowait(held, gates[other])
            async with asc.Timer(scheduler=given) as t:  # it would never end if it waited for the other's
                clock.passes(1)
            assert t.seconds == 1
            gates[other].set()


async def test_in_a_scope_it_waits_for_that_ones_tasks(s, clock, gate):
    s.submit_nowait(held, gate)
    async with s.scope() as scope:
        async with asc.Timer() as t:
            clock.passes(1)
        assert t.seconds == 1
        async with asc.Timer(scheduler=scope) as t:
            clock.passes(2)
        assert t.seconds == 2
        gate.set()


async def test_no_scheduler_names_the_cure():
    with pytest.raises(asc.SchedulerClosed, match="async with asyncsched.Scheduler"):
        async with asc.Timer():
            raise AssertionError
    with pytest.raises(asc.SchedulerClosed, match="scheduler="):
        await asc.measure(lambda: None)


async def test_a_block_that_raises_is_not_waited_for(s, clock, gate):
    t = asc.Timer("a block")
    with pytest.raises(KeyError):
        async with t:
            s.submit_nowait(held, gate)
            clock.passes(1)
            raise KeyError
    assert isnan(t.issue)
    assert isnan(t.seconds)
    assert repr(t) == "a block: nothing timed"
    gate.set()
    async with t:  # it can be used again
        assert repr(t) == "a block: running"
        clock.passes(3)
    assert t.seconds == 3


async def test_the_barriers_raise_what_nobody_has_seen(s, clock):
    t = asc.Timer()
    s.submit_nowait(fail, "early")
    with pytest.raises(ExceptionGroup) as caught:
        async with t:
            raise AssertionError
    assert caught.group_contains(LookupError, match="early")
    with pytest.raises(ExceptionGroup) as caught:
        async with t:
            s.submit_nowait(fail, "late")
    assert caught.group_contains(LookupError, match="late")
    assert isnan(t.seconds)
    async with t:
        pass
    assert t.seconds == 0


async def test_cancelled_at_a_barrier_it_takes_nothing_back(s, clock, gate):
    t, issued = asc.Timer(), []

    async def block() -> None:
        async with t:
            issued.append(s.submit_nowait(held, gate, 7))

    timed = asyncio.create_task(block())
    await until(lambda: issued)
    await turns()
    await cancelled(timed)
    before = asyncio.create_task(block())  # this one at the barrier before
    await turns()
    await cancelled(before)
    assert len(issued) == 1
    assert isnan(t.seconds)
    gate.set()
    assert await issued[0] == 7


@pytest.mark.one_loop
async def test_one_block_at_a_time(s):
    async with asc.Timer() as t:
        with pytest.raises(RuntimeError, match="make another"):
            async with t:
                raise AssertionError


async def test_rounds_are_measured_after_those_that_warm_up(s, clock):
    calls: list[float] = []

    def work() -> None:
        calls.append(clock.now)
        seconds = 1000 if len(calls) <= 2 else len(calls) - 2
        clock.passes(seconds)
        gate = threading.Event()  # until it is issued
        s.submit_nowait(lambda: held(gate) or clock.passes(10))
        asyncio.get_running_loop().call_soon(gate.set)

    found = await asc.measure(work, 5)
    assert len(calls) == 7
    assert found.issue == Times((1, 2, 3, 4, 5))
    assert found.finish == Times((11, 12, 13, 14, 15))
    assert (found.finish.median, found.finish.quartiles, found.finish.best) == (13, (12, 14), 11)
    assert str(found) == "work: 13 s (12 s to 14 s), issued in 3 s; 5 rounds"


async def test_a_coroutine_function_is_awaited_and_a_tensor_is_not(s, clock, gate):
    async def work(seconds: float) -> None:
        await asyncio.sleep(0)
        clock.passes(seconds)

    found = await asc.measure(functools.partial(work, 4), 1, warm_up=0, name="work")
    assert (found.issue.seconds, found.finish.quartiles) == ((4,), (4, 4))

    tensors = asyncio.create_task(
        asc.measure(lambda: s.submit_nowait(held, gate, 1.0, shape=(), dtype=float), 1, warm_up=0)
    )
    await turns()
    clock.passes(5)
    gate.set()
    found = await tensors
    assert (found.issue.seconds, found.finish.seconds) == ((0,), (5,))


async def test_a_result_is_dropped_before_it_is_waited_for(s):
    x = await s.put([0.0] * 100_000)
    before = s.statistics().bytes_retained
    held_back: list[int] = []
    await asc.measure(lambda: held_back.append(s.statistics().bytes_retained) or x + 1, 3)
    assert set(held_back) == {before}


async def test_what_the_function_raises_leaves_as_it_is(s):
    with pytest.raises(LookupError, match="broken"):
        await asc.measure(fail)

    async def work() -> None:
        await s.call(fail)

    with pytest.raises(LookupError, match="broken"):
        await asc.measure(work)


async def test_a_generator_would_be_measured_without_its_body(s):
    def numbers() -> Iterator[int]:
        yield 1

    for function in (numbers, lambda: numbers()):
        with pytest.raises(TypeError, match="gives a generator, of which nothing has run"):
            await asc.measure(function)


@pytest.mark.one_loop
async def test_rounds_are_counted(s):
    with pytest.raises(ValueError, match="n must be at least 1"):
        await asc.measure(fail, 0)
    with pytest.raises(TypeError, match="warm_up must be an int"):
        await asc.measure(fail, warm_up=1.5)
