"""Blocks that are not left in the order they were entered in: those of async generators."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

import asyncsched as asc
from asyncsched.runtime.context import current_scope

from ..waiting import until


async def numbers(s: asc.Scheduler, name: str = "generator") -> AsyncIterator[int]:
    async with s.scope(name=name):
        for i in range(2):
            yield i


def here(s: asc.Scheduler) -> str:
    return current_scope(s._runtime).name


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
    await until(lambda: not s._runtime.engine.root.children)
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
    await until(lambda: not s._runtime.engine.root.children)
    await asc.ones(3)
    assert await asyncio.create_task(child()) == "root"
