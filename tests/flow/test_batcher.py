"""Batchers: what is computed together, what is dropped, and who is told what."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from anyio import from_thread, to_thread

import asyncsched as asc
from asyncsched.flow.batcher.batcher import Batcher
from tests.conftest import LOOPS
from tests.ledger import engine_of
from tests.waiting import no_collector, tasks_made_by, turns, until

from .asking import Model, Panic, ask
from .conftest import MakeTable


async def test_what_comes_in_one_turn_is_one_batch(model: Model) -> None:
    batcher = Batcher(model)
    assert await asyncio.gather(*ask(batcher, *range(5))) == [0, 10, 20, 30, 40]
    assert model.batches == [[0, 1, 2, 3, 4]]
    assert await batcher(7) == 70
    assert model.batches[1:] == [[7]]


async def test_a_batch_is_what_gathered_while_the_one_before_was_computed(model: Model) -> None:
    batcher = Batcher(model)
    model.gate.clear()
    first = ask(batcher, 0)
    await until(lambda: bool(model.batches))
    rest = ask(batcher, 1, 2)
    await until(lambda: batcher.statistics().waiting == 2)
    rest += ask(batcher, 3)
    await until(lambda: batcher.statistics().waiting == 3)
    assert model.batches == [[0]]
    assert repr(batcher) == "Batcher(Model, 3 waiting, 1 computing)"
    model.gate.set()
    assert await asyncio.gather(*first, *rest) == [0, 10, 20, 30]
    assert model.batches == [[0], [1, 2, 3]]


async def test_batches_are_bounded_by_cost_and_keep_the_order(model: Model) -> None:
    batcher = Batcher(model, max_batch_cost=10, cost=float)
    await asyncio.gather(*ask(batcher, 4, 6, 1, 10, 9, 2))
    assert model.batches == [[4, 6], [1], [10], [9], [2]]
    found = batcher.statistics()
    assert (found.items, found.answered, found.batches, found.largest_batch) == (6, 6, 5, 2)
    assert (found.waiting, found.waiting_cost, found.computing) == (0, 0, 0)
    with pytest.raises(asc.TaskTooLarge, match="costs 11, and a batch at most 10 "):
        await batcher(11)
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite number of at least 0"):
            await batcher(wrong)


async def test_several_batches_at_a_time(model: Model) -> None:
    model.gate.clear()
    batcher = Batcher(model, max_batch_cost=1, concurrency=2)
    asked = ask(batcher, *range(5))
    await until(lambda: len(model.batches) == 2)
    await turns(20)
    assert model.batches == [[0], [1]]
    model.gate.set()
    assert await asyncio.gather(*asked) == [0, 10, 20, 30, 40]


async def test_a_plain_function_runs_on_a_stream() -> None:
    threads: set[str] = set()

    def total(items: list[Any]) -> Any:
        threads.add(threading.current_thread().name)
        return np.stack(items).sum(axis=1)

    async with asc.Scheduler("cpu"):
        batcher: Batcher[Any, Any] = Batcher(total)
        assert [int(x) for x in await asyncio.gather(*ask(batcher, *np.eye(3, 4)))] == [1, 1, 1]
        assert await Batcher(partial(sorted, reverse=True))("b") == "b"
    assert threading.current_thread().name not in threads


async def test_a_result_is_taken_apart_on_the_stream(s: asc.Scheduler) -> None:
    """An array of JAX's compiles a program for that, which takes seconds."""
    threads: list[int] = []

    class Array(list[int]):
        def __iter__(self) -> Iterator[int]:
            threads.append(threading.get_ident())
            return super().__iter__()

    assert await Batcher(lambda items: Array([item * 10 for item in items]))(7) == 70
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_tensors_may_be_items_of_a_coroutine_function(s: asc.Scheduler) -> None:
    async def model(rows: list[asc.Tensor]) -> Any:
        return await asc.sum(asc.stack(rows), axis=1).numpy()

    x = await s.put(np.ones((2, 3)))
    assert await asyncio.gather(*ask(Batcher(model), x[0], x[1] * 2)) == [3, 6]


