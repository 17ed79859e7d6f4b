"""Costs as work grows: with processors, operations, the width of a graph, coroutines that wait, scopes and tenants,
connections, items of a pipeline. Ratios are to a thousand, or to one processor. `harness.pictures` draws them.

For processors the ratios are of elapsed time. Else they are of the time of all processors for one thing, which other
work on the machine changes little. Operations and coroutines wait behind callables that hold every slot, until all
wait. Small numbers cost more each, since opening, waking threads and closing count. From ten thousand on, waiting and
open things (operations, coroutines, scopes, requests) no longer fit into the processor's caches, and Python's collector
goes over them again and again as they grow. The rows of asyncio's own coroutines, and of operations without the
collector, show how much that is. Without it the other lines are flat up to ten thousand.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import process_time
from typing import Any

from .graphs import TINY, add_in_a_row, fan_out, graphs, increments, ones, pending, waiting
from .harness.contestant import Prepare, Run, Work
from .harness.rows import CONTESTANTS, OURS, Cell, Row, Target
from .libraries import Library, cpus
from .pipeline import nothing_in_a_thread, pipeline

ON = ("NumPy", "PyTorch", OURS)
SCALED = {
    "graphs.large": "`x + 1` on (1000, 1000)",
    "perceptron.training": "a training step",
    "layers.softmax": "softmax",
    "graphs.fan-out": "fan-out",
}
PROCESSORS = {f"{n} processor{'s' * (n > 1)}": f" processors={n}" for n in (1, 2, 4, 8) if n <= cpus()}


async def together(library: Any, n: int, *, one: Callable[[Any, Any, Any, int], Awaitable[object]]) -> Run:
    """Coroutines that wait at the same time. Each gets the scheduler, and a tensor and a future that come late."""

    async def run(count: int) -> float:
        spent = 0.0
        for _ in range(count):
            async with waiting(library) as (s, x, gate):
                y, opened = x + 1, asyncio.get_running_loop().run_in_executor(None, gate.wait)
                spent -= process_time()
                tasks = [asyncio.ensure_future(one(s, y, opened, i)) for i in range(n)]
                for _ in range(4):  # turns of the loop, until all wait
                    await asyncio.sleep(0)
                gate.set()
                await asyncio.gather(*tasks)
                spent += process_time()
        return spent

    return run


async def scope(s: Any, y: Any, opened: Any, i: int, *, tenants: bool = False) -> None:
    async with s.scope(tenant=i if tenants else None):
        await (y + 1)


async def reserve(s: Any, y: Any, opened: Any, i: int) -> None:
    """The first has its reserve, and all others wait for it."""
    async with s.scope(reserve="700 MiB"):
        await opened


async def connections(library: Library, n: int) -> Run:
    """The server's time for an answer. Each of the connections asks again when it is answered."""
    from asyncsched.serving import Serving

    from .serving.app import application, in_process
    from .serving.load import PROGRAM, many_files

    async def predict(row: Any) -> int:
        return int(await (await serving.scheduler.put(row)).sum().item())

    many_files()
    make = partial(library.xp.Scheduler, "cpu")
    serving = Serving(application(predict), make, max_requests=2 * n, drain_on_sigterm=False)

    async def run(count: int) -> float:
        async with in_process(serving) as port:
            load = {"port": port, "connections": n, "seconds": 0.1 if library.quick else 4}
            command = (*PROGRAM, json.dumps(load))
            spent = process_time()
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            found, _ = await process.communicate()
            return (process_time() - spent) / json.loads(found)["statuses"]["200"]

    return run


Line = tuple[str, Prepare, int]
"""The contestants' works, and how often at most."""


def _by(names: Sequence[str], prepare: Prepare, most: int) -> dict[str, Line]:
    return {name: (CONTESTANTS.get(name, name), prepare, most) for name in names}


def _together(**lines: Any) -> dict[str, Line]:
    behind = "asyncsched streams=1 max_ops=4 max_bytes=1073741824"
    return {name.replace("_", " "): (behind, partial(together, one=one), 10**5) for name, one in lines.items()}


_pending = partial(pending, clock=process_time)
LINES: dict[str, dict[str, Line]] = {
    "issued": _by(ON, graphs(TINY, increments), 10**6),
    "pending": _by([OURS], _pending, 10**6) | {
        "a chain": (OURS, partial(_pending, issue=add_in_a_row), 10**6),
        "without the collector": (OURS, partial(_pending, collect=False), 10**6),
    },
    "width": _by(("NumPy", "run_in_executor", "to_thread", OURS), graphs((64, 64), fan_out), 10**4),
    "waiters": _together(
        for_room=lambda s, y, opened, i: s.put(ones(TINY)),
        for_a_value=lambda s, y, opened, i: y,
        for_asyncio=lambda s, y, opened, i: asyncio.wait_for(opened, None),
    ),
    "scopes": _together(of_one_tenant=scope, of_many_tenants=partial(scope, tenants=True), in_line=reserve),
    "connections": _by([OURS], connections, 5_000),
    "items": {
        "coroutines": (OURS, pipeline, 10**7),
        "threads": (OURS, partial(pipeline, fn=nothing_in_a_thread), 10**6),
    },
}  # fmt: skip


def _scaled(work: str, title: str, name: str) -> Row:
    """Columns are the processors, so that ratios are to one of them."""
    cells: dict[str, Cell] = {column: (CONTESTANTS.get(name, name) + more, work) for column, more in PROCESSORS.items()}
    return Row(f"processors-{work.partition('.')[2]}-{name}", f"{title}, {name}", "ms", cells)


def _sizes(most: int) -> list[int]:
    """The column to which ratios are comes first."""
    return [1_000, *[10**k for k in range(8) if k != 3 and 10**k < most], most]


def _line(kind: str, name: str, who: str, most: int) -> Row:
    cells: dict[str, Cell] = {f"{n:,}": (who, f"growth.{kind} {n} {name}") for n in _sizes(most)}
    targets = {f"{n:,}": Target(1.4, "it does not grow") for n in _sizes(most) if n > 1_000 and OURS in who}
    return Row(f"{kind}-{name.replace(' ', '-')}", f"{kind}, {name}", "us", cells, targets)


EACH = [(kind, name, *line) for kind, lines in LINES.items() for name, line in lines.items()]
WORKS: dict[str, Work] = {
    f"{kind} {n} {name}": Work(prepare, n, clock=process_time, once=kind == "connections")
    for kind, name, _, prepare, most in EACH
    for n in _sizes(most)
}
ROWS = (
    *[_scaled(*scaled, name) for scaled in SCALED.items() for name in ON if f"{scaled[1]} {name}" != "softmax NumPy"],
    *[_line(kind, name, who, most) for kind, name, who, _, most in EACH],
)
