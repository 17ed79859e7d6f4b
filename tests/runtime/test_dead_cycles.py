"""Tensors in dead cycles, whose finalisers the collector runs in any order; and what cannot be reported."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices import execution
from asyncsched.devices.host import memory as host_memory
from tests.ledger import engine_of, live
from tests.waiting import held, until

pytestmark = pytest.mark.one_loop

SIZES = [4, 200_000]  # without a buffer of the pool, and with one


class Keeps:
    """In a cycle with what it holds; its finaliser keeps that."""

    def __init__(self, held: Any, kept: list[Any]) -> None:
        self.held, self.kept, self.me = held, kept, self

    def __del__(self) -> None:
        self.kept.append(self.held)


def generator(x: Any, kept: list[Any]) -> Iterator[list[Any]]:
    me: list[Any] = [None]
    try:
        while True:
            yield me
    finally:
        kept.append(x)


def in_an_object(x: Any, kept: list[Any]) -> None:
    Keeps(x, kept)


def in_a_generator(x: Any, kept: list[Any]) -> None:
    made = generator(x, kept)
    next(made)[0] = made


MADE: dict[str, Callable[[asc.Tensor], Any]] = {
    "put": lambda x: x, "made by an operation": lambda x: x + 0.0, "a view": lambda x: x[1:],
}  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("cycle", [in_an_object, in_a_generator])
async def test_a_tensor_that_a_finaliser_keeps_has_its_own_numbers(
    s: asc.Scheduler, size: int, made: str, cycle: Callable[..., None]
) -> None:
    kept: list[asc.Tensor] = []
    x = MADE[made](await s.put(np.full(size, 3.0)))
    await s.barrier()
    cycle(x, kept)
    del x
    gc.collect()
    other = await s.put(np.full(size, 99.0))
    another = other + 0.0
    x = kept.pop()
    assert set(await x) == {3.0}
    x[0] = -5.0
    assert (await x)[0] == -5.0
    assert set(await other) == set(await another) == {99.0}
    del x, other, another
    gc.collect()
    await s.barrier()
    assert s.statistics().bytes_retained == 0


async def test_an_async_generator_left_by_break_still_finds_its_tensors(s: asc.Scheduler) -> None:
    read: list[float] = []

    async def items(x: asc.Tensor) -> AsyncIterator[int]:
        me: list[Any] = [None]
        try:
            for number in range(3):
                yield number
        finally:
            read.append(float((await x)[0]))
            del me

    async for _ in items(await s.put(np.full(200_000, 3.0))):
        break
    gc.collect()
    other = await s.put(np.full(200_000, 99.0))
    await until(lambda: read)
    assert read == [3.0]
    assert (await other)[0] == 99.0


def at_calls(acts: dict[int, Callable[[], None]], run: Callable[[], Any]) -> tuple[int, Any]:
    """Run something, and act as finalisers would at some of the calls in it. Returns how many there were, and what it
    returned."""
    number = -1

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal number
        if event == "call":
            number += 1
            if number in acts:
                sys.setprofile(None)
                acts[number]()
                sys.setprofile(look)

    sys.setprofile(look)
    try:
        result = run()
    finally:
        sys.setprofile(None)
    return number + 1, result


@pytest.mark.parametrize("at_once", [True, False])
async def test_assignments_by_finalisers_in_the_middle_of_an_assignment_are_not_lost(at_once: bool, gate: Any) -> None:
    """Two of them: the version of the second may be where the first version was."""
    async with asc.Scheduler("cpu", streams=1, max_ops=1) as s:
        for first in count():
            for second in count(first + 1):
                x = await s.put(np.zeros(4))
                if not at_once:
                    s.submit_nowait(held, gate)
                acts = {first: partial(x.__setitem__, 1, 2.0), second: partial(x.__setitem__, 2, 3.0)}
                calls, _ = at_calls(acts, partial(x.__setitem__, 0, 1.0))
                gate.set()
                assert (await x).tolist() == [1.0, 2.0 * (first < calls), 3.0 * (second < calls), 0.0], (first, second)
                gate.clear()
                if second >= calls:
                    break
            if first >= calls:
                break
        assert first > 20


@pytest.mark.parametrize(("ask", "expected"), [("result", [0.0, 0.0]), ("exception", None)])
async def test_all_facts_about_a_handle_are_of_one_version(ask: str, expected: Any, gate: Any) -> None:
    """Of the one that is there, or of the one that a finaliser assigned, which is pending."""
    async with asc.Scheduler("cpu", streams=1, max_ops=1) as s:
        pending = 0
        for number in count():
            x = await s.put(np.zeros(2))
            s.submit_nowait(held, gate)
            try:
                calls, told = at_calls({number: partial(x.__setitem__, 1, 2.0)}, getattr(x, ask))
                assert (told.tolist() if ask == "result" else told) == expected
                if number >= calls:
                    break
            except asyncio.InvalidStateError:
                pending += 1
            gate.set()
            await s.barrier()
            gate.clear()
        gate.set()
        assert 0 < pending < number


@pytest.mark.parametrize("own", [False, True])
async def test_a_finaliser_cancels_tasks_while_others_are_launched(own: bool, gate: Any) -> None:
    """A task that is just being launched; or its own, which is not in a queue yet."""
    async with asc.Scheduler("cpu", streams=1, max_ops=1) as s:
        x = await s.put(np.zeros(3))
        for number in count():
            s.submit_nowait(held, gate)
            y = x + 1
            z = y * 2
            told: list[tuple[bool, tuple[asc.Tensor, ...]]] = []

            def act(y: asc.Tensor = y, z: asc.Tensor = z, told: list[Any] = told) -> None:
                if own:
                    y = x + 2
                    z = y * 2
                told.append((y.cancel(), (y, z)))

            gate.set()
            while not engine_of(s).completions.items:  # its end is told, and not taken in, as it would be in a turn
                pass
            at_calls({number: act}, y.done)
            if not told:
                break
            cancelled, those = told[0]
            for t in those:
                if cancelled:
                    with pytest.raises(asc.TaskCancelled):
                        await t
                else:
                    await t
            gate.clear()


@pytest.mark.parametrize("function", [lambda x: x == 1, lambda x: x == x, asc.isnan, asc.sum])
async def test_an_operand_is_read_though_a_finaliser_takes_in_that_it_came(function: Any, gate: Any) -> None:
    """In the middle of the operation, which had looked for it before."""
    a = np.arange(4.0)
    async with asc.Scheduler("cpu") as s:
        expected = await function(await s.put(a))
        for number in count():
            x = s.submit_nowait(held, gate, a, shape=4, dtype=float)

            def look(x: asc.Tensor = x) -> None:
                gate.set()
                while not engine_of(s).completions.items:
                    os.sched_yield()
                x.done()

            calls, y = at_calls({number: look}, partial(function, x))
            gate.set()
            assert (await y).tolist() == expected.tolist(), number
            gate.clear()
            if number >= calls:
                break
        assert number > 3


def assigned(y: asc.Tensor) -> asc.Tensor:
    y[0] = 5.0
    return y * y


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y * y,
        asc.exp,
        lambda y: asc.clip(y, 0.5),
        lambda y: asc.linalg.slogdet(y).logabsdet,
        lambda y: y.to("cpu:1"),
        assigned,
    ],
    ids=["operator", "function", "clip", "several results", "to", "assigned"],
)
async def test_a_gradient_is_that_of_the_version_that_was_read(function: Callable[[asc.Tensor], asc.Tensor]) -> None:
    """A finaliser assigns in the middle of an operation that is recorded: before it, or after it, and not in part."""

    async with asc.Scheduler(["cpu", "cpu"]) as s:

        async def run(number: int) -> tuple[int, tuple[list[float], list[float]]]:
            x = await s.put(np.array([[2.0, 1.0], [1.0, 3.0]]))
            x.requires_grad = True
            y = x * 1
            calls, z = at_calls({number: partial(y.__setitem__, 1, 7.0)}, lambda: function(y))
            z.sum().backward()
            return calls, ((await z).tolist(), (await x.grad).tolist())

        calls, without = await run(10_000)
        _, before = await run(0)
        assert before != without
        assert calls > 5
        for number in range(1, calls):
            assert (await run(number))[1] in (before, without), number


@pytest.mark.drops_at_once
async def test_memory_errors_leave_the_pools_count_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise MemoryError("none is left")

    async with asc.Scheduler("cpu", streams=1) as s:
        x = await s.put(np.ones(200_000))
        pool = s.devices[0].memory.pool
        before = pool.live
        with monkeypatch.context() as patched:
            patched.setattr(host_memory, "_new_array", full)
            for _ in range(12):
                with pytest.raises(MemoryError):
                    await (x * 2.5).sum()
        await (x * 2.5).sum()
        pool.give(pool.take(64))
        assert pool.live - 64 <= before


async def test_a_result_that_an_interrupt_made_void_leaves_the_pools_count_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It came when the result had its buffer; and the result dies in a cycle."""

    finish = execution.finish

    def interrupted(task: Any, value: Any, *rest: Any) -> None:
        finish(task, value, *rest)
        if not value.meta.known:
            raise KeyboardInterrupt

    async with asc.Scheduler("cpu", streams=1) as s:
        x = await s.put(np.ones(40_000))
        await s.barrier()
        pool, before = s.devices[0].memory.pool, s.statistics().bytes_retained
        given_out = live(pool)
        with monkeypatch.context() as patched:
            patched.setattr(execution, "finish", interrupted)
            y = x[x > 0]
            with pytest.raises(KeyboardInterrupt):
                await y
        in_an_object(y, [])
        del y
        gc.collect()
        assert (live(pool), s.statistics().bytes_retained) == (given_out, before)