async def test_an_exception_among_the_results_goes_to_its_caller_alone() -> None:
    async with asc.Scheduler("cpu"):

        async def model(items: list[int]) -> list[Any]:
            return [ValueError("odd") if item % 2 else item for item in items] + []

        first, second, third = await asyncio.gather(*ask(Batcher(model), 0, 1, 2), return_exceptions=True)
        assert (first, third) == (0, 2)
        assert isinstance(second, ValueError)


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain"])
async def test_what_the_function_raises_goes_to_its_batch(plain: bool) -> None:
    def fails(items: list[Any]) -> list[Any]:
        if "bad" in items:
            raise LookupError("no such thing")
        return items

    async def fails_too(items: list[Any]) -> list[Any]:
        return fails(items)

    async with asc.Scheduler("cpu"):
        batcher: Batcher[Any, Any] = Batcher(fails if plain else fails_too, max_batch_cost=2)
        found = await asyncio.gather(*ask(batcher, "a", "bad", "b"), return_exceptions=True)
        assert [type(one) for one in found] == [LookupError, LookupError, str]
        assert batcher.statistics().answered == 3


class Table:
    """Its length is that of its rows, and iterating gives its columns, as with pandas."""

    def __init__(self, columns: str = "abc") -> None:
        self.columns = columns

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


class Frame(Table):
    """The same, with a shape."""

    @property
    def shape(self) -> tuple[int, int]:
        return 2, len(self.columns)


async def test_odd_results() -> None:
    async with asc.Scheduler("cpu"):
        for returned, error, text in (
            ([1], ValueError, "2 items and returned 1"),
            (None, TypeError, "one per item, not NoneType"),
            (np.array(1.0), TypeError, "one per item, not a single number"),
            ({1: "a", 2: "b"}, TypeError, "one per item, not dict"),
            ({"a", "b"}, TypeError, "one per item, not set"),
            (Table(), ValueError, "2 items and returned 3"),
            (Table("ab"), TypeError, "one per item, and not a Table"),
            (Frame("ab"), TypeError, "Frame, which iterates over its columns: give its rows, as by `to_numpy()`"),
            (Frame("abc"), TypeError, "Frame, which iterates over its columns"),
            (([1, 2], [3, 4]), TypeError, r"not tuple: `list(zip(*parts))`"),
            (([1, 2], [3, 4], 5), TypeError, "not tuple"),
            (b"ab", TypeError, "one per item, not bytes"),
            ([StopIteration(1), StopIteration(2)], RuntimeError, "StopIteration"),
            ([asyncio.CancelledError(), asyncio.CancelledError()], RuntimeError, "CancelledError"),
        ):

            async def model(items: list[Any], returned: Any = returned) -> Any:
                return returned

            for found in await asyncio.gather(*ask(Batcher(model), 1, 2), return_exceptions=True):
                assert isinstance(found, error)
                assert text in str(found)


class NoNotes(Exception):
    """Its notes are no list."""

    __notes__ = None  # type: ignore[assignment]


class Reads(Exception):
    """Asked for what it has not, it raises something else than AttributeError."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class Shut(Exception):
    """Nothing of it can be read while it is told to its callers."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "args"):
            raise LookupError(name)
        return super().__getattribute__(name)


