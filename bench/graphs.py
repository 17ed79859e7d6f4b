"""Works of small operations: how they are issued, how they are waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from .libraries import Library

Run = Callable[[int], Awaitable[float | None]]
Prepare = Callable[..., Awaitable[Run]]


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


def graphs(issue: Callable[[Library, Any, int], list[Any]], shape: tuple[int, ...]) -> Prepare:
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


def awaited(shape: tuple[int, ...]) -> Prepare:
    """Each operation waited for before the next."""

    async def prepare(library: Library, n: int) -> Run:
        x = await library.put(ones(shape))

        async def run(count: int) -> None:
            await _await_each(library, x, n * count)

        return run

    return prepare


def beside_a_callable(prepare: Prepare) -> Prepare:
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
