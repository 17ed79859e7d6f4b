"""What the contestants of `bench.peers` and `bench.beside` are timed at: one table, for all of them.

A work is prepared once, by a coroutine that is given the library; what that returns does the work as often as it is
told, up to a barrier. It may tell a time, or bytes, of its own instead of the time it took.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from . import rows, synthetic, trainers
from .libraries import Library

Run = Callable[[int], Awaitable[float | None]]


@dataclass(frozen=True)
class Work:
    """How it is prepared, and how many operations a time of it counts for."""

    prepare: Callable[..., Awaitable[Run]]
    ops: int = 1
    small: bool = False
    """Whether what is slow may do fewer operations."""
    once: bool = False
    """Whether a round is one time of it, however short."""

    def count(self, library: Library) -> int:
        """The operations of one time."""
        if library.quick:
            return min(self.ops, 10)
        return self.ops // (library.slow if self.small else 1)


def plus_one(x: Any) -> Any:
    return x + 1


def add(x: Any, y: Any) -> Any:
    return x + y


def multiply(x: Any, y: Any) -> Any:
    return x @ y


def ones(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


def add_repeatedly(x: Any, n: int) -> Any:
    """`y = x + 1`, n times."""
    for _ in range(n):
        y = x + 1
    return y


# -- small graphs -------------------------------------------------------------------------------------------------


def _graphs(issue: Callable[[Library, Any, int], list[Any]], shape: tuple[int, ...]) -> Callable[..., Awaitable[Run]]:
    """A work that issues a graph and waits for all of it."""

    async def prepare(library: Library, n: int) -> Run:
        x = await library.put(ones(shape) / shape[-1])

        async def run(count: int) -> None:
            for _ in range(count):
                await library.finish(issue(library, x, n))

        return run

    return prepare


def increments(library: Library, x: Any, n: int) -> list[Any]:
    if library.apply is None:
        return [add_repeatedly(x, n)]
    return [library.apply(plus_one, x) for _ in range(n)]


def chain(library: Library, x: Any, n: int) -> list[Any]:
    if library.apply is None:
        for _ in range(n):
            x = x + 1
    else:
        for _ in range(n):
            x = library.apply(plus_one, x)
    return [x]


def _inline(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


def diamonds(library: Library, x: Any, n: int) -> list[Any]:
    """Two products of one sum, and their sum."""
    apply = library.apply or _inline
    found = []
    for _ in range(n):
        a = apply(plus_one, x)
        found.append(apply(add, apply(multiply, a, x), apply(multiply, x, a)))
    return found


def fan_out(library: Library, x: Any, n: int) -> list[Any]:
    """A product, and n products of it that are all kept."""
    apply = library.apply or _inline
    x = apply(multiply, x, x)
    return [apply(multiply, x, x) for _ in range(n)]


def _awaited(shape: tuple[int, ...]) -> Callable[..., Awaitable[Run]]:
    """Each operation waited for before the next."""

    async def prepare(library: Library, n: int) -> Run:
        x = await library.put(ones(shape))

        async def run(count: int) -> None:
            await _await_each(library, x, n * count)

        return run

    return prepare


def _beside_a_callable(prepare: Callable[..., Awaitable[Run]]) -> Callable[..., Awaitable[Run]]:
    """A work beside a callable that runs all the while, for a second at most."""

    async def prepare_both(library: Library, n: int) -> Run:
        work = await prepare(library, n)

        async def run(count: int) -> None:
            assert library.call is not None
            gate = threading.Event()
            waiting = asyncio.ensure_future(library.call(gate.wait, 1.0))
            await asyncio.sleep(0)
            await work(count)
            gate.set()
            await waiting

        return run

    return prepare_both


async def _await_each(library: Library, x: Any, n: int) -> None:
    apply, call, wait = library.apply, library.call, library.wait
    if apply is None and wait is None and call is None:
        add_repeatedly(x, n)
    elif apply is None and call is not None:
        for _ in range(n):
            await (x + 1)
    elif call is not None:
        for _ in range(n):
            await call(plus_one, x)
    else:
        assert wait is not None
        for _ in range(n):
            wait(x + 1 if apply is None else apply(plus_one, x))


def tanh_gelu(xp: Any, x: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


async def captured(library: Library, n: int) -> Run:
    """A chain of elementwise operations, as one thing where the library can make it one."""
    x = await library.put(np.random.default_rng(0).standard_normal((1024, 2048)).astype(np.float32))
    chain = await library.compiled(tanh_gelu, x)

    async def run(count: int) -> None:
        for _ in range(count):
            await library.finish([chain(x) for _ in range(n)])

    return run


# -- functions ----------------------------------------------------------------------------------------------------


def _called(fn: Callable[[Any], Any], shape: tuple[int, ...]) -> Callable[..., Awaitable[Run]]:
    """A function of an array, awaited."""

    async def prepare(library: Library, n: int) -> Run:
        x = await library.put(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
        call = library.call
        if call is None:
            raise NotImplementedError(f"{library.module} has no functions to await")

        async def run(count: int) -> None:
            for _ in range(n * count):
                await call(fn, x)

        return run

    return prepare


async def dot_in_a_thread(library: Library, n: int) -> Run:
    """NumPy in a thread that is not the library's."""
    x = ones((1000, 1000))

    async def run(count: int) -> None:
        for _ in range(n * count):
            await asyncio.to_thread(np.dot, x, x)

    return run