class Unbound:
    """A proxy of nothing: asked for its class it raises."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("not bound")


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain"])
@pytest.mark.parametrize("returned", [False, True], ids=["raised", "returned"])
@pytest.mark.parametrize(
    ("error", "told"),
    [(NoNotes(), NoNotes), (Reads(), Reads), (Shut(), Exception), (GeneratorExit(), RuntimeError)],
    ids=["no notes", "reads", "shut", "GeneratorExit"],
)
async def test_whatever_comes_of_a_batch_every_caller_is_answered(
    s: asc.Scheduler, error: BaseException, told: type[Exception], returned: bool, plain: bool, isolate: bool
) -> None:
    def fails(items: list[Any]) -> list[Any]:
        if "bad" not in items:
            return items
        if returned:
            return [error for _ in items]
        raise error

    async def fails_too(items: list[Any]) -> list[Any]:
        return fails(items)

    batcher: Batcher[Any, Any] = Batcher(fails if plain else fails_too, isolate=isolate)
    found = await asyncio.gather(*ask(batcher, "bad", "bad"), return_exceptions=True)
    assert all(issubclass(type(one), told) for one in found)
    assert await batcher("good") == "good"
    assert batcher.statistics().computing == 0


async def test_a_result_is_not_asked_what_it_is(s: asc.Scheduler) -> None:
    async def model(items: list[Any]) -> list[Any]:
        return [Unbound() for _ in items]

    assert [type(one) for one in await asyncio.gather(*ask(Batcher(model), 1, 2))] == [Unbound, Unbound]


class Endless:
    """It has a length, and its items have no end."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index


async def test_results_without_an_end_are_refused(s: asc.Scheduler) -> None:
    async def model(items: list[Any]) -> Any:
        return Endless()

    with pytest.raises(ValueError, match="1 items and returned 3"):
        await Batcher(model)(1)


def factory(make: Callable[[Any], asyncio.Task[Any]]) -> AbstractContextManager[None]:
    """Has this loop's tasks made by a function that knows of no contexts."""

    def strict(loop: Any, coro: Any, *, context: None = None, eager_start: None = None) -> Any:  # uvloop gives both
        assert context is eager_start is None
        return make(coro)

    return tasks_made_by(strict)


async def test_a_task_factory_need_not_know_of_contexts(s: asc.Scheduler, model: Model) -> None:
    seen = contextvars.ContextVar("seen", default="the caller's")

    async def fn(items: list[Any]) -> list[Any]:
        return [seen.get() for _ in items]

    token = seen.set("the maker's")
    batcher: Batcher[Any, Any] = Batcher(fn)
    seen.reset(token)
    with factory(lambda coro: asyncio.Task(coro)):
        assert await asyncio.gather(*ask(batcher, 1, 2)) == ["the maker's"] * 2


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("failing", range(3))
async def test_a_task_factory_that_fails_once_fails_nobody_else(
    s: asc.Scheduler, failing: int, concurrency: int
) -> None:
    made = iter(range(99))

    def make(coro: Any) -> Any:
        if next(made) == failing:
            coro.close()
            raise OSError("no more tasks")
        return asyncio.Task(coro)

    async def model(items: list[Any]) -> list[Any]:
        if "bad" in items:
            raise LookupError
        return items

    async def ask_one(item: Any) -> Any:
        return await batcher(item)

    batcher: Batcher[Any, Any] = Batcher(model, isolate=True, concurrency=concurrency)
    asked = [asyncio.create_task(ask_one(item)) for item in ("bad", 1, 2)]
    with factory(make):
        await asyncio.wait(asked)
    for task, item in zip(asked, ("bad", 1, 2), strict=True):
        error = task.exception()
        assert isinstance(error, LookupError | OSError) if error is not None else task.result() == item
    assert await batcher("good") == "good"
    found = batcher.statistics()
    assert (found.waiting, found.computing) == (0, 0)


async def test_a_runner_that_is_cancelled_before_it_begins_tells_the_callers(s: asc.Scheduler, model: Model) -> None:
    def make(coro: Any) -> Any:
        task = asyncio.Task(coro)
        if coro.__qualname__ == "Runners._run":
            task.cancel()
        return task

    batcher = Batcher(model)
    asked = ask(batcher, 1, 2)
    with factory(make):
        found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in found] == [asyncio.CancelledError] * 2
    assert await batcher(3) == 30


