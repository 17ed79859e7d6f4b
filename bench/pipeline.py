"""Pipelines: the cost of an item, and how well stages overlap.

Three stages whose function does nothing, with one worker each, so that the time per item is only overhead: coroutines,
and plain functions in a thread each. Beside them a pipeline by hand: an asyncio task per stage, and an `asyncio.Queue`
in front of each; and another with deques, which does for each item what a stage promises, and nothing else. Then rows
through a function in a thread, in batches of 64, beside a plain loop, which neither reads ahead nor leaves the event
loop free. Then three stages that each wait 5 ms. Loading of data, beside other libraries, is in `loaders`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from .harness.contestant import Run, Work
from .harness.rows import OURS, Row, Target, ours
from .libraries import Library

STAGES = 3
WAIT = 0.005  # seconds
BATCH = 64
BUFFER = 16  # asyncsched's default
END = object()
_VARIABLE: ContextVar[int] = ContextVar("bench")

Fn = Callable[[Any], Any]


async def nothing(item: Any) -> Any:
    return item


def nothing_in_a_thread(item: Any) -> Any:
    return item


async def in_a_thread(item: Any) -> Any:
    return await asyncio.to_thread(nothing_in_a_thread, item)


async def wait(item: Any) -> Any:
    await asyncio.sleep(WAIT)
    return item


async def pipeline(library: Any, n: int, *, fn: Fn = nothing) -> Run:
    """asyncsched's, from open to closed."""

    async def run(count: int) -> None:
        for _ in range(count):
            async with library.s.pipeline(range(n)).map(fn).map(fn).map(fn).open() as results:
                assert sum([1 async for _ in results]) == n

    return run


async def queues(library: Library, n: int, *, fn: Fn = nothing) -> Run:
    """By hand: a task per stage, a queue in front of each and behind the last."""

    async def run(count: int) -> None:
        for _ in range(count):
            rows = [asyncio.Queue[Any](BUFFER) for _ in range(STAGES + 1)]
            tasks = [asyncio.create_task(_fill(rows[0], n))]
            tasks += [asyncio.create_task(_stage(fn, *pair)) for pair in pairwise(rows)]
            items = 0
            while await rows[-1].get() is not END:
                items += 1
            await asyncio.gather(*tasks)
            assert items == n

    return run


async def _fill(out: asyncio.Queue[Any], n: int) -> None:
    for i in range(n):
        await out.put(i)
    await out.put(END)


async def _stage(fn: Fn, source: asyncio.Queue[Any], out: asyncio.Queue[Any]) -> None:
    while (item := await source.get()) is not END:
        await out.put(await fn(item))
    await out.put(END)


class _Line:
    """Numbered items between two stages, with a bound; and who waits for a change."""

    def __init__(self) -> None:
        self.items: deque[tuple[int, Any]] = deque()
        self.room, self.ended = BUFFER, False
        self.waiting: list[asyncio.Future[None]] = []

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self.waiting.append(asyncio.get_running_loop().create_future())
            await self.waiting[-1]

    async def reserve(self) -> None:
        await self.until(lambda: self.room > 0)
        self.room -= 1

    async def arrived(self) -> bool:
        await self.until(lambda: bool(self.items) or self.ended)
        return bool(self.items)

    def wake(self) -> None:
        while self.waiting:
            self.waiting.pop().set_result(None)

    def end(self) -> None:
        self.ended = True
        self.wake()