async def pending(library: Library, n: int) -> Run:
    """Operations that all wait until the last is issued; the time of the wait for that is not counted."""
    from .overhead import Pending

    async def run(count: int) -> float:
        work = Pending("independent", n)
        for _ in range(count):
            await work.run()
        return work.total

    return run


async def importing(library: Library, n: int) -> Run:
    """Processor time of an import, in a new process."""
    from .overhead import import_seconds

    async def run(count: int) -> float:
        return sum(import_seconds(library.module) for _ in range(count))

    return run


async def peak(library: Library, n: int) -> Run:
    """Bytes by which the process grew at most in some steps of training, with all that they need."""
    before = synthetic.new_peak()

    async def run(count: int) -> float:
        train = await trainers.training(library, n, fresh=True)
        await train(n)
        return synthetic.resident("VmHWM") - before

    if not before or library.module == "ray":
        raise NotImplementedError("its memory is in other processes" if before else "no /proc to read it from")
    return run


_MEDIUM, _LARGE = (1, 2048), (1000, 1000)
WORKS: dict[str, Work] = {
    "tiny": Work(_graphs(increments, (1, 2)), 10_000, small=True),
    "8 KiB": Work(_graphs(increments, _MEDIUM), 10_000, small=True),
    "64 KiB": Work(_graphs(increments, (16, 1024)), 5_000, small=True),
    "large": Work(_graphs(increments, _LARGE), 50),
    "chain": Work(_graphs(chain, (1, 2)), 1_000, small=True),
    "diamonds": Work(_graphs(diamonds, (256, 256)), 50),
    "fan-out": Work(_graphs(fan_out, (64, 64)), 10_000),
    "tiny awaited": Work(_awaited((1, 2)), 1_000, small=True),
    "8 KiB awaited": Work(_awaited(_MEDIUM), 1_000),
    "64 KiB awaited": Work(_awaited((16, 1024)), 1_000),
    "8 KiB awaited beside": Work(_beside_a_callable(_awaited(_MEDIUM)), 1_000),
    "captured": Work(captured, 10),
    "call": Work(_called(plus_one, (1, 2)), 1_000),
    "svd": Work(_called(np.linalg.svd, (200, 200))),
    "dot in to_thread": Work(dot_in_a_thread),
    **{f"pending {n}": Work(pending, n) for n in (10, 100, 1_000, 10_000, 50_000, 100_000, 1_000_000)},
    **{f"width {n}": Work(_graphs(fan_out, (64, 64)), n) for n in (1, 10, 100, 1_000)},
    **{f"issued {n}": Work(_graphs(increments, (1, 2)), n) for n in (10, 100, 1_000, 10_000, 100_000, 1_000_000)},
    "import": Work(importing),
    "training": Work(partial(trainers.training, fresh=True)),
    "training, data on the device": Work(partial(trainers.training, fresh=False)),
    "peak": Work(peak, 20, once=True),
    "cnn": Work(rows.cnn_steps),
    **{name: Work(partial(rows.row, row=row)) for name, row in rows.ROWS.items()},
}