async def test_each_batch_has_a_context_of_its_own_and_leaves_no_cancellation_to_the_next(s: asc.Scheduler) -> None:
    number = contextvars.ContextVar("number", default=0)

    async def model(items: list[Any]) -> list[Any]:
        task, before = asyncio.current_task(), number.get()
        assert task is not None
        count = task.cancelling()
        number.set(before + 1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        if items == ["cancelled"]:
            raise asyncio.CancelledError
        return [(before, count) for _ in items]

    batcher: Batcher[Any, Any] = Batcher(model, max_batch_cost=1)
    found = await asyncio.gather(*ask(batcher, 1, "cancelled", 2), return_exceptions=True)
    assert (found[0], type(found[1]), found[2]) == ((0, 0), asc.TaskCancelled, (0, 0))


async def test_a_function_that_cancels_itself_cancels_no_caller(s: asc.Scheduler) -> None:
    async def model(items: list[Any]) -> list[Any]:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await asyncio.sleep(0)
        return items

    batcher: Batcher[int, Any] = Batcher(model)
    for _ in range(2):
        with pytest.raises(asc.TaskCancelled, match="ended in a CancelledError"):
            await batcher(1)


async def test_a_cancellation_that_is_the_functions_own_cancels_no_caller() -> None:
    async with asc.Scheduler("cpu"):

        async def model(items: list[Any]) -> Any:
            raise asyncio.CancelledError

        batcher: Batcher[int, Any] = Batcher(model)
        with pytest.raises(asc.TaskCancelled, match="ended in a CancelledError"):
            await batcher(1)


async def test_failures_that_the_function_did_not_await_reach_its_callers(s: asc.Scheduler) -> None:
    async def model(items: list[Any]) -> Any:
        s.submit_nowait(lambda: 1 // 0)
        return items

    batcher: Batcher[int, Any] = Batcher(model)
    with pytest.raises(ExceptionGroup, match="nobody awaited"):
        await batcher(1)


@pytest.mark.parametrize("how", ["coroutine", "plain", "not awaited"])
async def test_what_is_no_exception_of_pythons_own_kind_reaches_the_callers_too(s: asc.Scheduler, how: str) -> None:
    def fails(items: list[Any]) -> list[Any]:
        if "bad" in items:
            raise Panic
        return items

    async def awaits_or_not(items: list[Any]) -> list[Any]:
        if how == "coroutine":
            return fails(items)
        s.submit_nowait(fails, items)
        return items

    batcher: Batcher[Any, Any] = Batcher(fails if how == "plain" else awaits_or_not, max_batch_cost=2)
    found = await asyncio.gather(*ask(batcher, "a", "bad", "b"), return_exceptions=True)
    assert [type(one) for one in found] == [BaseExceptionGroup if how == "not awaited" else Panic] * 2 + [str]


async def test_a_full_queue_refuses_at_once_and_says_how_long(model: Model) -> None:
    batcher = Batcher(model, max_batch_cost=1, max_queue=2)
    await batcher(0)
    model.gate.clear()
    asked = ask(batcher, 1)
    await until(lambda: len(model.batches) == 2)
    asked += ask(batcher, 2, 3)
    await until(lambda: batcher.statistics().waiting == 2)
    with pytest.raises(asc.QueueFull, match=r"2 items wait .*max_queue") as caught:
        await batcher(4)
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 0
    assert batcher.statistics().refused == 1
    model.gate.set()
    assert await asyncio.gather(*asked) == [10, 20, 30]
    assert await batcher(5) == 50


async def test_a_batcher_outlives_the_scope_that_it_was_made_in(s: asc.Scheduler, model: Model) -> None:
    async with s.scope(deadline=3600):
        batcher = Batcher(model)
        assert await batcher(1) == 10
    async with s.scope():
        assert await batcher(2) == 20


async def test_a_batch_runs_in_a_scope_of_its_own(s: asc.Scheduler) -> None:
    x = await s.put(np.ones(10_000))

    async def model(items: list[int]) -> Any:
        return [x + item for item in items]

    batcher: Batcher[int, asc.Tensor] = Batcher(model)
    y = None
    with pytest.raises(LookupError):
        async with s.scope():
            y = await batcher(1)
            raise LookupError  # cancels what is unfinished in the caller's scope
    assert y is not None
    assert (await y)[0] == 2


async def test_nothing_is_left_when_the_queue_is_empty(s: asc.Scheduler) -> None:
    model, before = Model(), asyncio.all_tasks()
    batcher = Batcher(model, concurrency=3)
    for _ in range(3):
        await asyncio.gather(*ask(batcher, *range(50)))
    await until(lambda: asyncio.all_tasks() == before)
    gc.collect()
    assert engine_of(s).root.children == {}
    assert s.statistics().bytes_retained == 0


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain"])
async def test_a_batch_that_failed_holds_nothing(s: asc.Scheduler, plain: bool, isolate: bool) -> None:
    class Item:
        pass

    def refuse(items: list[Item]) -> list[Any]:
        raise LookupError

    async def refuse_on_the_loop(items: list[Item]) -> list[Any]:
        x = await s.put(np.ones(1000))
        return refuse([items[0]]) or [x]

    async def caller() -> None:
        item = Item()
        items.append(weakref.ref(item))
        with suppress(LookupError):
            await batcher(item)

    items: list[weakref.ref[Item]] = []
    batcher: Batcher[Item, Any] = Batcher(refuse if plain else refuse_on_the_loop, isolate=isolate)
    with no_collector():
        await asyncio.gather(*[caller() for _ in range(4)])
        await turns()
        assert [item() for item in items] == [None] * 4
        assert s.statistics().bytes_retained == 0


async def test_without_a_scheduler_the_callers_are_told() -> None:
    batcher = Batcher(Model())
    found = await asyncio.gather(*ask(batcher, *range(40)), return_exceptions=True)
    assert {type(one) for one in found} == {asc.SchedulerClosed}
    assert (batcher.statistics().answered, batcher.statistics().computing) == (40, 0)


async def test_one_made_before_any_scheduler_is_open_works_for_that_of_its_caller() -> None:
    async def model(items: list[int]) -> list[asc.Scheduler]:
        before = [s.statistics().tasks_submitted for s in (first, second)]
        asc.arange(3)
        now = [s.statistics().tasks_submitted for s in (first, second)]
        return [s for s, old, new in zip((first, second), before, now, strict=True) if new > old] * len(items)

    batcher = Batcher(model)
    async with asc.Scheduler("cpu") as first, asc.Scheduler("cpu") as second:
        for s in (first, second, first):
            async with s.scope():
                assert await batcher(1) is s


def test_when_the_loop_ends_so_do_the_callers() -> None:
    ended: list[str] = []

    async def main() -> None:
        async with asc.Scheduler("cpu") as s:
            model = Model()
            model.gate.clear()
            batcher = Batcher(model, max_batch_cost=1, scheduler=s)

            async def one(item: int) -> None:
                try:
                    await batcher(item)
                except asyncio.CancelledError:
                    ended.append("cancelled")
                    raise

            tasks = [asyncio.create_task(one(item)) for item in range(3)]
            await until(lambda: bool(model.batches))
            runners = asyncio.all_tasks() - {asyncio.current_task(), *tasks}  # type: ignore[arg-type]
            for runner in runners:
                runner.cancel()
            await asyncio.gather(*tasks, *runners, return_exceptions=True)

    asyncio.run(main())
    assert ended == ["cancelled"] * 3


def test_a_batcher_belongs_to_one_loop_while_that_is_open() -> None:
    async def use() -> Any:
        async with asc.Scheduler("cpu"):
            return await batcher("x")

    batcher = Batcher(Model())
    with asyncio.Runner() as runner:
        runner.run(use())
        with pytest.raises(RuntimeError, match="one for each loop"):
            asyncio.run(use())
    assert asyncio.run(use()) == "x" * 10


@pytest.mark.parametrize("make", LOOPS.values(), ids=LOOPS)
def test_once_its_loop_is_closed_a_batcher_belongs_to_the_next(make: Any) -> None:
    async def use() -> Any:
        async with asc.Scheduler("cpu"):
            return await asyncio.gather(*ask(batcher, 1, 2))

    batcher = Batcher(Model())
    for _ in range(3):
        with asyncio.Runner(loop_factory=make) as runner:
            assert runner.run(use()) == [10, 20]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it ends before it has begun
def test_what_a_closed_loop_has_left_keeps_nobody_waiting() -> None:
    async def use() -> Any:
        async with asc.Scheduler("cpu"):
            return await asyncio.gather(*ask(batcher, *range(4)))

    async def leave() -> None:
        left.extend(ask(batcher, 1, 2))  # they join the queue in the loop's last turn

    left: list[Any] = []
    batcher = Batcher(Model(), max_batch_cost=4)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()  # though something waits: nobody can be told
    assert asyncio.run(use()) == [0, 10, 20, 30]
    found = batcher.statistics()
    assert (found.waiting, found.computing, found.dropped) == (0, 0, 2)


async def test_a_function_that_waits_for_its_own_batcher_is_told(s: asc.Scheduler) -> None:
    async def fn(items: list[int]) -> list[int]:
        return [await batcher(item - 1) if item else 0 for item in items]

    batcher: asc.Batcher[int, int] = asc.Batcher(fn)
    assert await batcher(0) == 0
    with pytest.raises(RuntimeError, match="fn waits for its own next batch, which waits for it"):
        await batcher(1)


def test_bad_arguments() -> None:
    for wrong, error in (
        ({"max_batch_cost": 0}, ValueError),
        ({"max_batch_cost": float("inf")}, ValueError),
        ({"max_queue": 0}, ValueError),
        ({"concurrency": 0}, ValueError),
    ):
        with pytest.raises(error, match=next(iter(wrong))):
            Batcher(sorted, **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="function of a list"):
        Batcher(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cost takes a function of an item, not int"):
        Batcher(sorted, cost=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="scheduler= takes a Scheduler or a scope, not str"):
        Batcher(sorted, scheduler="cpu")  # type: ignore[arg-type]


@pytest.mark.parametrize("columns", [1, 2, 3])
async def test_a_table_is_refused_and_its_rows_are_taken(table: MakeTable, columns: int) -> None:
    data = {f"c{i}": [10 * i, 10 * i + 1] for i in range(columns)}

    async def model(items: list[str]) -> Any:
        return table(data) if "table" in items else np.array([*data.values()]).T

    async with asc.Scheduler("cpu"):
        for found in await asyncio.gather(*ask(Batcher(model), "table", "too"), return_exceptions=True):
            assert isinstance(found, TypeError)
            assert "which iterates over its columns" in str(found)
        a, b = await asyncio.gather(*ask(Batcher(model), 1, 2))
        assert (a.tolist(), b.tolist()) == ([0, 10, 20][:columns], [1, 11, 21][:columns])


async def test_a_column_of_a_table_is_a_list_of_results(frame: MakeTable) -> None:
    async with asc.Scheduler("cpu"):
        batcher: Batcher[int, int] = Batcher(lambda items: frame({"a": [one + 1 for one in items]})["a"])
        assert await asyncio.gather(*ask(batcher, 1, 2)) == [2, 3]


async def test_a_failed_batch_is_told_by_the_line_that_made_the_batcher(s: asc.Scheduler) -> None:
    batcher: asc.Batcher[int, int] = asc.Batcher(lambda items: [1 // 0 for _ in items])
    with pytest.raises(ZeroDivisionError) as raised:
        await batcher(1)
    assert any("test_batcher.py" in note and "unknown" not in note for note in raised.value.__notes__)


async def test_a_def_endpoint_with_a_loop_of_its_own_is_told_how_to_ask(s: asc.Scheduler) -> None:
    batcher: asc.Batcher[int, int] = asc.Batcher(lambda items: items)
    assert await batcher(1) == 1
    with pytest.raises(RuntimeError, match=r"by `anyio.from_thread.run\(predict, x\)`"):
        await asyncio.to_thread(lambda: asyncio.run(batcher(1)))  # type: ignore[arg-type]
    assert await to_thread.run_sync(from_thread.run, batcher, 2) == 2
