"""Computing batches, one after another, for as long as there are items."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from time import monotonic
from typing import Any

from ...errors import TaskCancelled
from ...runtime.context import Ambient, ambient, current_scope, find
from ...runtime.rates import Rate
from ..scope import Scope, Sharing, Submitter
from .queue import Queue, Waiting

Answered = tuple[list[Waiting], Sequence[Any]]


class Runners:
    """The runners of a batcher: coroutines that each form a batch, compute it, and form the next."""

    def __init__(
        self, fn: Callable[[list[Any]], Any], queue: Queue, max_wait: float, most: int, scheduler: Submitter | None
    ) -> None:
        self.name: str = getattr(fn, "__qualname__", None) or type(fn).__name__
        self.batches = self.answered = self.computing = self.largest = 0
        self.rate = Rate()
        self._fn = fn
        self._is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
        self._queue = queue
        self._max_wait = max_wait
        self._most = most
        self._scheduler = scheduler
        self._context = contextvars.copy_context()
        self._context.run(_leave_scopes)
        self._active = 0  # runners that will look at the queue again
        self._tasks: set[asyncio.Task[None]] = set()  # the loop alone would not keep them
        self._filled = asyncio.Event()  # set when the queue fills a batch
        self._since = 0.0  # when the rate was last measured, or work began

    def wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """An item has joined the queue."""
        if self._queue.fills_a_batch:
            self._filled.set()
        if self._active == self._most:
            return
        if not self._active:
            self._since = monotonic()
        self._active += 1
        task = loop.create_task(self._run(), name=f"batches of {self.name}", context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        try:
            while self._queue:
                if self._max_wait:
                    await self._fill()
                await self._next_batch()
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):  # the loop is ending
            _cancel(self._queue.empty())
            raise
        finally:
            self._active -= 1  # in the same step that found the queue empty: who comes next starts a runner

    async def _fill(self) -> None:
        """Wait until the queue fills a batch, or its oldest item has waited long enough."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._queue.oldest.arrived + self._max_wait - monotonic()):
                while not self._queue.fills_a_batch:
                    self._filled.clear()
                    await self._filled.wait()

    async def _next_batch(self) -> None:
        batch: list[Waiting] = []
        try:
            runtime = find(self._scheduler)
            parent = partial(current_scope, runtime)
            async with Scope(runtime, parent, f"batch of {self.name}", None, sharing=Sharing()) as scope:
                batch = self._form()
                wanted, returned = await self._compute(scope, batch)
                results = _one_each(returned, len(wanted), self.name)
        except GeneratorExit:  # the loop is gone
            raise
        except BaseException as error:  # some libraries raise their own, and callers wait for what becomes of the batch
            batch = batch or self._form()
            if _ends_the_loop(error):
                _cancel(batch)
                raise
            self._fail(batch, error)
        else:
            self._deliver(batch, wanted, results)
        finally:
            self._ended(len(batch), monotonic())

    def _form(self) -> list[Waiting]:
        batch = self._queue.form(monotonic())
        self.computing += len(batch)
        self.largest = max(self.largest, len(batch))
        return batch

    async def _compute(self, scope: Scope, batch: list[Waiting]) -> Answered:
        if not batch:
            return [], []
        if self._is_async:
            return batch, await self._fn([waiting.item for waiting in batch])
        return await scope.call(partial(self._on_stream, batch), name=self.name)

    def _on_stream(self, batch: list[Waiting]) -> Answered:
        """On a stream's thread, when the batch is begun: compute what is wanted still."""
        now = monotonic()
        wanted = [waiting for waiting in batch if waiting.wanted(now)]
        return wanted, self._fn([waiting.item for waiting in wanted]) if wanted else []

    def _deliver(self, batch: list[Waiting], wanted: list[Waiting], results: list[Any]) -> None:
        self.answered += len(wanted)
        self._queue.dropped += len(batch) - len(wanted)
        for waiting, result in zip(wanted, results, strict=True):
            waiting.settle(result)
        for waiting in batch:
            waiting.expire()

    def _fail(self, batch: list[Waiting], error: BaseException) -> None:
        self.answered += len(batch)
        if isinstance(error, asyncio.CancelledError):
            error = TaskCancelled(f"{self.name}, the function of a batcher, ended in a CancelledError")
        for waiting in batch:
            waiting.settle(error)

    def _ended(self, count: int, now: float) -> None:
        if count:
            self.batches += 1
            self.computing -= count
            self.rate.add(count, now - self._since)
        self._since = now


def _leave_scopes() -> None:
    """A batcher outlives the scope that it was made in, a request's say."""
    here = ambient.get()
    if here is not None:
        ambient.set(Ambient(here.runtime, here.runtime.engine.root, None))


def _ends_the_loop(error: BaseException) -> bool:
    if isinstance(error, asyncio.CancelledError):
        runner = asyncio.current_task()
        return runner is not None and runner.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | SystemExit)


def _cancel(items: list[Waiting]) -> None:
    for waiting in items:
        waiting.future.cancel()


def _one_each(returned: Any, wanted: int, name: str) -> list[Any]:
    if not hasattr(returned, "__len__") or isinstance(returned, Mapping | Set | str):
        raise TypeError(f"{name} must return a list of results, one per item, not {type(returned).__name__}")
    results = list(returned)
    if len(results) != wanted:
        raise ValueError(
            f"{name} got {wanted} items and returned {len(results)} results: return one per item, in order"
        )
    return results
