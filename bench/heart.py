"""What the scheduler itself costs: microseconds of the loop's thread for one operation, whatever others do meanwhile.

What waits does so behind callables that hold every slot of one stream, until all is issued.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import partial
from time import thread_time
from typing import Any

import numpy as np

from .graphs import add_in_a_row, add_repeatedly, fill
from .harness.contestant import Prepare, Run, Work
from .harness.rows import Row

SMALL = (8,)
BEHIND = "asyncsched streams=1 max_ops=4 max_pending=null"


def _on_the_loop(times: Callable[[Any, Any, int], Awaitable[object]]) -> Prepare:
    """A work of a library, a small tensor and a number, in time of the loop's thread."""

    async def prepare(library: Any, n: int) -> Run:
        x = await library.put(np.ones(SMALL, np.float32))

        async def run(count: int) -> float:
            spent = 0.0
            for _ in range(count):
                started = thread_time()
                kept = await times(library, x, n)
                spent += thread_time() - started
                del kept
                await library.finish([])
            return spent

        return run

    return prepare


async def _issue(library: Any, x: Any, n: int) -> object:
    return add_repeatedly(x, n)


async def _await(library: Any, x: Any, n: int) -> None:
    for _ in range(n):
        await (x + 1)


async def _call(library: Any, x: Any, n: int) -> None:
    for _ in range(n):
        await library.call(_nothing)


def _nothing() -> None:
    pass


async def _wait(library: Any, x: Any, n: int, *, chain: bool) -> object:
    gate = threading.Event()
    fill(library.s, gate)
    kept = add_in_a_row(x, n) if chain else [x + 1 for _ in range(n)]
    gate.set()
    await library.finish([])
    return kept


async def training(library: Any, n: int) -> Run:
    """Steps of a network so small that all its operations run on the loop's thread."""
    nn, rng = library.xp.nn, np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = library.xp.optim.SGD(model.parameters(), lr=0.01)
    x, target = [await library.put(rng.standard_normal((8, width)).astype(np.float32)) for width in (32, 1)]

    async def run(count: int) -> float:
        started = thread_time()
        for _ in range(count):
            for _ in range(n):
                ((model(x) - target) ** 2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            await library.finish([])
        return thread_time() - started

    return run


WORKS: dict[str, Work] = {
    "issue": Work(_on_the_loop(_issue), 200),
    "await": Work(_on_the_loop(_await), 100),
    "call": Work(_on_the_loop(_call), 30),
    "training": Work(training, 10),
    **{f"pending {n}": Work(_on_the_loop(partial(_wait, chain=False)), n) for n in (1_000, 20_000, 1_000_000)},
    "chain": Work(_on_the_loop(partial(_wait, chain=True)), 20_000),
}


def _row(key: str, title: str, work: str, who: str = "asyncsched", unit: str = "us") -> Row:
    return Row(key, title, unit, {"asyncsched": (who, work)})


ROWS = (
    _row("issue", "`x + 1`, issued", "heart.issue"),
    _row("await", "`await (x + 1)`", "heart.await"),
    _row("call", "`await s.call(fn)` of a function that does nothing", "heart.call"),
    _row("training", "a training step of some thirty small operations", "heart.training"),
    _row("pending", "`x + 1`, 20,000 pending, issue to done", "heart.pending 20000", BEHIND),
    _row("chain", "`x = x + 1`, 20,000 pending, issue to done", "heart.chain", BEHIND),
    Row(
        "million",
        "`x + 1` pending, of a thousand and of a million",
        "us",
        {"of a thousand": (BEHIND, "heart.pending 1000"), "of a million": (BEHIND, "heart.pending 1000000")},
    ),
    _row("bytes", "bytes that Python keeps for a pending `x + 1` and its handle", "graphs.bytes, kept", unit="bytes"),
)
