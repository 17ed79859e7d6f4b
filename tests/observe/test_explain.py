"""`s.explain`: each thing that a task may wait for is named, and nothing is changed by asking."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn, optim
from asyncsched.devices.sim import SimDevice
from asyncsched.runtime.explain import explain
from tests.ledger import engine_of, runtime_of, value_of
from tests.processes import fresh
from tests.validate import validate
from tests.waiting import cancelled, fail, held, outside, settled, turns, until

HERE = __file__


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def here(back: int = 1) -> str:
    """The line before the one that calls this, as it is told."""
    frame = sys._getframe(1)
    return f"{HERE}:{frame.f_lineno - back} in {frame.f_code.co_name}"


async def test_down_from_an_input_to_a_body_that_runs(gate):
    async with asc.Scheduler("cpu", max_ops=1) as s:
        slow = await s.submit(held, gate, name="slow")
        slow_line = here()
        await until(lambda: "now at" in s.explain(slow))
        s.submit_nowait(pow, 2, 3)
        pow_line = here()
        x = s.submit_nowait(np.ones, 3, shape=(3,), dtype=float)
        x_line = here()
        y = x + 1
        y_line = here()
        *found, last = lines(s.explain(y))
        assert found == [
            f"add #3 ({y_line}) is pending",
            f"which waits for an input: ones #2 ({x_line})",
            f"which is behind 1 other in the queue of the scheduler, whose head is: pow #1 ({pow_line})",
            f"which waits for a slot: 1 of 1 tasks (max_ops) are in flight, the oldest: slow #0 ({slow_line})",
        ]
        assert last.startswith("which runs on cpu stream 0, now at ")
        first, runs = lines(s.explain(slow))
        assert first == f"slow #0 ({slow_line}) is launched"
        assert runs.partition(", inside ")[0] == last.partition(", inside ")[0]
        gate.set()


@pytest.mark.one_loop
async def test_where_a_body_is(gate):
    def body() -> None:
        assert gate.wait(60)

    async with asc.Scheduler("cpu") as s:
        task = await s.submit(body)
        place = f", now at {HERE}:{body.__code__.co_firstlineno + 1} in test_where_a_body_is.<locals>.body"
        await until(lambda: f"{place}, inside " in s.explain(task))
        gate.set()


async def test_behind_others_on_a_stream(gate):
    async with asc.Scheduler("cpu", streams=1) as s:
        await s.submit(held, gate, name="slow")
        line = here()
        for _ in range(2):
            s.submit_nowait(pow, 2, 3)
        found = lines(s.explain(s.submit_nowait(pow, 2, 4)))
        assert found[1] == f"which is launched on cpu stream 0 behind 3 others, the first: slow #0 ({line})"
        assert found[2].startswith("which runs on cpu stream 0")
        gate.set()


async def test_an_input_on_another_stream_and_a_copy(gate):
    async with asc.Scheduler(["cpu", "cpu"]) as s:
        x = await s.submit(held, gate, np.ones(3), shape=(3,), dtype=float, name="slow")
        line = here()
        found = lines(s.explain(x.to("cpu:1")))
        expected = f"which is the next on cpu:1 copies, and waits for an input on another stream: slow #0 ({line})"
        assert found[1] == expected
        assert found[2].startswith("which runs on cpu:0 stream 0")
        gate.set()


async def test_bytes_that_a_coroutine_holds():
    async with asc.Scheduler("cpu", max_bytes=10_000) as s:

        async def holder() -> None:
            kept = await s.put(np.ones(1000))
            await release.wait()
            del kept

        release = asyncio.Event()
        task = asyncio.ensure_future(holder())
        await until(lambda: s.statistics().bytes_retained)
        waiting = asyncio.ensure_future(s.put(np.ones(500)))
        await until(lambda: s.statistics().tasks_pending)
        who, first, held_by, acts, cure = lines(s.explain())[1:]
        assert who.startswith(f"task {waiting.get_name()!r}, which waits in ")
        assert "put #1 (" in who
        free = "8,000 of 10,000 are taken, and nothing in flight will free any"
        assert first == f"which waits for 4,000 bytes: {free}"
        assert f"8,000 bytes created at {HERE}:{holder.__code__.co_firstlineno + 1} in holder: held by" in held_by
        assert f"(variable 'kept'), which waits at {HERE}:{holder.__code__.co_firstlineno + 2}" in held_by
        assert acts.startswith("(what may still act: ")
        assert cure == "(a limit of 12,000 bytes would have been enough for all waiting tasks)"
        release.set()
        await asyncio.gather(task, waiting)


MUCH = [[number] for number in range(30_000)]
KEPT: list[asc.Tensor] = []


async def test_bytes_that_a_module_holds():
    """Beside much that is none."""
    async with asc.Scheduler("cpu", max_bytes=10_000) as s:
        KEPT.append(await s.put(np.ones(1000)))
        waiting = asyncio.ensure_future(s.put(np.ones(500)))
        await until(lambda: s.statistics().tasks_pending)
        held_by = lines(s.explain())[3]
        assert held_by == f"8,000 bytes created at {here(4)}: held by module {__name__} (variable 'KEPT')"
        KEPT.clear()
        await waiting


async def test_bytes_that_who_asks_holds():
    """No look at what refers to what shows the variables of a function that runs."""
    async with asc.Scheduler("cpu", max_bytes=10_000) as s:

        def asks(given: list[asc.Tensor]) -> str:
            return s.explain()

        async def asker() -> tuple[str, str]:
            kept = await s.put(np.ones(1000))
            waiting = asyncio.ensure_future(s.put(np.ones(500)))
            await until(lambda: s.statistics().tasks_pending)
            first, box = s.explain(), [kept]
            del kept
            second = asks([box.pop()])
            await waiting
            return first, second

        first, second = await asker()
        assert "(variable 'kept'), which asks at " in first
        assert "(variable 'given'), which asks at " in second
        assert "unseen" not in first + second


async def test_bytes_in_flight_and_reserved(gate):
    async with asc.Scheduler("cpu", max_bytes=10_000) as s:
        slow = await s.submit(held, gate, nbytes=2000, name="slow")
        line = here()
        async with s.scope(name="request 7", reserve=6000) as scope:
            kept = await s.put(np.ones(500))  # from the reserve of the scope
            inside = scope.submit_nowait(pow, 2, 3, nbytes=3000)
            taken = "4,000 of 6,000 of the reserve of scope 'request 7' are taken, and nothing in flight will free any"
            assert lines(s.explain(inside))[1] == f"which waits for 3,000 bytes: {taken}"
            assert "4,000 bytes created at" in s.explain(inside)
            inside.cancel()
            with outside():
                more = s.submit_nowait(pow, 2, 3, nbytes=3000)
            found = lines(s.explain(more))
            assert found[1:3] == [
                "which waits for 3,000 bytes: 8,000 of 10,000 are taken",
                "2,000 bytes: 1 task in flight; a task gives back what its result does not keep",
            ]
            assert found[3].startswith("6,000 bytes reserved by scope 'request 7': held by task")
            assert found[-2] == f"and for those in flight, the oldest: slow #0 ({line})"
            assert found[-1].startswith("which runs on cpu stream 0")
            found = lines(await asyncio.to_thread(explain, runtime_of(s), value_of(more)))  # which searches for nobody
            assert found[3:5] == [
                "6,000 bytes reserved by scope 'request 7'",
                "2,000 bytes in results and tasks in flight",
            ]
            del kept
        gate.set()
        await asc.gather(slow, more)


async def test_a_failure_is_told_and_not_seen(s):
    task = await settled(s.submit_nowait(fail, "no such thing"))
    line = here()
    x = await settled(s.submit_nowait(np.negative, task))
    after = here()
    assert lines(s.explain(x)) == [
        f"negative ({after}) failed",
        "LookupError: no such thing",
        f"raised by the task 'fail', submitted at {line}",
        f"reached through negative <- fail; the last was submitted at {after}",
    ]
    with pytest.raises(ExceptionGroup) as caught:
        await s.barrier()
    assert len(caught.value.exceptions) == 1


async def test_a_cancelled_one_that_still_runs(s, gate):
    task = await s.submit(held, gate, name="slow")
    line = here()
    await until(lambda: "now at" in s.explain(task))
    task.cancel()
    first, why, cure, body, runs = lines(s.explain(task))
    assert (first, why, cure) == (
        f"slow ({line}) was cancelled",
        "asyncsched.errors.TaskCancelled: slow was cancelled by cancel()",
        "cause and cure: `python -m asyncsched explain TaskCancelled`",
    )
    assert body == "its body has not ended, and keeps its slot and bytes until then"
    assert runs.startswith("which runs on cpu stream 0")
    gate.set()


async def test_one_that_is_done(s):
    x = await s.put(np.ones(3))
    line = here()
    assert s.explain(x) == f"done: made by a task of {line}; 24 bytes on cpu are charged for it"
    assert s.explain(x[1:]).endswith("a view of 24 bytes on cpu")
    y = x + 1
    assert s.explain(y).startswith("done: made at once, on the event loop's thread; 24 bytes")
    kept = await y
    assert s.explain(y).endswith(", also while you hold only the array that was given out")
    del kept


async def test_waits_for_something_of_the_program_s_own(s):
    """A queue that nobody fills, an event that nobody sets, and other tasks."""
    queue, never = asyncio.Queue[int](), asyncio.Event()

    async def reads() -> int:
        return await queue.get()

    async def other() -> None:
        async with s.window(2):
            await readers[0]

    async def generator():
        await never.wait()
        yield 1

    async def consumes() -> None:
        async for _ in generator():
            pass

    readers = [asyncio.create_task(reads(), name=name) for name in ("left", "right")]
    others = [asyncio.create_task(made, name=name) for name, made in (("a", other()), ("b", consumes()))]

    def at(number, function, line):
        code = function.__code__
        return f"{number} x a task waits at {HERE}:{code.co_firstlineno + line} in {code.co_qualname}"

    await turns()
    first, most, *rest = lines(s.explain())[1:]
    assert first.endswith("if the program hangs, it waits for something else (a queue, an event, a lock)")
    assert most == at(2, reads, 1)
    assert {*rest} == {at(1, other, 2), at(1, generator, 1)}
    for task in (*others, *readers):
        await cancelled(task)


async def test_who_waits(s, gate):
    assert lines(s.explain())[1].startswith("nothing is unfinished, and nobody waits for a task")
    task = await s.submit(held, gate, name="slow")
    assert "nobody waits; the oldest unfinished task: slow #0 (" in s.explain()

    async def waits() -> None:
        await task

    waiting = [asyncio.ensure_future(waits()) for _ in range(3)]
    await asyncio.sleep(0)
    status, who, *_ = lines(s.explain())
    assert status == repr(s)
    place = f"{HERE}:{waits.__code__.co_firstlineno + 1} in test_who_waits.<locals>.waits"
    assert who.startswith(f"task {waiting[0].get_name()!r}, which waits at {place}, and 2 more: slow #0 (")
    for one in waiting:
        await cancelled(one)
    gate.set()


async def test_a_commit(s, gate):
    model = nn.Linear(3, 2, rng=0)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    await s.barrier()
    x = await s.submit(held, gate, np.ones((4, 3), np.float32), shape=(4, 3), dtype=np.float32, name="slow")
    model(x).sum().backward()
    optimizer.step()
    found = s.explain(next(iter(model.parameters())))
    assert "part of the commit 'step()'" in found
    assert "slow #" in found
    gate.set()


async def test_what_is_recorded_has_no_value(s):
    told: list[str] = []

    def step(x: asc.Tensor) -> asc.Tensor:
        y = x + 1
        told.append(s.explain(y))
        return y

    await s.capture(step, await s.put(np.ones(3)))
    assert "CaptureError" in told[0]


@pytest.mark.one_loop
async def test_a_chain_of_many_is_told_by_its_ends_and_nothing_changes(gate):
    async with asc.Scheduler("cpu", max_ops=1, max_pending=None) as s:
        await s.submit(held, gate)
        x = first = asc.ones(1)
        for _ in range(20_000):
            x = x + 1
        before = s.statistics()
        found = lines(s.explain(x))
        after = s.statistics()
        validate(engine_of(s))
        assert first.cancel()  # and all that needs it
        gate.set()
    assert after == before
    assert len(found) == 11
    assert found[4] == "... 19,993 more, each of which waits for the next ..."
    assert found[-1].startswith("which runs on")


@pytest.mark.one_loop
@pytest.mark.parametrize("seed", range(6))
async def test_at_any_moment_of_anything(seed):
    """Whatever state tasks are in, on a device of adversarial order: something is told, and nothing changed by it."""
    chance = random.Random(seed)
    with contextlib.suppress(ExceptionGroup):
        async with asc.Scheduler(SimDevice(seed, 2, fault_rate=0.05), max_ops=3, max_bytes=4_000) as s:
            known = [await settled(s.put_nowait(np.ones(20)))]
            for _ in range(60):
                x, y = chance.choices(known, k=2)
                match chance.randrange(5):
                    case 0 | 1:
                        known.append(x + y)
                    case 2:
                        known.append(s.submit_nowait(np.negative, x, shape=20, dtype=float))
                    case 3:
                        known.pop(chance.randrange(len(known))).cancel() if len(known) > 3 else None
                    case 4:
                        await asyncio.sleep(0)
                before = s.statistics()
                assert s.explain(chance.choice(known))
                assert s.explain().startswith("Scheduler(sim; ")
                assert len(s.graph()) >= before.tasks_pending
                assert s.statistics() == before
                validate(engine_of(s))
            del x, y
            known.clear()


async def test_what_cannot_be_explained(s):
    with pytest.raises(TypeError, match="not int"):
        s.explain(3)
    async with asc.Scheduler("cpu") as other:
        x = await other.put(np.ones(3))
        with pytest.raises(ValueError, match="another scheduler"):
            s.explain(x)
    assert "done" in other.explain(x)  # when it is closed, too


async def test_the_chain_of_awaits_leads_to_the_wait(s, gate):
    """What debuggers and `asyncio.Task.get_coro` show of a task that awaits a tensor."""
    task = await s.submit(held, gate)

    async def inner() -> None:
        await task

    async def outer() -> None:
        await inner()

    waiting = asyncio.ensure_future(outer())
    await asyncio.sleep(0)
    names, step = [], waiting.get_coro()
    while step is not None and hasattr(step, "__qualname__"):
        names.append(step.__qualname__.rpartition(".")[2])
        step = getattr(step, "cr_await", None) or getattr(step, "gi_yieldfrom", None)
    assert names == ["outer", "inner", "__await__", "wait"]
    gate.set()
    await waiting


def test_a_coroutine_that_runs_may_ask_again_and_again():
    code = """
import asyncio
import asyncsched as asc

class Asks:  # CPython cannot specialise its call
    def __init__(self, s):
        self.s = s
    def __call__(self):
        return self.s.explain()

async def main():
    async with asc.Scheduler("cpu", streams=1) as s:
        asks = Asks(s)
        for _ in range(1000):
            asks()
    print("the end")

asyncio.run(main())
"""
    assert fresh(code) == "the end\n"