async def test_a_stream_whose_thread_dies_says_so_to_all(monkeypatch: pytest.MonkeyPatch, gate: Any) -> None:
    async with asc.Scheduler("cpu", streams=2, max_ops=2) as s:
        stuck = s.submit_nowait(held, gate)  # on the other stream
        await until(lambda: s.statistics().tasks_in_flight == 1)
        dying = next(one for one in s.devices[0].streams if one.finished.count == one.launched)

        def step() -> None:
            raise ZeroDivisionError("no")

        monkeypatch.setattr(dying.finished, "step", step)
        _first, *others = [s.submit_nowait(int) for _ in range(3)]  # whose result was there
        for task in (*others, stuck):
            with pytest.raises(asc.SchedulerClosed, match="has ended by ZeroDivisionError: no"):
                await asyncio.wait_for(task, 20)
        gate.set()
        with pytest.raises(asc.SchedulerClosed):
            await s.submit(int)


async def test_a_drop_that_cannot_be_reported_closes_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asc.Scheduler("cpu") as s:
        x = await s.put(np.ones(200_000))

        def fail(block: Any) -> None:
            raise RecursionError

        monkeypatch.setattr(s.devices[0].memory, "give", fail)
        del x
        await s.barrier()
        with pytest.raises(asc.SchedulerClosed, match="RecursionError came in the middle"):
            await s.submit(int)
        assert s.statistics().bytes_retained == 0
