"""A scheduler as an executor: what asyncio and threads see, and CPython's own tests of executors."""

from __future__ import annotations

import asyncio
import importlib
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import fail, held, no_collector, tasks_made_by, turns, until


async def test_tensors_are_arrays_by_position_and_by_name(s):
    x = await s.put(np.arange(3.0))
    with_name = s.as_executor().submit(np.linalg.norm, x=x, ord=1)
    assert await asyncio.wrap_future(with_name) == 3.0
    assert await asyncio.wrap_future(s.as_executor().submit(np.add, x, x)) @ np.ones(3) == 6.0


async def test_a_future_tells_that_it_runs(s, gate):
    future = s.as_executor().submit(held, gate, 1)
    await until(future.running)
    assert not future.cancel()
    gate.set()
    assert await asyncio.wrap_future(future) == 1


async def test_a_future_that_is_not_done_does_not_block_the_loop(s, gate):
    executor = s.as_executor()
    future = executor.submit(held, gate, 1)
    for ask in (future.result, future.exception, lambda: list(executor.map(abs, [1]))):
        with pytest.raises(asc.ImplicitBarrierError, match=r"await asyncio.wrap_future\(future\)"):
            ask()
    with pytest.raises(TimeoutError):
        future.result(0)
    asyncio.get_running_loop().call_soon(gate.set)
    assert await asyncio.to_thread(future.result) == 1
    assert future.result() == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_what_would_end_the_loop_is_for_whoever_asks_the_future(s, error):
    """As with a pool of threads. A parser of arguments exits so, say."""

    def leave() -> None:
        raise error

    future = s.as_executor().submit(leave)
    await until(future.done)
    assert future.exception() is error
    assert await s.call(int) == 0


async def test_a_task_factory_that_fails_fails_the_future_alone(s):
    def make(loop, coro, **options):
        if coro.__qualname__ == "Tasks._result":
            raise OSError("no more tasks")
        return asyncio.Task(coro, loop=loop, **options)

    executor = s.as_executor()
    with tasks_made_by(make):
        future = await asyncio.to_thread(executor.submit, abs, -1)
        with pytest.raises(OSError, match="no more tasks"):
            await asyncio.wrap_future(future)
    assert await asyncio.wrap_future(executor.submit(abs, -1)) == 1


@pytest.mark.parametrize("error", [StopIteration(3), StopAsyncIteration(), GeneratorExit(), asyncio.CancelledError()])
async def test_what_cannot_pass_through_await_is_for_whoever_asks_the_future(s, error):
    """An `await` of the same future raises what can, and does not wait for ever."""

    def leave() -> None:
        raise error

    future = s.as_executor().submit(leave)
    with pytest.raises(RuntimeError, match=f"the function raised {type(error).__name__}, which cannot pass"):
        await asyncio.wrap_future(future)
    assert future.exception() is error
    with pytest.raises(type(error)):
        future.result()


async def test_leaving_waits_for_what_was_submitted_in_the_same_step():
    async with asc.Scheduler("cpu") as s:
        async with s.scope():
            first = s.as_executor().submit(abs, -1)
        assert await asyncio.wrap_future(first) == 1
        second = s.as_executor().submit(abs, -2)
    assert await asyncio.wrap_future(second) == 2


async def test_what_has_not_begun_is_cancelled(s, gate):
    executor = s.as_executor()
    ran: list[int] = []
    running = [executor.submit(held, gate) for _ in s.devices[0].streams]
    await until(lambda: all(future.running() for future in running))
    others = [executor.submit(ran.append, i) for i in range(5)]
    executor.shutdown(cancel_futures=True)  # waits for nothing on the loop's thread
    gate.set()
    await asyncio.wait([asyncio.wrap_future(future) for future in running])
    await s.barrier()
    assert all(other.cancelled() for other in others)
    assert ran == []


@pytest.mark.drops_at_once
@pytest.mark.parametrize("fn", [id, fail])
async def test_a_future_that_is_dropped_leaves_no_circle(s, fn):
    class Argument:
        pass

    async def once() -> weakref.ref[Argument]:
        argument = Argument()
        future = s.as_executor().submit(fn, argument)
        await until(future.done)
        return weakref.ref(argument)

    with no_collector():
        left = await once()
        await until(lambda: left() is None)


