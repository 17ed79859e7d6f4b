"""Waiting in tests: for what must come, for what must not, in a stream's thread, and by a clock of the test's."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any

import pytest

from asyncsched.runtime.context import ambient

LONGEST = 100.0  # seconds: a little less than the timeout of a test, which shows no answer


class Clock:
    """Seconds that pass when a test says so, on whatever thread."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


async def until(holds: Callable[[], object]) -> None:
    """Let the loop turn until something is so. How long that takes is no promise; but a test that hangs says where.

    Raises:
        AssertionError: if it is not so in time, with the line that asks and the last answer.
    """
    end = monotonic() + LONGEST
    while not (answer := holds()):
        if monotonic() > end:
            raise AssertionError(f"after {LONGEST:g} s still {answer!r}: {_where(holds)}")
        await asyncio.sleep(0)


def _where(function: Callable[..., object]) -> str:
    code = getattr(function, "__code__", None)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


async def turns(count: int = 30) -> None:
    """Let the loop turn often enough for whatever it has to do."""
    for _ in range(count):
        await asyncio.sleep(0)


def held(gate: threading.Event, result: Any = None) -> Any:
    """A task's body that ends when its gate opens."""
    assert gate.wait(60)
    return result


def fail(text: str = "broken") -> None:
    """A task's body that ends otherwise."""
    raise LookupError(text)


async def settled(handle: Any) -> Any:
    """Wait for a task or a tensor without letting its result out. Returns the handle."""
    await until(handle.done)
    return handle


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel it, and see that it ends so."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@contextmanager
def outside() -> Iterator[None]:
    """Work in none of the scopes around, as a task does that was made before they were entered."""
    token = ambient.set(None)
    try:
        yield
    finally:
        ambient.reset(token)


def passes(scope: Any) -> None:
    """The deadline of an open scope passes, in the next turn of the loop."""
    asyncio.get_running_loop().call_soon(deadline_of(scope)._pass)


def deadline_of(scope: Any) -> Any:
    """The timer of an open scope's deadline, which no test could wait for."""
    assert scope._timeout is not None
    return scope._timeout


@contextmanager
def tasks_made_by(factory: Callable[..., asyncio.Task[Any]]) -> Iterator[None]:
    """asyncio tasks that this loop makes in here are made by a factory of tasks."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        yield
    finally:
        loop.set_task_factory(None)


def eager_tasks() -> AbstractContextManager[None]:
    """asyncio tasks that are made in here run at once, up to where they wait. Skips where there are none."""
    if sys.version_info < (3, 12):
        pytest.skip("no eager tasks")
    if "uvloop" in type(asyncio.get_running_loop()).__module__:
        pytest.skip("some versions of uvloop call the factory of eager tasks in a way that it refuses")
    return tasks_made_by(asyncio.eager_task_factory)


def no_tasks(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    """A factory of tasks that makes none."""
    coro.close()
    raise LookupError("no more tasks")


@contextmanager
def no_collector() -> Iterator[None]:
    """What is free in here is so without the collector of cycles. What that had to free before is gone."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def outlasts_cancellations(task: asyncio.Task[Any], gate: threading.Event, times: int = 1) -> None:
    """However often it is cancelled, it waits for the body that waits for `gate`; then it ends cancelled."""
    for _ in range(times):
        task.cancel()
        await turns()
        assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
