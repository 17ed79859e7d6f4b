"""Stages that run plain functions in threads."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextvars import copy_context
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
        self.function = function
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
        self.serve(self.function)

    def serve(self, function: Callable[[Any], Any]) -> None:
        """Make the calls that a thread takes, by a function of its own."""
        while not self._stopped and (call := self._calls.get()) is not None:
            started = perf_counter()
            try:
                call.item = checked(copy_context().run(function, call.item))
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


def checked(result: Any) -> Any:
    """What a plain function returned, unless it is a coroutine."""
    if type(result) is types.CoroutineType:
        result.close()
        raise TypeError("the function returned a coroutine: pass the coroutine function, not one around it")
    return result
