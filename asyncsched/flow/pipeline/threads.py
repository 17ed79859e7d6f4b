"""Stages that run plain functions: in threads, in processes."""

from __future__ import annotations

import multiprocessing
import types
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import anyio

from ...runtime.cancellation import interrupts_pass
from ...runtime.threads import in_thread, yield_to_streams
from .entry_queue import EntryQueue
from .origin import Origin, brief
from .stages import Call, ReorderBuffer, Stage


class ThreadStage(Stage):
    """A plain function in threads, which share one queue."""

    def __init__(self, function: Callable[[Any], Any], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._function = function
        self._results = ReorderBuffer(self)
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._made = EntryQueue(self._collect)
        self._stopped = False
        self._seconds = 0.0

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(self.workers):
                group.start_soon(in_thread, self._work, f"pipeline {self.name}")
            try:
                with interrupts_pass():
                    await self.feed()
            except BaseException:
                self._stopped = True
                raise
            finally:
                for _ in range(self.workers):
                    self._calls.put(None)
        self._made.drain()
        self.finish()

    def busy(self, now: float) -> float:
        return self._seconds

    def fail(self, origin: Origin, error: BaseException, given: str = "") -> None:
        self._stopped = True  # what no thread has taken comes after it
        super().fail(origin, error, given)

    async def feed(self) -> None:
        """Give every item to the threads."""
        while await self.ready():
            self.give(*self.source.take())

    def give(self, origin: Origin, item: Any) -> None:
        """Give one item, for whose result there is room."""
        self._calls.put(self._results.enter(origin, item))

    def _work(self) -> None:
        """What each of the threads runs."""
        yield_to_streams()
        while not self._stopped and (call := self._calls.get()) is not None:
            started = perf_counter()
            try:
                call.item = _checked(copy_context().run(self._function, call.item))
            except BaseException as error:
                call.item, call.error = brief(call.item), error
            call.seconds = perf_counter() - started
            self._made.append(call)
            del call  # while it waits, a thread holds nothing
            # While there are more calls and the next stage lacks nothing, the loop need not wake up for each result.
            # It cannot be forgotten: the last thread that works finds no more calls.
            if self._calls.empty() or not self.out.lacks(len(self._made)):
                self._made.wake()

    def _collect(self, call: Call) -> None:
        self._seconds += call.seconds
        self._results.ended(call)


class BatchStage(ThreadStage):
    """Batches of `size` items, collated in a thread."""

    def __init__(self, collate: Callable[[list[Any]], Any], size: int, drop_last: bool, *args: Any) -> None:
        super().__init__(collate, *args)
        self._size = size
        self._drop_last = drop_last

    async def feed(self) -> None:
        source = self.source
        while await self.ready():
            taken = [source.take()]
            while len(taken) < self._size and (source.items or await source.arrived(self._size - len(taken))):
                taken.append(source.take())
            if len(taken) < self._size and (self._drop_last or source.error is not None):
                return
            self.give(tuple(origin for origin, _ in taken), [item for _, item in taken])
            del taken


class ProcessStage(ThreadStage):
    """A plain function in processes: for each a thread that waits for it."""

    async def run(self) -> None:
        context = multiprocessing.get_context("spawn")
        pool = await in_thread(partial(ProcessPoolExecutor, self.workers, context), f"pipeline {self.name}")
        self._function = partial(_elsewhere, pool, self._function)
        try:
            await super().run()
        finally:
            await in_thread(pool.shutdown, f"pipeline {self.name}")


def _elsewhere(pool: Executor, function: Callable[[Any], Any], item: Any) -> Any:
    return pool.submit(function, item).result()


def _checked(result: Any) -> Any:
    """What a plain function returned, unless it is a coroutine."""
    if type(result) is types.CoroutineType:
        result.close()
        raise TypeError("the function returned a coroutine: pass the coroutine function, not one around it")
    return result
