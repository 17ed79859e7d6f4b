"""Pipelines: what an item costs, and how well stages overlap.

    python -m bench.pipeline [--quick] [--only a,b,c] [--json PATH]

a. Three stages whose coroutine does nothing, one worker each: the time per item is overhead alone. Beside it the same
   from plain asyncio queues of the same size, and of the smallest.
b. Three stages whose plain function does nothing, in a thread each. Beside it asyncio queues with `to_thread`, and
   torchdata's ParallelMapper where it is installed, in threads, too.
c. Three stages that each wait 5 ms, against one such wait.
d. Reading a generator, which has a thread of its own, against reading it inline.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import asyncsched as asc

from .measure import NO_UVLOOP, Asked, Contestant, Report, compare, on_loop, run_bench, timed, uvloop_factory

STAGES = 3
WAIT = 0.005  # seconds
BUFFER = 16  # asyncsched's default
END = object()
NO_TORCHDATA = "b torchdata: not installed, skipped (`pip install torchdata --no-deps`, beside torch)"

Fn = Callable[[Any], Any]


async def nothing(item: Any) -> Any:
    return item


def nothing_in_a_thread(item: Any) -> Any:
    return item


async def wait(item: Any) -> Any:
    await asyncio.sleep(WAIT)
    return item


async def pipeline(fn: Fn, n: int, stages: int = STAGES, source: Any = None) -> float:
    """asyncsched's pipeline; seconds from open to closed."""
    async with asc.Scheduler("cpu") as s:
        pipe = s.pipeline(range(n) if source is None else source)
        for _ in range(stages):
            pipe = pipe.map(fn)
        started, count = perf_counter(), 0
        async with pipe.open() as items:
            async for _ in items:
                count += 1
        assert count == n
        return perf_counter() - started


async def queues(fn: Fn, size: int, n: int) -> float:
    """What one writes by hand: a task per stage, a queue in front of each and behind the last."""
    rows = [asyncio.Queue[Any](size) for _ in range(STAGES + 1)]
    started, count = perf_counter(), 0
    tasks = [asyncio.create_task(_fill(rows[0], n))]
    tasks += [asyncio.create_task(_stage(fn, *pair)) for pair in pairwise(rows)]
    while await rows[-1].get() is not END:
        count += 1
    await asyncio.gather(*tasks)
    assert count == n
    return perf_counter() - started


async def _fill(out: asyncio.Queue[Any], n: int) -> None:
    for i in range(n):
        await out.put(i)
    await out.put(END)


async def _stage(fn: Fn, source: asyncio.Queue[Any], out: asyncio.Queue[Any]) -> None:
    while (item := await source.get()) is not END:
        await out.put(await fn(item))
    await out.put(END)


def torchdata(n: int) -> float:
    """Three mappers with a thread each."""
    from torchdata.nodes import IterableWrapper, Loader, ParallelMapper

    node: Any = IterableWrapper(range(n))
    for _ in range(STAGES):
        node = ParallelMapper(node, nothing_in_a_thread, num_workers=1, in_order=True, method="thread")
    loader = Loader(node)
    return timed(lambda: [None for _ in loader])


def coroutines(quick: bool, report: Report) -> None:
    n, rounds = (200, 1) if quick else (20_000, 7)
    plain = f"a asyncio.Queue({BUFFER})"
    for title, loop in _loops(report):
        run = partial(_on, loop)
        report.rows += compare(
            [
                Contestant(plain + title, run(lambda: queues(nothing, BUFFER, n)), n),
                Contestant(f"a asyncio.Queue(1){title}", run(lambda: queues(nothing, 1, n)), n),
                Contestant(f"a asyncsched{title}", run(lambda: pipeline(nothing, n)), n, asked=Asked(ratio=1 / 3)),
            ],
            rounds,
        )


def threads(quick: bool, report: Report) -> None:
    n, rounds = (100, 1) if quick else (3_000, 5)
    asked = Asked(ratio=1 / 3)
    in_thread = partial(asyncio.to_thread, nothing_in_a_thread)
    found = [
        Contestant("b asyncio.Queue(16), to_thread", on_loop(lambda: queues(in_thread, BUFFER, n)), n),
        Contestant("b asyncsched", on_loop(lambda: pipeline(nothing_in_a_thread, n)), n, asked=asked),
    ]
    if importlib.util.find_spec("torchdata") is not None:
        found.append(Contestant("b torchdata", lambda: torchdata(n), n))
        found.append(Contestant("b asyncsched, to torchdata", found[1].round, n, to="b torchdata", asked=asked))
    else:
        report.notes.append(NO_TORCHDATA)
    report.rows += compare(found, rounds)


def overlap(quick: bool, report: Report) -> None:
    n, rounds = (20, 1) if quick else (300, 5)

    async def one_after_the_other() -> float:
        started = perf_counter()
        for i in range(n):
            await wait(i)
        return perf_counter() - started

    for title, loop in _loops(report):
        run = partial(_on, loop)
        report.rows += compare(
            [
                Contestant(f"c one wait of 5 ms{title}", run(one_after_the_other), n),
                Contestant(
                    f"c asyncsched, three stages{title}", run(lambda: pipeline(wait, n)), n, asked=Asked(ratio=1.15)
                ),
            ],
            rounds,
        )


def sources(quick: bool, report: Report) -> None:
    n, rounds = (200, 1) if quick else (50_000, 5)
    report.rows += compare(
        [
            Contestant("d a list", on_loop(lambda: pipeline(nothing, n, 0, list(range(n)))), n),
            Contestant(
                "d a generator, in a thread", on_loop(lambda: pipeline(nothing, n, 0, (i for i in range(n)))), n
            ),
        ],
        rounds,
    )


def _loops(report: Report) -> list[tuple[str, Any]]:
    """asyncio's loop, and uvloop's if it is installed, with what to add to a name."""
    loop = uvloop_factory()
    if loop is None and NO_UVLOOP not in report.notes:
        report.notes.append(NO_UVLOOP)
    return [("", None)] + ([(", uvloop", loop)] if loop is not None else [])


def _on(loop: Any, main: Callable[[], Coroutine[Any, Any, float]]) -> Callable[[], float]:
    return on_loop(main, loop)


if __name__ == "__main__":
    run_bench("pipeline", {"a": coroutines, "b": threads, "c": overlap, "d": sources})
