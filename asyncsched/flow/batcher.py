"""One call for what many callers ask for at the same time.

Theory of operation. Callers put an item into a queue and wait for a future each. While the queue holds anything, up to
`concurrency` runners live: each forms a batch, computes it and forms the next, and ends when it finds the queue empty.
So there is nothing to open or close, and nothing polls. What arrives while all runners are busy is the next batch:
batches grow with the load, and a lone item is not held up.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..ambient import find
from ..scope import Scope
from .batcher_queue import Queue, Waiting
from .rate import Rate

if TYPE_CHECKING:
    from ..scheduler import Scheduler

Item = TypeVar("Item")
Result = TypeVar("Result")
Answered = tuple[list[Waiting], Sequence[Any]]


@dataclass(frozen=True)
class BatcherStatistics:
    """A snapshot of a batcher. Costs are in the unit of its `cost`; times are seconds; counts are since it was made."""

    items: int
    """Items accepted."""
    completed: int
    """Items that a batch answered, with a result or with an exception."""
    dropped: int
    """Items that were cancelled or expired before they were computed, and so never were."""
    refused: int
    """Items turned away because the queue was full."""
    batches: int
    """Batches computed."""
    waiting: int
    """Items in the queue."""
    waiting_cost: float
    """What the items in the queue cost together."""
    computing: int
    """Items in batches that are being computed."""
    largest_batch: int
    """The most items that ever were in one batch."""
    wait_seconds: float
    """How long items have waited for their batch, added up."""
    estimated_wait: float | None
    """How long the queue as it is now would take to drain, by the measured rate; None before the first batch."""


class Batcher(Generic[Item, Result]):
    """Gathers the items of many callers and computes them together: `result = await batcher(item)`.

    A batch is what has gathered while the one before was computed. Items are taken in the order they came. An item whose
    caller was cancelled, or whose scope's deadline has passed, is dropped from the queue and from a batch that has not
    started; one in a batch that runs is computed, and its result dropped.

    Each batch runs in a scope of its own, in the context in which the batcher was made, not in that of a caller. A batcher
    belongs to one event loop, and needs no closing: with an empty queue nothing of it runs.

    Args:
        fn: takes a list of items and returns as many results in the same order, a list or an array. A result that is an
            exception is raised in the caller of that item alone; one that it raises is raised in all callers of the batch. A
            coroutine function is awaited on the loop; a plain one runs on a stream of the scheduler, like what is
            submitted, and takes no tensors.
        max_batch_cost: most that the items of one batch cost together.
        max_wait: seconds that the oldest item may wait for a batch to fill up. With 0 it never waits for others.
        max_queue: most items in the queue; None for no bound.
        cost: what an item costs: rows, tokens, padded size. Called once per item; without it each costs 1.
        concurrency: how many batches are computed at a time.
        scheduler: whose streams and scopes it uses; default the ambient one when a batch is computed.
    """

    def __init__(
        self,
        fn: Callable[[list[Item]], Sequence[Result | Exception]]
        | Callable[[list[Item]], Awaitable[Sequence[Result | Exception]]],
        *,
        max_batch_cost: float = 32,
        max_wait: float = 0.0,
        max_queue: int | None = 1024,
        cost: Callable[[Item], float] | None = None,
        concurrency: int = 1,
        scheduler: Scheduler | None = None,
    ) -> None:
        _check(fn, max_batch_cost, max_wait, max_queue, concurrency)
        self._fn: Callable[[list[Any]], Any] = fn
        self._name = getattr(fn, "__qualname__", None) or type(fn).__name__
        self._is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))
        self._max_wait = max_wait
        self._cost = cost
        self._concurrency = concurrency
        self._scheduler = scheduler
        self._context = contextvars.copy_context()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue = Queue(max_batch_cost, max_queue)
        self._filled: asyncio.Event | None = None  # the queue fills a batch; there while a runner waits for it
        self._runners: set[asyncio.Task[None]] = set()  # the loop alone would not keep them
        self._running = 0  # runners that will look at the queue again
        self._rate = Rate()
        self._since = 0.0  # when the rate was last added to, or the runners began
        self._items = self._completed = self._refused = self._batches = self._computing = self._largest = 0
        self._waited = 0.0

    async def __call__(self, item: Item) -> Result:
        """Wait for a batch with this item, and return its result. Cancelling it drops the item.

        Raises:
            QueueFull: at once, if `max_queue` items wait. Its `retry_after` is the time the queue will take.
            TaskTooLarge: if the item costs more than a batch may.
            Exception: whatever `fn` returned for this item, or raised.
        """
        loop = self._bind()
        cost = 1 if self._cost is None else self._cost(item)
        self._check_room(cost)
        # No await between the books and the queue: what was counted is there.
        waiting = Waiting(item, cost, loop.create_future(), loop.time(), _deadline())
        self._queue.push(waiting)
        self._items += 1
        self._wake()
        try:
            return cast(Result, await waiting.future)
        finally:
            self._queue.forget(waiting)
            if waiting.future.done() and not waiting.future.cancelled():
                waiting.future.exception()  # seen, even if the caller was cancelled in the same turn

    def statistics(self) -> BatcherStatistics:
        """A snapshot."""
        queue = self._queue
        return BatcherStatistics(
            items=self._items,
            completed=self._completed,
            dropped=queue.dropped,
            refused=self._refused,
            batches=self._batches,
            waiting=len(queue),
            waiting_cost=queue.cost,
            computing=self._computing,
            largest_batch=self._largest,
            wait_seconds=self._waited,
            estimated_wait=self._rate.seconds_for(len(queue)),
        )

    def __repr__(self) -> str:
        return f"Batcher({self._name}, {len(self._queue)} waiting, {self._computing} computing)"

    # -- arriving -----------------------------------------------------------------------------------------------

    def _bind(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("a batcher belongs to the event loop that used it first: make one for each loop")
            self._loop, self._running = loop, 0
        return loop

    def _check_room(self, cost: float) -> None:
        try:
            self._queue.check(cost)
        except QueueFull as full:
            self._refused += 1
            full.retry_after = self._rate.seconds_for(len(self._queue))
            raise

    def _wake(self) -> None:
        if self._filled is not None and self._queue.fills_a_batch:
            self._filled.set()
        if self._running < self._concurrency:
            if not self._running:
                self._since = self._now()
            self._running += 1
            runner = asyncio.create_task(self._run(), name=f"batches of {self._name}", context=self._context.copy())
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)

    # -- computing ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._queue:
                if self._max_wait:
                    await self._gather()
                await self._next_batch()
        finally:
            self._running -= 1

    async def _gather(self) -> None:
        """Wait until the queue fills a batch, or its oldest item has waited long enough."""
        self._filled = asyncio.Event()
        if self._queue.fills_a_batch:
            return
        try:
            async with asyncio.timeout_at(self._queue.oldest.arrived + self._max_wait):
                await self._filled.wait()
        except TimeoutError:
            return

    async def _next_batch(self) -> None:
        batch: list[Waiting] = []
        try:
            driver = find(self._scheduler)
            async with Scope(driver, driver.scope, f"batch of {self._name}", None) as scope:
                batch = self._form()
                answered = await self._compute(scope, batch) if batch else None
        except Exception as error:
            _fail(batch or self._form(), error)
        except BaseException:  # the loop is ending, and the callers with it
            for waiting in batch:
                waiting.future.cancel()
            raise
        else:
            if answered is not None:
                _deliver(*answered)
        finally:
            self._finished(len(batch))

    def _form(self) -> list[Waiting]:
        now = self._now()
        batch = self._queue.form(now)
        self._waited += sum(now - waiting.arrived for waiting in batch)
        self._computing += len(batch)
        self._largest = max(self._largest, len(batch))
        return batch

    async def _compute(self, scope: Scope, batch: list[Waiting]) -> Answered:
        if self._is_async:
            return batch, await self._fn([waiting.item for waiting in batch])
        return await scope.call(partial(self._in_stream, batch), name=self._name)

    def _in_stream(self, batch: list[Waiting]) -> Answered:
        """On a stream's thread, when the batch's turn has come: compute what is still wanted."""
        now = self._now()
        wanted = [waiting for waiting in batch if waiting.wanted(now)]
        return wanted, self._fn([waiting.item for waiting in wanted]) if wanted else []

    def _finished(self, count: int) -> None:
        now = self._now()
        if count:
            self._rate.add(count, now - self._since)
            self._batches += 1
            self._completed += count
            self._computing -= count
        self._since = now

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()