async def test_a_coroutine_function_is_refused(s):
    async def main() -> None:
        pass

    class Main:
        async def __call__(self) -> None:
            pass

    for fn in (main, Main()):
        with pytest.raises(TypeError, match="coroutine function"):
            s.as_executor().submit(fn)


async def test_a_failing_scope_fails_its_futures(gate):
    async with asc.Scheduler("cpu", streams=1) as s:
        with pytest.raises(LookupError):
            async with s.scope():
                executor = s.as_executor()  # used here, in the scope
                first = executor.submit(held, gate)
                await until(first.running)
                second = executor.submit(int)
                await until(lambda: s.statistics().tasks_submitted == 2)
                asyncio.get_running_loop().call_soon(gate.set)
                fail()
    with pytest.raises((asc.TaskCancelled, CancelledError)):
        await asyncio.wrap_future(second)
    with pytest.raises((asc.TaskCancelled, CancelledError)):
        await asyncio.wrap_future(first)


async def test_a_function_that_is_about_to_begin_when_its_scope_fails_has_an_end(s, gate, monkeypatch):
    """Its thread has taken the turn to tell that it runs, and others run before it has told."""
    begins, tell = threading.Event(), Future.set_running_or_notify_cancel

    def late(future: Any) -> bool:
        begins.set()
        return held(gate) or tell(future)

    async def open_later() -> None:
        await turns()
        gate.set()

    monkeypatch.setattr(Future, "set_running_or_notify_cancel", late)
    with pytest.raises(LookupError):
        async with s.scope():
            future = s.as_executor().submit(int)
            await until(begins.is_set)
            opening = asyncio.create_task(open_later())
            fail()
    await opening
    await until(future.done)
    assert isinstance(future.exception(), asc.TaskCancelled)


@contextmanager
def in_background(**limits: Any) -> Iterator[Executor]:
    """The executor of a scheduler whose loop runs on a thread of its own."""
    ready: list[Any] = []
    opened = threading.Event()

    async def main() -> None:
        async with asc.Scheduler("cpu", **limits) as s:
            ended = asyncio.Event()
            ready.extend([s.as_executor(), asyncio.get_running_loop(), ended])
            opened.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    opened.wait()
    executor, loop, ended = ready
    try:
        yield executor
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


@pytest.mark.parametrize("max_ops", [1, 64])
def test_leaving_its_block_waits_as_with_any_executor(max_ops):
    finished: list[int] = []
    with in_background(max_ops=max_ops) as executor:
        with executor:
            executor.map(finished.append, range(20))
        assert sorted(finished) == list(range(20))


MIXINS = ("executor.ExecutorTest", "test_wait.WaitTests", "test_as_completed.AsCompletedTests")
MIXINS += ("test_shutdown.ExecutorShutdownTest",)
NOT_OURS = {
    "test_max_workers_negative": "there is no max_workers: a scheduler has streams and max_ops, and checks them",
    "test_cancel_futures": "expects some to have begun at once, before the loop has turned: see above",
    "test_interpreter_shutdown": "makes an executor by class: ours is made by a scheduler",
    "test_submit_after_interpreter_shutdown": "the same",
    "test_hang_gh83386": "the same",
    "test_hang_gh94440": "the same",
}


def cpythons() -> list[Any]:
    """CPython's tests of executors, from where its package of tests is installed."""
    try:
        found = [getattr(_module(name), name.partition(".")[2]) for name in MIXINS]
    except ImportError as error:
        return [pytest.param(None, None, marks=pytest.mark.skip(f"CPython's tests are not installed: {error}"))]
    return [
        pytest.param(mixin, name, id=f"{mixin.__name__}-{name}")
        for mixin in found
        for name in dir(mixin)
        if name.startswith("test_") and name not in NOT_OURS
    ]


def _module(name: str) -> Any:
    return importlib.import_module(f"test.test_concurrent_futures.{name.partition('.')[0]}")


@pytest.mark.parametrize(("mixin", "name"), cpythons())
def test_cpythons_own(mixin, name):
    import unittest

    class ExecutorsTest(mixin, unittest.TestCase):
        worker_count = 5
        create_event = staticmethod(threading.Event)  # asked for from 3.13.15 on

        def setUp(self) -> None:
            self.executor = self.enterContext(in_background(streams=5))

        def tearDown(self) -> None:
            self.executor.shutdown()

    result = unittest.TestResult()
    ExecutorsTest(name).run(result)
    assert result.testsRun
    assert not [text for _, text in (*result.failures, *result.errors)]
