"""Deadlocks in every form in which a program waits: found, found soon, told once for all, and laid to nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import anyio
import numpy as np
import pytest

import asyncsched as asc
from asyncsched.runtime import deadlock
from tests.ledger import engine_of
from tests.waiting import cancelled, turns, until

BLOCK = np.ones((100, 100))
NB = BLOCK.nbytes
LIMIT = 4 * NB


# -- what waits, and what holds ------------------------------------------------------------------------------------


async def gathered(s: asc.Scheduler) -> None:
    await asyncio.gather(*[s.put(BLOCK) for _ in range(6)])


async def gathered_with_exceptions(s: asc.Scheduler) -> None:
    results = await asyncio.gather(*[s.put(BLOCK) for _ in range(6)], return_exceptions=True)
    assert [isinstance(result, asc.MemoryDeadlockError) for result in results] == [False] * 4 + [True] * 2
    raise results[-1]  # type: ignore[misc]


async def first_error_pins_the_rest(s: asc.Scheduler) -> None:
    async def greedy() -> None:
        held = [await s.put(BLOCK)]
        for _ in range(3):
            held.append(await s.put(BLOCK))

    results = await asyncio.gather(*[greedy() for _ in range(4)], return_exceptions=True)
    raise next(result for result in results if result is not None)


async def in_a_task_group(s: asc.Scheduler) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(s.put(BLOCK)) for _ in range(6)]
    del tasks


async def in_anyio_tasks(s: asc.Scheduler) -> None:
    held: list[asc.Tensor] = []

    async def put() -> None:
        held.append(await s.put(BLOCK))

    with anyio.CancelScope():
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(put)


async def one_after_the_other(s: asc.Scheduler) -> None:
    for task in [asyncio.create_task(s.put(BLOCK)) for _ in range(6)]:
        await task


async def waited_for(s: asc.Scheduler) -> None:
    tasks = [asyncio.create_task(s.put(BLOCK)) for _ in range(6)]
    await asyncio.wait(tasks)
    errors = [task.exception() for task in tasks]
    raise next(error for error in errors if error is not None)


async def cancelled_and_kept(s: asc.Scheduler) -> None:
    async def hold() -> None:
        held = [await s.put(BLOCK) for _ in range(4)]
        try:
            await asyncio.Event().wait()
        finally:
            held.append(held[0])

    task = asyncio.create_task(hold())
    await until(lambda: s.statistics().bytes_retained == LIMIT)
    await turns()
    task.cancel()
    await asyncio.wait([task])
    await s.put(BLOCK)


async def an_exception_is_kept(s: asc.Scheduler) -> None:
    kept: list[Exception] = []

    async def fail() -> None:
        held = [await s.put(BLOCK) for _ in range(4)]
        raise LookupError(len(held))

    try:
        await fail()
    except LookupError as error:
        kept.append(error)
    await s.put(BLOCK)


async def a_generator_has_them(s: asc.Scheduler) -> None:
    def blocks(tensors: list[asc.Tensor]) -> Iterator[asc.Tensor]:
        yield from tensors

    for _ in blocks([await s.put(BLOCK) for _ in range(4)]):
        await s.put(BLOCK)


async def an_async_generator_has_them(s: asc.Scheduler) -> None:
    async def blocks() -> AsyncIterator[asc.Tensor]:
        held = [await s.put(BLOCK) for _ in range(4)]
        for tensor in held:
            yield tensor

    async with contextlib.aclosing(blocks()) as tensors:
        async for _ in tensors:
            await s.put(BLOCK)


async def issued_ahead(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    keep = [x + i for i in range(9)]
    await keep[-1]


async def numbers_and_copies_to_come(s: asc.Scheduler) -> None:
    """A task that runs what `x.numpy()` gives has no line of the user's; who waits for it has."""
    x = await s.put(BLOCK)
    keep = [x + i for i in range(9)]
    await asyncio.gather(*[y.numpy() for y in keep], asyncio.create_task(keep[-1][0, 0].item()))