async def deques(library: Library, n: int) -> Run:
    """By hand, with nothing but what a stage promises of each item: a bounded row, the item's number, and that the next
    item does not see how this one's coroutine has changed the context. Written out, without a call."""

    async def fill(out: _Line) -> None:
        for i in range(n):
            if out.room <= 0:
                await out.reserve()
            else:
                out.room -= 1
            out.items.append((i, i))
            if out.waiting:
                out.wake()
        out.end()

    async def stage(source: _Line, out: _Line) -> None:
        variables = [*copy_context().items()]
        while True:
            if out.room <= 0:
                await out.reserve()
            else:
                out.room -= 1
            if not source.items and not await source.arrived():
                break
            source.room += 1
            if source.waiting and source.room * 2 >= BUFFER:
                source.wake()
            number, item = source.items.popleft()
            out.items.append((number, await nothing(item)))
            if out.waiting:
                out.wake()
            context = copy_context()
            for variable, value in variables:
                assert context[variable] is value
        out.end()

    async def run(count: int) -> None:
        _VARIABLE.set(n)  # one, as a scheduler has
        for _ in range(count):
            lines = [_Line() for _ in range(STAGES + 1)]
            tasks = [asyncio.create_task(fill(lines[0]))]
            tasks += [asyncio.create_task(stage(*pair)) for pair in pairwise(lines)]
            items, last = 0, lines[-1]
            while last.items or await last.arrived():
                number, item = last.items.popleft()
                assert number == item == items
                items += 1
                last.room += 1
                if last.waiting and last.room * 2 >= BUFFER:
                    last.wake()
            await asyncio.gather(*tasks)
            assert items == n

    return run


async def rows(library: Any, n: int) -> Run:
    async def run(count: int) -> None:
        for _ in range(count):
            async with library.s.pipeline(range(n)).map(nothing_in_a_thread).batch(BATCH).open() as batches:
                assert sum([len(batch) async for batch in batches]) == n

    return run


async def loop_over_rows(library: Library, n: int) -> Run:
    async def run(count: int) -> None:
        for _ in range(count):
            batches = [np.array([nothing_in_a_thread(i) for i in batch]) for batch in batched(n)]
            assert sum(map(len, batches)) == n

    def batched(n: int) -> list[range]:
        return [range(start, min(start + BATCH, n)) for start in range(0, n, BATCH)]

    return run


async def one_wait(library: Library, n: int) -> Run:
    async def run(count: int) -> None:
        for i in range(count * n):
            await wait(i)

    return run


WORKS: dict[str, Work] = {
    "coroutines": Work(pipeline, 20_000, 200),
    "threads": Work(partial(pipeline, fn=nothing_in_a_thread), 3_000, 100),
    "rows": Work(rows, 100_000, 500),
    "loop over rows": Work(loop_over_rows, 100_000, 500),
    "waits": Work(partial(pipeline, fn=wait), 300, 20),
    "queues": Work(queues, 20_000, 200),
    "deques": Work(deques, 20_000, 200),
    "queues, to_thread": Work(partial(queues, fn=in_a_thread), 3_000, 100),
    "one wait": Work(one_wait, 300, 20),
}
_HAND = "numpy"
_THIRD, _WAITING = ours(1 / 3, "items travel several at a time"), ours(1.15, "they wait at the same time")
_COROUTINES = {
    "asyncio.Queue(16)": (_HAND, "pipeline.queues"),
    "deques": (_HAND, "pipeline.deques"),
    OURS: (OURS, "pipeline.coroutines"),
}
_WAITS = {"one wait": (_HAND, "pipeline.one wait"), OURS: (OURS, "pipeline.waits")}
_ROWS = {"a plain loop": (_HAND, "pipeline.loop over rows"), OURS: (OURS, "pipeline.rows")}
_THREADS = {"asyncio.Queue(16), to_thread": (_HAND, "pipeline.queues, to_thread"), OURS: (OURS, "pipeline.threads")}


def _rows(key: str, title: str, cells: dict[str, tuple[str, str]], targets: dict[str, Target]) -> list[Row]:
    """On asyncio's loop, and on uvloop's."""
    on_uvloop = {column: (f"{who} uvloop", work) for column, (who, work) in cells.items()}
    return [Row(key, title, "us", cells, targets), Row(f"{key}-uvloop", f"{title}, uvloop", "us", on_uvloop, targets)]


ROWS = (
    *_rows("coroutines", "three stages of coroutines that do nothing, an item", _COROUTINES, _THIRD),
    Row("threads", "three stages of functions in threads that do nothing, an item", "us", _THREADS, _THIRD),
    Row("rows", "rows through a function in a thread, in batches of 64, a row", "us", _ROWS),
    *_rows("waits", "three stages that each wait 5 ms, an item", _WAITS, _WAITING),
)
