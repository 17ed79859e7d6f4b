"""Blocks that are not left in the order they were entered in: those of async generators."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.ops.op import asked
from asyncsched.runtime.context import Ambient, ambient, deadline
from tests.ledger import engine_of

from ..processes import fresh
from ..waiting import turns, until


async def numbers(s: asc.Scheduler, name: str = "generator") -> AsyncIterator[int]:
    async with s.scope(name=name):
        for i in range(2):
            yield i


def here(s: asc.Scheduler) -> str:
    """The name of the scope that gets what is submitted here."""
    found: list[str] = []

    class Sees(asc.observe.Instrument):
        def task_submitted(self, task: Any) -> None:
            found.append(task.scope.name)

    s.add_instrument(sees := Sees())
    try:
        s.submit_nowait(int)
    finally:
        s.remove_instrument(sees)
    return found[0]


async def test_a_generator_that_ends_in_a_later_scope_leaves_its_consumer_there(s: asc.Scheduler) -> None:
    items = numbers(s)
    await anext(items)
    async with s.scope(name="consumer"):
        assert [i async for i in items] == [1]
        assert here(s) == "consumer"
    assert here(s) == "root"
    assert await asc.ones(3).sum().item() == 3


async def test_two_generators_that_end_in_the_order_they_began_in(s: asc.Scheduler) -> None:
    first, second = numbers(s, "first"), numbers(s, "second")
    await anext(first)
    await anext(second)
    await first.aclose()  # type: ignore[attr-defined]
    assert here(s) == "second"
    await second.aclose()  # type: ignore[attr-defined]
    assert here(s) == "root"


async def test_an_abandoned_generator_which_the_loop_closes_in_a_task_of_its_own(s: asc.Scheduler) -> None:
    async for _ in numbers(s):
        break
    gc.collect()
    await until(lambda: not engine_of(s).root.children)
    assert here(s) == "root"
    async with s.scope(name="next"):
        assert here(s) == "next"


async def test_a_task_that_inherited_its_scope_is_refused_all_the_same(s: asc.Scheduler) -> None:
    left = asyncio.Event()

    async def child() -> None:
        await left.wait()
        with pytest.raises(asc.SchedulerClosed, match="scope 'generator' is closed"):
            asc.ones(3)

    items = numbers(s)
    await anext(items)
    task = asyncio.create_task(child())
    async with s.scope(name="consumer"):
        await items.aclose()  # type: ignore[attr-defined]
    left.set()
    await task


async def test_a_scheduler_that_a_generator_has_open(s: asc.Scheduler) -> None:
    async def inner() -> AsyncIterator[int]:
        async with asc.Scheduler("cpu"):
            yield 1
            yield 2

    items = inner()
    await anext(items)
    async with s.scope(name="consumer"):
        await items.aclose()  # type: ignore[attr-defined]
        assert here(s) == "consumer"
    assert await asc.ones(3, scheduler=None).sum().item() == 3


async def test_a_task_that_is_started_after_the_generator_ended_inherits_nothing_of_it(s: asc.Scheduler) -> None:
    async def child() -> str:
        return here(s)

    items = numbers(s)
    await anext(items)
    async with s.scope(name="consumer"):
        await items.aclose()  # type: ignore[attr-defined]
    assert await asyncio.create_task(child()) == "root"

    async for _ in numbers(s):
        break
    gc.collect()
    await until(lambda: not engine_of(s).root.children)
    await asc.ones(3)
    assert await asyncio.create_task(child()) == "root"


async def child(s: asc.Scheduler) -> str:
    found = here(s)
    assert await asc.ones(3, scheduler=s).sum().item() == 3
    return found


async def through_another(s: asc.Scheduler) -> AsyncIterator[int]:
    async for i in numbers(s):
        yield i


@asynccontextmanager
async def request(s: asc.Scheduler) -> AsyncIterator[None]:
    async with s.scope(name="generator"):
        yield


async def in_a_context_manager(s: asc.Scheduler) -> AsyncIterator[int]:
    async with request(s):
        yield 1


async def in_a_stack(s: asc.Scheduler) -> AsyncIterator[int]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(s.scope(name="generator"))
        yield 1


async def with_two_blocks(s: asc.Scheduler) -> AsyncIterator[int]:
    async with s.scope(name="generator"), s.scope(name="in it"):
        yield 1


async def in_a_window(s: asc.Scheduler) -> AsyncIterator[int]:
    window = s.window(1)
    async with window:
        yield 1


def identity(member: list[int]) -> list[int]:
    return member


async def member_of_a_stepper(s: asc.Scheduler) -> AsyncIterator[int]:
    stepper = asc.Stepper(identity, reserve=1000, scheduler=s)
    async with stepper.join(1) as outputs:
        async for output in outputs:
            yield output


GENERATORS = [
    numbers, through_another, in_a_context_manager, in_a_stack, with_two_blocks, in_a_window, member_of_a_stepper,
]  # fmt: skip


@pytest.mark.parametrize("generator", GENERATORS)
async def test_what_comes_after_a_break_is_not_in_the_generators_scope(
    s: asc.Scheduler, generator: Callable[[asc.Scheduler], AsyncIterator[int]]
) -> None:
    async for _ in generator(s):
        assert here(s) != "root"
        break
    at_once = asyncio.create_task(child(s))
    assert here(s) == "root"
    assert await s.call(pow, 2, 10) == 1024  # not cancelled with the generator
    assert await at_once == "root"
    await until(lambda: not [scope for scope in engine_of(s).root.children if not scope.ended])
    assert await asyncio.create_task(child(s)) == "root"


async def test_a_task_from_before_a_break_is_refused(s: asc.Scheduler) -> None:
    left = asyncio.Event()

    async def late() -> None:
        await left.wait()
        with pytest.raises(asc.SchedulerClosed, match="scope 'generator' is closed"):
            asc.ones(3)

    async for _ in numbers(s):
        task = asyncio.create_task(late())
        break
    await until(lambda: not engine_of(s).root.children)
    left.set()
    await task


@pytest.mark.parametrize("drops", [False, True], ids=["closes", "drops"])
async def test_a_generator_that_ends_in_another_task(s: asc.Scheduler, drops: bool) -> None:
    left = asyncio.Event()

    async def late() -> str:
        await left.wait()
        return here(s)

    items = numbers(s)
    await anext(items)

    async def close() -> None:
        nonlocal items
        if not drops:
            await items.aclose()  # type: ignore[attr-defined]
        del items

    before = asyncio.create_task(late())
    await asyncio.create_task(close(), context=contextvars.Context())
    await until(lambda: not engine_of(s).root.children)
    assert await asyncio.create_task(child(s)) == "root"
    assert here(s) == "root"
    left.set()
    with pytest.raises(asc.SchedulerClosed, match="scope 'generator' is closed"):
        await before


async def test_a_generator_that_the_garbage_collector_drops_in_another_task(s: asc.Scheduler) -> None:
    """Its consumer asks for nothing, and starts a task."""
    items = numbers(s)
    await anext(items)
    cycle: list[object] = [items]
    cycle.append(cycle)
    del items, cycle

    async def collect() -> None:
        gc.collect()

    await asyncio.create_task(collect())
    await until(lambda: not engine_of(s).root.children)
    assert await asyncio.create_task(child(s)) == "root"


async def test_generators_that_overlap_keep_nothing(s: asc.Scheduler) -> None:
    def links() -> int:
        return sum(type(found) is Ambient for found in gc.get_objects())

    items, before = numbers(s), 0
    await anext(items)
    for i in range(20):
        if i == 2:
            before = links()
        following = numbers(s)
        await anext(following)
        await items.aclose()  # type: ignore[attr-defined]
        items = following
    assert links() == before
    for _ in range(20):
        async for _ in numbers(s):
            break
    await until(lambda: len(engine_of(s).root.children) == 1)
    assert links() < before + 5  # some of tasks that have just ended
    await items.aclose()  # type: ignore[attr-defined]
    assert here(s) == "root"
    hook: Any = sys.get_asyncgen_hooks().finalizer
    assert not hook._links


DROPS = """
import asyncio, gc
import asyncsched as asc

