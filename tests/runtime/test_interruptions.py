"""An exception that a signal raises between two lines: nobody waits for ever, and whoever goes on is told.

Python handles signals where it enters a function and after it has called one that is written in C. So that is where
each of these programs is interrupted, once at each of those places: at a third of them by default.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from itertools import chain, count
from types import FrameType
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.runtime.loops import _on_wake
from tests.ledger import engine_of, live, runtime_of
from tests.thorough import usually
from tests.validate import validate
from tests.waiting import held, turns, until

FINALISERS = ("__del__", "gone", "_remove")  # what is raised there is raised again behind them
MANY = 1_000_000
ENDS_SOON = 20  # seconds


def in_a_finaliser(frame: FrameType) -> bool:
    """Whether it belongs to one of the package's: they are entered, too."""
    return _is_in(FINALISERS, frame)


def in_no_finaliser(frame: FrameType) -> bool:
    """Where Python does not lose an exception."""
    return not in_a_finaliser(frame)


def _is_in(names: tuple[str, ...], frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name not in names and frame.f_code.co_qualname not in names:
        frame = frame.f_back
    return frame is not None


def interrupted(number: int, run: Callable[[], object], counts: Callable[[FrameType], bool] = in_no_finaliser) -> bool:
    """Run something, and raise KeyboardInterrupt at one place in it: the first is number 0. Whether it came so far.

    The collector does not run meanwhile: what is raised in its callbacks, as JAX has one, is lost. But nothing is lost
    that is raised in a finaliser of the package.
    """
    left, collects, arrived = number, gc.isenabled(), False

    def look(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal left
        if event not in ("call", "c_return") or not counts(frame):
            return
        left -= 1
        if left == -1:
            raise KeyboardInterrupt

    gc.disable()
    sys.setprofile(look)
    try:
        run()
    except (KeyboardInterrupt, RecursionError):
        arrived = True
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
    assert arrived or left >= 0 or counts is in_no_finaliser
    return left < 0


def operators(s: asc.Scheduler, x: asc.Tensor, gate: threading.Event) -> None:
    y = x @ x
    _ = y * 2 + x


def submits(s: asc.Scheduler, x: asc.Tensor, gate: threading.Event) -> None:
    t = s.submit_nowait(held, gate)
    s.submit_nowait(repr, t)
    s.submit_nowait(np.sum, x)


def puts(s: asc.Scheduler, x: asc.Tensor, gate: threading.Event) -> None:
    with suppress(asc.QueueFull):
        s.put_nowait(np.ones(10))


def tiny(s: asc.Scheduler, x: asc.Tensor, gate: threading.Event) -> None:
    _ = x[0] + 1


def cancels(s: asc.Scheduler, x: asc.Tensor, gate: threading.Event) -> None:
    t = s.submit_nowait(held, gate)
    u = s.submit_nowait(repr, t)
    t.cancel()
    u.done()


def learns(s: asc.Scheduler, x: asc.Tensor, gate: threading.Event) -> None:
    w = x * 1
    w.requires_grad = True
    (w @ w).sum().backward()


PROGRAMS: list[Callable[[asc.Scheduler, asc.Tensor, threading.Event], None]] = [
    operators, submits, puts, tiny, cancels, learns,
]  # fmt: skip
MANY_PLACES = {learns: 11, operators: 3}  # of these one in so many, at most


@pytest.mark.one_loop
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a generator that is dropped then
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("max_ops", [1, 64])
async def test_every_waiter_gets_a_result_or_an_error(program: Any, max_ops: int) -> None:
    closed, came_so_far = 0, True
    # First the whole of it, which makes plans that are kept.
    for number in chain([MANY], count(max_ops % 3, usually(3, 1) * MANY_PLACES.get(program, 1))):
        gate, s = threading.Event(), asc.Scheduler("cpu", max_ops=max_ops)
        try:
            async with asyncio.timeout(ENDS_SOON), s:
                x = await s.put(np.ones((300, 300)))
                beside = asyncio.ensure_future(s.call(held, gate))
                await turns(2)
                came_so_far = interrupted(number, partial(program, s, x, gate))
                engine_of(s).dispatch()  # takes in what a finaliser could not report
                if not closed_itself(s):
                    engine_of(s).drain()
                    validate(engine_of(s))
                    gate.set()
                    try:
                        await s.barrier()
                    except* KeyboardInterrupt:  # in a body that ran here, whose task failed by it
                        pass
                    assert (await (x + 1))[0, 0] == 2
                    await beside
                else:
                    closed += 1
                    await is_told(s, x, beside)
        finally:
            gate.set()
        assert s.statistics().tasks_in_flight == 0
        if not came_so_far and number < MANY:
            break
    assert closed or program is tiny


async def is_told(s: asc.Scheduler, x: asc.Tensor, beside: asyncio.Future[Any]) -> None:
    told = "KeyboardInterrupt came in the middle .* open another"
    with pytest.raises(asc.SchedulerClosed, match=told):
        await beside
    with pytest.raises(asc.SchedulerClosed, match=told):
        await s.submit(int)
    with pytest.raises(asc.SchedulerClosed, match=told):
        _ = x + 1
    with pytest.raises(asc.SchedulerClosed, match=told):
        await s.barrier()
    assert (await x)[0, 0] == 1  # it was there


def closed_itself(s: asc.Scheduler) -> bool:
    return repr(s).endswith("closed)")


def break_off(s: asc.Scheduler) -> None:
    """Interrupt it in the middle of a submission."""
    for number in count():
        assert interrupted(number, partial(s.submit_nowait, int))
        if closed_itself(s):
            return


@pytest.mark.one_loop
@pytest.mark.parametrize("plain", [False, True])
async def test_waiters_get_a_result_or_an_error_when_a_wake_up_is_interrupted(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plain:
        monkeypatch.delattr(os, "eventfd", raising=False)
    ends: list[type] = []
    for number in count(1):  # at 0 the loop finds the counter as it was, and calls again
        gate, came_so_far = threading.Event(), list[bool]()
        with suppress(ExceptionGroup):  # what was lost, and nobody waits for
            async with asyncio.timeout(ENDS_SOON), asc.Scheduler("cpu", streams=1, max_ops=1) as s:
                runtime, t = runtime_of(s), await s.submit(held, gate)
                waiting = [asyncio.ensure_future(wait) for wait in (_awaits(t), _awaits(t), _submits(s))]
                await turns(2)
                runtime.completions.awake = True  # as if the loop were woken already
                gate.set()
                await until(lambda items=runtime.completions.items: items)
                woken = partial(_on_wake, runtime) if plain else runtime._wakeup._read
                asyncio.get_running_loop().call_soon(_interrupts, came_so_far, number, woken)
                ends += [type(end) for end in await asyncio.gather(*waiting, return_exceptions=True)]
        if came_so_far == [False]:
            break
    assert set(ends) == {type(None), asc.Task, asc.SchedulerClosed}


def _interrupts(came_so_far: list[bool], number: int, run: Callable[[], object]) -> None:
    came_so_far.append(interrupted(number, run))


async def _awaits(task: asc.Task[Any]) -> Any:
    return await task


async def _submits(s: asc.Scheduler) -> Any:
    return await s.submit(int)


async def test_unseen_losses_are_raised_at_the_close() -> None:
    s, gate = asc.Scheduler("cpu"), threading.Event()
    with pytest.raises(ExceptionGroup, match="the scheduler: 1 task failed") as caught:
        async with s:
            s.submit_nowait(held, gate)
            break_off(s)
            gate.set()
    assert isinstance(caught.value.exceptions[0], asc.SchedulerClosed)
    await s.aclose()


async def test_it_is_named_where_no_scheduler_is() -> None:
    s = await asc.open("cpu")
    break_off(s)
    with pytest.raises(asc.SchedulerClosed, match="KeyboardInterrupt came"):
        asc.ones(3)
    other = await asc.open("cpu")
    assert (await asc.ones(3)).sum() == 3
    await other.aclose()
    await s.aclose()


async def test_the_threads_end() -> None:
    before = set(threading.enumerate())
    async with asc.Scheduler("cpu", streams=3) as s:
        gate = threading.Event()
        s.submit_nowait(held, gate)
        break_off(s)
        gate.set()
        await until(lambda: set(threading.enumerate()) <= before)
        with pytest.raises(asc.SchedulerClosed):
            await s.submit(int)


async def test_where_the_recursion_is_too_deep_to_give_up_it_is_done_later(s: asc.Scheduler) -> None:
    x = await s.put(np.ones((300, 300)))
    await (x @ x)  # its plan is kept: each time below is as long as the one before
    s.statistics()  # takes in that its bytes came back
    gate = threading.Event()
    s.submit_nowait(held, gate)  # so that something is unfinished, wherever it is interrupted
    runtime, failures = runtime_of(s), [RecursionError()]
    give_up = runtime.on_interrupted

    def fail_once(error: BaseException) -> None:
        if failures:
            raise failures.pop()
        give_up(error)

    runtime.on_interrupted = fail_once
    for number in count():
        interrupted(number, lambda: x @ x)
        if not failures:
            break
    gate.set()
    with pytest.raises(ExceptionGroup, match="barrier: 1 task failed"):
        await s.barrier()
    with pytest.raises(asc.SchedulerClosed, match="KeyboardInterrupt came in the middle"):
        await s.barrier()


DROPPED: dict[str, Callable[[asc.Scheduler, asc.Tensor], Any]] = {
    "a tiny result": lambda s, x: x[:1] + 1,
    "a buffer": lambda s, x: x @ x,
    "a view": lambda s, x: (x @ x).T,
    "what a function returned": lambda s, x: s.submit_nowait(np.ones, (200, 200)),
    "several": lambda s, x: s.submit_nowait(lambda: [np.ones(2000), np.ones(3000)]),
}


@pytest.mark.one_loop
@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("make", DROPPED.values(), ids=DROPPED)
async def test_a_drop_that_a_signal_interrupts_is_made_all_the_same(make: Any, awaited: bool) -> None:
    async with asc.Scheduler("cpu", streams=1) as s:
        x, pool = await s.put(np.ones((300, 300))), s.devices[0].memory.pool
        before = None
        for number in count():
            box = [make(s, x)]
            await s.barrier()
            if awaited:
                await box[0]
            came_so_far = interrupted(number, box.clear, in_a_finaliser)
            found = (s.statistics().bytes_retained, live(pool))
            assert found == (before or found)
            assert found[0] == x.nbytes
            before = found
            if not came_so_far:
                break
        assert number > 1
        assert not closed_itself(s)
        assert await (x[:1] + 1).sum().item() == 600.0


@pytest.mark.one_loop
@pytest.mark.filterwarnings("ignore:.*never closed:ResourceWarning")
async def test_a_scheduler_whose_end_a_signal_interrupts_closes_all_the_same(gate: threading.Event) -> None:
    others = set(threading.enumerate())
    for number in count():
        box = [await asc.open("cpu", streams=1)]
        waiting = asyncio.ensure_future(await box[0].submit(held, gate))
        await turns(2)
        came_so_far = interrupted(number, box.clear, partial(_is_in, ("Scheduler.__del__",)))
        with pytest.raises(asc.SchedulerClosed, match="nothing referred to the open scheduler"):
            await waiting
        gate.set()
        await until(lambda: set(threading.enumerate()) <= others)
        gate.clear()
        if not came_so_far:
            break
    assert number > 5


@pytest.mark.one_loop
async def test_a_scope_ends_with_a_generator_whose_end_a_signal_interrupts(s: asc.Scheduler) -> None:
    async def items() -> AsyncIterator[int]:
        async with s.scope(name="inside"):
            yield 1

    first = items()  # an event loop sets its hook anew when it runs: now there is one of the package before it
    await anext(first)
    await first.aclose()
    for number in count():
        box = [items()]
        await anext(box[0])
        assert asc.observe.Probe(s).current.name == "inside"
        came_so_far = interrupted(number, box.clear, partial(_is_in, ("Dropped.__call__",)))
        assert asc.observe.Probe(s).current.name == "root"
        await until(lambda: not engine_of(s).root.children)
        if not came_so_far:
            break
    assert number > 5


CELLS: dict[str, Callable[[asc.Scheduler, asc.Tensor], object]] = {
    "tiny results": lambda s, x: (x[0] + 1).sum() * 2,
    "buffers and views": lambda s, x: ((x @ x) * 2 + x)[1:],
    "futures": lambda s, x: s.submit_nowait(np.ones, 3000),
    "arrays": lambda s, x: s.put_nowait(np.ones(3000)),
}


@pytest.mark.one_loop
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
async def test_a_signal_stops_a_loop_that_awaits_nothing(cell: Any) -> None:
    """It comes at any moment, also while something ends. Then the scheduler goes on, or has closed itself."""
    pressed = True

    def press(*_: object) -> None:
        nonlocal pressed
        if not pressed:
            pressed = True
            raise KeyboardInterrupt

    def work(s: asc.Scheduler, x: asc.Tensor) -> None:  # in a function: 3.13 may leave a block from a loop's end
        while not pressed:
            cell(s, x)
        repr(cell)

    before, others = signal.signal(signal.SIGVTALRM, press), gc.callbacks[:]
    gc.callbacks.clear()  # what is raised in those of others, as Hypothesis has one, is lost
    try:
        for number in range(usually(60, 400)):
            s = asc.Scheduler("cpu", max_pending=None)
            with suppress(ExceptionGroup):  # of what was lost as it closed itself
                async with s:
                    x = await s.put(np.ones((64, 64)))
                    await (x @ x)
                    with pytest.raises(KeyboardInterrupt):
                        pressed = False
                        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005 + number * 37 % 100 * 1e-5)
                        work(s, x)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        gc.callbacks[:] = others