async def numbers_and_copies_gathered(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    keep = [x + i for i in range(9)]
    await asc.gather(*[y.numpy() for y in keep], *[y[0, 0].item() for y in keep])


async def in_a_scope_with_a_reserve(s: asc.Scheduler) -> None:
    async with s.scope(reserve=3 * NB) as scope:
        await asyncio.gather(*[scope.put(BLOCK) for _ in range(4)])


async def one_waits_for_the_other(s: asc.Scheduler) -> None:
    """`main` holds, and waits for a task that waits for a task that is stuck."""
    held = [await s.put(BLOCK) for _ in range(4)]

    async def inner() -> None:
        await asyncio.create_task(s.put(BLOCK))

    await asyncio.wait_for(asyncio.gather(asyncio.create_task(inner())), None)
    del held


Form = Callable[[asc.Scheduler], Coroutine[Any, Any, None]]
FORMS: list[Form] = [
    gathered, gathered_with_exceptions, first_error_pins_the_rest, in_a_task_group, in_anyio_tasks, one_after_the_other,
    waited_for, cancelled_and_kept, an_exception_is_kept, a_generator_has_them, an_async_generator_has_them,
    issued_ahead, in_a_scope_with_a_reserve, one_waits_for_the_other, numbers_and_copies_to_come,
    numbers_and_copies_gathered,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
async def test_a_deadlock_names_the_users_line(looks: list[deadlock.Finding], form: Form) -> None:
    errors: list[str] = []

    async def attempt(s: asc.Scheduler) -> None:
        try:
            await form(s)
        except* asc.MemoryDeadlockError as group:
            errors.append(str(group.exceptions[0]))
            # What the frames held is free again, or this would be the next deadlock.

    async with asc.Scheduler("cpu", max_bytes=LIMIT) as s:
        await asyncio.create_task(attempt(s))
        await (await s.put(BLOCK))  # it goes on
    (text,) = errors
    assert "outside" not in text
    assert f"{__file__}:" in text
    assert "asyncio/" not in text
    assert form.__name__ in text


@pytest.mark.parametrize("form", [gathered, one_after_the_other, waited_for, issued_ahead], ids=lambda f: f.__name__)
async def test_leaving_the_scheduler_in_a_deadlock_ends(looks: list[deadlock.Finding], form: Form) -> None:
    """It waits for what is pending, which waits for what is held here."""
    async with contextlib.AsyncExitStack() as stack:
        s = await stack.enter_async_context(asc.Scheduler("cpu", max_bytes=LIMIT))
        task = asyncio.create_task(form(s))
        await until(lambda: engine_of(s).admission.stuck())
        await s.aclose()
        with pytest.raises(asc.MemoryDeadlockError):
            await task


async def test_a_deadlock_that_nobody_awaited_is_raised_once_at_the_end(looks: list[deadlock.Finding]) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with asc.Scheduler("cpu", max_bytes=LIMIT) as s:
            x = await s.put(BLOCK)
            keep = [x + i for i in range(40)]
    (error,) = caught.value.exceptions
    assert isinstance(error, asc.MemoryDeadlockError)
    assert "and 36 more tasks wait" in str(error)
    assert len(looks) == 1
    assert keep[-1].exception() is not None
    assert s.statistics().tasks_failed == 37


SMALL = np.ones(100)
KEPT: dict[str, Callable[[asc.Tensor], Any]] = {
    "tensor": lambda x: x,
    "list": lambda x: [x],
    "view": lambda x: x[1:],
    "array": lambda x: x.result(),
    "view of the array": lambda x: x.result()[1:],
}


@pytest.mark.parametrize("kept", KEPT)
async def test_of_hundreds_that_hold_and_wait_one_fails(looks: list[deadlock.Finding], kept: str) -> None:
    n, errors = 300, []

    async def work(s: asc.Scheduler) -> None:
        mine = KEPT[kept](await s.put(SMALL))
        try:
            await s.put(SMALL)
        except asc.MemoryDeadlockError as error:
            errors.append(str(error))
        del mine

    async with asc.Scheduler("cpu", max_bytes=n * SMALL.nbytes) as s, asyncio.TaskGroup() as group:
        for _ in range(n):
            group.create_task(work(s))
    (text,) = errors
    assert looks[0].deadlock
    assert "held by coroutine" in text
    assert "(variable 'mine'" in text
    assert f"{(n - 8) * SMALL.nbytes:,} bytes in further results" in text


async def test_those_that_hold_most_are_named_first(looks: list[deadlock.Finding]) -> None:
    sizes = [1, 2, 3, 4, 5, 6, 7, 8, 10, 20]  # in thousands: as text, "20,000" comes before "3,000"
    async with asc.Scheduler("cpu", max_bytes=sum(sizes) * 1000) as s:
        kept = [await s.put(np.zeros(size * 1000, np.int8)) for size in sizes]
        with pytest.raises(asc.MemoryDeadlockError) as caught:
            await s.put(BLOCK[0])
    lines = str(caught.value).splitlines()[1:10]
    assert [line.split()[0] for line in lines[:8]] == [f"{size},000" for size in sorted(sizes)[:1:-1]]
    assert lines[8] == "  3,000 bytes in further results, reserved by open scopes, or not found"
    del kept


def keeping(kept: list[Any]) -> Callable[..., list[Any]]:
    """A function that keeps something in its closure, as one with a memory of its own does."""
    return lambda *more: kept.extend(more) or kept


ELSEWHERE: list[Any] = []  # a module's variable
keeps = keeping([])


# -- what others hold, and who they are ------------------------------------------------------------------------------


async def test_a_few_bytes_elsewhere_hide_no_deadlock(looks: list[deadlock.Finding]) -> None:
    async with asc.Scheduler("cpu", max_bytes=LIMIT - 1) as s:
        ELSEWHERE.append(await s.put(np.arange(12.0)))
        kept = []
        with pytest.raises(asc.MemoryDeadlockError) as caught:
            while True:
                kept.append(await s.put(BLOCK))
        assert len(kept) == 3
        ELSEWHERE.clear()
        kept.clear()
    assert re.search(r"  96 bytes created at .*: held by module tests.runtime.test_deadlock", str(caught.value))
    assert [finding.deadlock for finding in looks] == [True]


async def test_what_a_modules_function_remembers_is_named() -> None:
    async with asc.Scheduler("cpu", max_bytes=LIMIT, stall_timeout=0.1) as s:
        with pytest.raises(asc.SchedulerStalled) as caught:
            while True:
                keeps(await s.put(BLOCK))
        keeps().clear()
    assert "held by module tests.runtime.test_deadlock (variable 'keeps')" in str(caught.value)


async def test_a_coroutine_that_waits_in_a_reserve_holds_it(looks: list[deadlock.Finding]) -> None:
    """The bytes of a reserve that others cannot use are held by the coroutine that will leave the scope."""
    async with asc.Scheduler("cpu", max_bytes=LIMIT) as s:
        root, entered = engine_of(s).root, asyncio.Event()

        async def caller() -> None:
            async with s.scope(reserve=2 * NB):
                await entered.wait()
                await waits  # which is the root scope's

        callers = [asyncio.create_task(caller()) for _ in range(2)]
        await until(lambda: len(root.children) == 2 and s.statistics().bytes_reserved == LIMIT)
        waits = s.submit_nowait(int, nbytes=NB)
        entered.set()
        found = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(error) for error in found] == [asc.MemoryDeadlockError] * 2
    assert str(found[0]).count(f"{2 * NB:,} bytes reserved by scope") == 2
    found.clear()


async def test_results_in_a_queue_raise_once_and_name_a_reserve_that_works(looks: list[deadlock.Finding]) -> None:
    async def work(reserve: int | None, ahead: int | None, first: str) -> int:
        queue: asyncio.Queue[asc.Tensor | None] = asyncio.Queue()

        async def produce(s: asc.Scheduler) -> None:
            async with s.scope(reserve=ahead):
                for _ in range(50):
                    await queue.put(await s.put(BLOCK))
                await queue.put(None)

        async def consume(s: asc.Scheduler) -> int:
            async with s.scope(reserve=reserve):
                done, mean = 0, None
                await until(lambda: reserve or s.statistics().tasks_pending)  # all of it lies in the queue
                while (x := await queue.get()) is not None:
                    mean = await ((x * 2 + 1) / 3).mean()
                    done += 1
                assert mean == 1
                return done

        async with asc.Scheduler("cpu", max_bytes=16 * NB) as s, asyncio.TaskGroup() as group:
            if first == "producer":
                group.create_task(produce(s))
                await turns()  # it reserves first
            consumer = group.create_task(consume(s))
            if first == "consumer":
                await turns()
                group.create_task(produce(s))
        return consumer.result()

    with pytest.raises(ExceptionGroup) as caught:
        await work(None, None, "producer")
    (text,) = {str(error) for error in caught.value.exceptions}
    assert re.search(r"\n  \d+ x 80,000 bytes created .*: held by .*\(variable 'queue'\)", text)
    total = sum(int(times or 1) * int(nbytes.replace(",", "")) for times, nbytes in HELD.findall(text))
    assert total == int(re.search(r"and ([\d,]+) of the", text)[1].replace(",", ""))  # type: ignore[index]
    reserve = int(re.search(r"reserve=(\d+)", text)[1])  # type: ignore[index]
    assert [await work(reserve, 16 * NB - reserve, first) for first in ("consumer", "producer")] == [50, 50]


HELD = re.compile(r"^  (?:(\d+) x )?([\d,]+) bytes", re.MULTILINE)


# -- one stall tells all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [15, 300])
async def test_one_look_fails_all_tasks_issued_ahead(looks: list[deadlock.Finding], n: int) -> None:
    async with asc.Scheduler("cpu", max_bytes=LIMIT) as s:
        x = await s.put(BLOCK)
        keep = [x + i for i in range(n)]
        with pytest.raises(asc.MemoryDeadlockError, match=f"and {n - 4} more tasks wait") as caught:
            await keep[-1]
        assert caught.value.needed == (n + 1) * NB
        for number, t in enumerate(keep):
            if number < 3:
                await t
            else:
                with pytest.raises(asc.MemoryDeadlockError):
                    await t
        await s.barrier()  # the cause was seen
        assert len(looks) == 1
        notes = caught.value.__notes__
        del caught, keep, t
    assert any("ended for the same reason" in note for note in notes)


async def test_tens_of_thousands_of_tasks_fail_at_once(looks: list[deadlock.Finding]) -> None:
    n = 20_000
    async with asc.Scheduler("cpu", max_bytes=LIMIT) as s:
        x = await s.put(BLOCK)
        keep = [x + i for i in range(n)]
        with pytest.raises(asc.MemoryDeadlockError, match=f"and {n - 4:,} more tasks wait"):
            await keep[-1]
        assert s.statistics().tasks_failed == n - 3
        await s.barrier()  # all have the one cause, which was seen


@pytest.mark.parametrize("n", [2, 40])
async def test_the_limit_that_is_named_suffices_for_all_that_waits(looks: list[deadlock.Finding], n: int) -> None:
    async def work(limit: int) -> None:
        async with asc.Scheduler("cpu", max_bytes=limit) as s:
            x = await s.put(BLOCK)
            keep = [x + i for i in range(n)]
            y = x
            for _ in range(n):
                y = y * 1.5  # needs two at a time, and holds one
            z = asc.concat([*keep, y])
            await z

    limit = (n + 3) * NB  # enough for the result alone with what it reads, were it not for what is held besides
    with pytest.raises(asc.MemoryDeadlockError) as caught:
        await work(2 * n * NB + 2 * NB)
    needed, suggested = caught.value.needed, caught.value.suggested_limit
    assert needed is not None
    assert suggested is not None
    assert limit < needed <= (2 * n + 5) * NB
    del caught
    await work(needed)
    await work(suggested)


async def test_trying_one_task_after_the_other_fails_in_a_few_looks(looks: list[deadlock.Finding]) -> None:
    async with asc.Scheduler("cpu", max_bytes=LIMIT) as s:
        x = await s.put(BLOCK)
        keep = [x + i for i in range(60)]
        failed = 0
        for t in keep:
            try:
                await t
            except asc.MemoryDeadlockError:
                failed += 1
        assert failed == 57
        assert len(looks) <= 3
        del keep, t


async def test_gathering_exceptions_ends_in_a_few_looks(looks: list[deadlock.Finding]) -> None:
    async with asc.Scheduler("cpu", max_bytes=LIMIT) as s:
        results = await asyncio.gather(*[s.put(BLOCK) for _ in range(67)], return_exceptions=True)
        assert sum(isinstance(result, asc.MemoryDeadlockError) for result in results) == 63
        assert 6 <= len(looks) < 30  # 1 + 2 + 4 + 8 + 16 + 32, and looks that came before those who were told
        results.clear()


@pytest.mark.usefixtures("looks")
async def test_how_many_fail_next_is_counted_for_each_account() -> None:
    """While many of one account fail, of two holders in another one fails, which lets the other go on."""

    async def wants(scope: asc.Scope) -> None:
        try:
            kept.append(await scope.put(BLOCK))
        except asc.MemoryDeadlockError as error:
            errors.append(str(error))
            if len(errors) == 3:
                three_failed.set()

    async def many(s: asc.Scheduler) -> None:
        async with s.scope(reserve=LIMIT) as scope, asyncio.TaskGroup() as group:
            for _ in range(40):
                group.create_task(wants(scope))
        kept.clear()

    async def greedy(scope: asc.Scope) -> str:
        mine = [await scope.put(BLOCK) for _ in range(2)]
        await both_hold.wait()
        try:
            await scope.put(BLOCK)
        except asc.MemoryDeadlockError:
            return "told"
        finally:
            mine.clear()
        return "done"

    kept, errors = list[asc.Tensor](), list[str]()
    three_failed, both_hold = asyncio.Event(), asyncio.Barrier(2)
    async with asc.Scheduler("cpu", max_bytes=2 * LIMIT) as s:
        others = asyncio.create_task(many(s))
        async with s.scope(reserve=LIMIT) as scope:
            await three_failed.wait()  # the next of the others are four
            ends = await asyncio.gather(greedy(scope), greedy(scope))
        assert sorted(ends) == ["done", "told"]
        await others
    assert len(errors) == 36


async def test_one_of_two_holders_goes_on(looks: list[deadlock.Finding]) -> None:
    """Each would go on if the other gave up: so one alone does."""
    block = np.ones((200, 200))  # too large for a copy at once, so both wait for theirs

    async def greedy(s: asc.Scheduler) -> bool:
        try:
            x = await s.put(block)
            keep = [x + i for i in range(3)]
            total = await asc.concat(keep).sum().item()
        except asc.MemoryDeadlockError:
            return False
        return bool(total == 6 * block.size)

    async with asc.Scheduler("cpu", max_bytes=7 * block.nbytes + 8) as s:
        results = await asyncio.gather(greedy(s), greedy(s))
    assert sorted(results) == [False, True]


async def test_no_more_fail_than_it_takes_to_free_bytes() -> None:
    """Nobody waits for the first, but what it alone held is free when it has failed."""
    async with asc.Scheduler("cpu", max_bytes=LIMIT, max_ops=1) as s:
        a, b, c = await s.put(BLOCK), await s.put(BLOCK), await s.put(BLOCK)
        wide = [asc.concat([a, b]), asc.concat([b, c])]
        del a, b, c
        assert (await wide[1]).shape == (200, 100)
        with pytest.raises(ExceptionGroup, match="1 task failed"):
            await s.barrier()


async def test_after_stall_timeout_all_waiters_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a module holds something, this is no deadlock as long as anything is left in the loop."""
    async with asc.Scheduler("cpu", max_bytes=LIMIT, stall_timeout=0.1) as s:
        ticking = asyncio.create_task(ticks())
        ELSEWHERE.extend([(await (await s.put(BLOCK)))[1:] for _ in range(4)])
        results = await asyncio.gather(*[s.put(BLOCK) for _ in range(15)], return_exceptions=True)
        assert {type(result) for result in results} == {asc.SchedulerStalled}
        text = str(results[0])
        results.clear()
        ELSEWHERE.clear()
        await s.put(BLOCK)
        await cancelled(ticking)
    assert "held by module tests.runtime.test_deadlock (variable 'ELSEWHERE')" in text
    assert re.search(rf"in awaited arrays, created at {__file__}:\d+", text)


async def ticks() -> None:
    while True:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("late", [False, True], ids=["soon", "late"])
async def test_a_deadlock_that_nobody_awaits_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Each task that fails frees its input, so the loop goes on to the next one, and awaits none of the failed.

    Late: the next search is due long after the time at which a stall is logged, as where one takes much time.
    """
    if late:
        monkeypatch.setattr("asyncsched.runtime.stall.RARE", 1e-6)
        monkeypatch.setattr("asyncsched.runtime.stall.FIRST_LOG", 0.7)
    async with asc.Scheduler("cpu", max_bytes=LIMIT, stall_timeout=1.0 if late else None) as s:
        kept = []
        with caplog.at_level(logging.WARNING, "asyncsched"):
            for _ in range(8):
                kept.append(asc.concat([await s.put(BLOCK[:50])] * 2))
        told = [record.getMessage() for record in caplog.records]
        kept.clear()
        with pytest.raises(ExceptionGroup):
            await s.barrier()
    assert len(told) == 1
    assert "variable 'kept'" in told[0]
    assert "nobody awaits" in told[0]