async def numbers(s):
    async with s.scope():
        with asc.no_grad():
            yield 1

async def main():
    async with asc.Scheduler("cpu", streams=1) as s:
        window = s.window(1)
        gc.set_threshold(5)
        for _ in range(2000):
            items = [numbers(s)]
            await anext(items[0])
            items.append(items)
            del items
            async with window:
                with asc.no_grad():
                    pass

asyncio.run(main())
print("fine")
"""


def test_generators_that_the_collector_drops_in_the_middle_of_anything() -> None:
    """Also while a context variable is set. Before Python 3.12, whoever sets one then crashes the interpreter."""
    assert fresh(DROPS) == "fine\n"


SETS = """
import gc
from asyncsched import exact, no_grad

kept, on = [], True

class Dead:  # its finaliser runs whenever the collector does
    def __init__(self):
        self.me = self
    def __del__(self):
        if on:
            with exact():
                kept.append([bytes([255]) * n for n in range(20, 200)])
            del kept[:-3]
            Dead()

with no_grad(), exact():
    Dead()
gc.set_threshold(1)
for _ in range(300):
    with no_grad(), exact():
        pass
on = False
print("fine")
"""


def test_a_finaliser_that_sets_a_context_variable_runs_not_while_one_is_set() -> None:
    """Before Python 3.12 that crashes the interpreter."""
    assert fresh(SETS) == "fine\n"


@pytest.mark.parametrize("closed", [False, True], ids=["dropped", "closed"])
async def test_a_deadline_ends_with_its_generator(s: asc.Scheduler, closed: bool) -> None:
    async def short() -> AsyncIterator[int]:
        async with s.scope(deadline=60):
            yield 1

    items, other = short(), numbers(s)
    await anext(items)
    if closed:  # after the other one has begun
        await anext(other)
        assert deadline(ambient.get()) < inf
        await items.aclose()  # type: ignore[attr-defined]
    else:
        del items
        await anext(other)
    assert deadline(ambient.get()) == inf
    await other.aclose()  # type: ignore[attr-defined]


async def silent() -> AsyncIterator[int]:
    with asc.no_grad():
        yield 1
        yield 2


async def exactly() -> AsyncIterator[int]:
    with asc.exact():
        yield 1
        yield 2


async def is_silent(x: asc.Tensor) -> bool:
    return not (x * 2).requires_grad


async def is_exact(x: asc.Tensor) -> bool:
    return asked()


@pytest.mark.parametrize(("block", "holds"), [(silent, is_silent), (exactly, is_exact)])
async def test_no_grad_and_exact_end_with_their_generator(
    s: asc.Scheduler, block: Callable[[], AsyncIterator[int]], holds: Callable[[asc.Tensor], Awaitable[bool]]
) -> None:
    x = await s.put(np.ones(3))
    x.requires_grad = True
    async for _ in block():
        assert await holds(x)
        break
    assert not await holds(x)
    assert not await asyncio.create_task(holds(x))
    await turns()
    assert not await holds(x)

    first, second = block(), block()
    await anext(first)
    await anext(second)
    inside = asyncio.create_task(holds(x))
    assert await inside
    await first.aclose()  # type: ignore[attr-defined]
    assert await holds(x)
    await second.aclose()  # type: ignore[attr-defined]
    assert not await holds(x)

    items = block()
    await anext(items)
    await asyncio.create_task(items.aclose(), context=contextvars.Context())  # type: ignore[attr-defined]
    assert not await holds(x)
