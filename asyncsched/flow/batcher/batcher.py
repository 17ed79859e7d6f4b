"""One call for the items of many callers.

Theory of operation. Callers put an item into a queue and wait for a future each. While the queue holds anything, up to
`concurrency` runners live. Each forms a batch, computes it and forms the next, and ends when it finds the queue empty.
So there is nothing to open or close, and nothing polls. Items that arrive while all runners are busy make the next
batch: batches grow with the load, and a lone item is not held up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar, cast

from ..._arguments import check_int, parse_bytes
from ..._instead import naming_arguments
from ...pictures.record import Record, Seconds
from ...runtime.context import deadline, find, innermost
from ..scope import Scope, Submitter
from ..tasks import check_reserve
from .queue import BATCH, Queue, Waiting
from .runners import Runners

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, repr=False)
class BatcherStatistics(Record):
    """A snapshot of a batcher. Costs are in the unit of its `cost`; times are seconds; counts are since it was made."""

    items: int
    """Items accepted."""
    answered: int
    """Items whose batch has ended, with a result or with an exception."""
    dropped: int
    """Items that were never computed, since they were cancelled or expired before, or could not be in time any more."""
    refused: int
    """Items turned away because the queue was full, or too long for their deadline."""
    batches: int
    """Batches computed."""
    retries: int
    """Parts of failed batches that were computed again, to find the item that made them fail (`isolate`)."""
    waiting: int
    """Items in the queue."""
    waiting_cost: float
    """The cost of the items in the queue, added up."""
    computing: int
    """Items in batches that have begun and not ended."""
    largest_batch: int
    """The most items that ever were in one batch."""
    wait_seconds: Seconds
    """Seconds for which items have waited for their batch, added up."""
    estimated_wait: Seconds | None
    """Seconds the queue will take to drain, by the measured rate; None before the first batch."""


class Batcher(Generic[Item, Result]):
    """Gathers the items of many callers and computes them together: `result = await batcher(item)`.

    A batch is made of the items that gathered while the one before was computed, the oldest first. The tenants of the
    callers' scopes share it by cost over weight. The highest of the scopes' priorities goes first, but a lower one that
    waits gets every 17th place or so. If an item's caller was cancelled, or its scope's deadline has passed, it is
    dropped from the queue, and from a batch that has not started. In a batch that runs it is computed, and its result
    is dropped.

    Batches run in scopes of their own, below the scheduler itself, and in the context in which the batcher was made,
    not in a caller's. A batcher belongs to the event loop that uses it first; once that loop is closed, to the next. It
    needs no closing: while its queue is empty, nothing of it runs.

    >>> import asyncio, asyncsched as asc
    >>> async def main():
    ...     async with asc.Scheduler("cpu"):
    ...         async def model(rows):
    ...             print("a batch of", len(rows))
    ...             return [sum(row) for row in rows]
    ...         batcher = asc.Batcher(model)
    ...         print(await asyncio.gather(batcher([1, 2]), batcher([3, 4]), batcher([5, 6])))
    >>> asyncio.run(main())
    a batch of 3
    [3, 7, 11]

    Args:
        fn: takes a list of items and returns as many results in the same order, as a list or an array: no tuple, and no
            table, which iterates over its columns. A result that is an exception is raised in that item's caller alone.
            An exception of `fn` itself is raised in every caller of the batch. A coroutine function is awaited on the
            loop. A plain function runs on a stream of the scheduler and gets its items as they are: tensors need a
            coroutine function. The next batch may run on another stream's thread. So for an object that belongs to one
            thread, such as a connection of sqlite3, give a coroutine function that awaits
            `s.call(model, items, resource=model)`. `fn` may not wait for this batcher, which waits for it.
        max_batch_cost: the most that the items of one batch may cost, added up.
        max_queue: most items in the queue; None for no bound.
        cost: what an item costs: rows, tokens, padded size. Without it each costs 1.
        concurrency: how many batches are computed at a time; with 1 `fn` never runs twice at once.
        isolate: whether a batch that fails (by an `Exception` of `fn`, or by a wrong number of results) is computed
            again in halves, and these in halves, until the item that fails is alone. So each caller gets its own
            result, or its own error. Off by default, since `fn` may do something that must not be done twice. Among n
            items, one that fails takes at most 2 * ceil(log2(n)) more runs, k of them k times as many, all of them
            2n-2. These runs wait for admission like any batch, and take turns with the batches that form meanwhile.
        reserve: bytes that each batch claims before it is formed, as `s.scope(reserve=)` does, so that it does not lack
            bytes that others hold. Callers in scopes with reserves keep these while they wait: leave room for both.
        scheduler: whose streams and scopes are used; default the ambient one where the batcher is made, else that of
            its callers, else the only one open on the loop. If it is a scope, batches run in it, and take their bytes
            from its reserve, if it has one.

    Raises:
        TaskTooLarge: if the scheduler is known, and can never grant `reserve`.
    """

    @naming_arguments
    def __init__(
        self,
        fn: Callable[[list[Item]], Sequence[Result | Exception]]
        | Callable[[list[Item]], Awaitable[Sequence[Result | Exception]]],
        *,
        max_batch_cost: float = 32,
        max_queue: int | None = 1024,
        cost: Callable[[Item], float] | None = None,
        concurrency: int = 1,
        isolate: bool = False,
        reserve: int | str | None = None,
        scheduler: Submitter | None = None,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"a batcher takes a function of a list of items, not {type(fn).__name__}")
        check_int("max_queue", max_queue, none="no bound")
        check_int("concurrency", concurrency)
        if scheduler is not None:
            find(scheduler)  # raises if it is none
        self.reserve: int | None = None if reserve is None else parse_bytes(reserve, "reserve")
        if self.reserve is not None:
            check_reserve(self.reserve, _limit(scheduler), "a batch (reserve=)")
        self._queue = Queue(BATCH, max_batch_cost, max_queue, cost, concurrency)
        self._runners = Runners(fn, self._queue, concurrency, isolate, self.reserve, scheduler)

    async def __call__(self, item: Item) -> Result:
        """Wait for a batch with this item, and return its result. Cancelling it drops the item.

        Raises:
            QueueFull: at once, if `max_queue` items wait. Its `retry_after` is how long these will take. Or if its
                result would come after the deadline of the caller's scope, by how long batches took lately: mostly at
                once, and later where batches have become slower.
            TaskTooLarge: if the item costs more than a batch may.
            DeadlineExceeded: if the deadline of the caller's scope passes before the item is computed.
            MemoryDeadlockError: if its batch can get no bytes while the callers keep their reserves.
            Exception: the one that `fn` returned for this item, or raised.
        """
        loop = self._runners.bind()
        cost = self._queue.cost_of(item)
        self._queue.check(self._runners.rate)
        # No await between the check and the push, so the room that was found is still there.
        here, now = innermost(), monotonic()
        until, tenant = deadline(here), self._queue.tenant(None if here is None else here.core.queue.tenant)
        self._queue.check_time(tenant, cost, until, now)
        waiting = Waiting(item, cost, now, until, tenant, loop.create_future())
        self._queue.push(waiting)
        try:
            self._runners.wake(loop)
            return cast(Result, await waiting.future)
        finally:
            self._queue.drop(waiting)
            if waiting.future.done() and not waiting.future.cancelled():
                waiting.future.exception()  # seen, also when the caller was cancelled in the same step
            del waiting  # its future has the exception, which holds this frame

    def statistics(self) -> BatcherStatistics:
        """A snapshot."""
        queue, runners = self._queue, self._runners
        return BatcherStatistics(
            items=queue.accepted,
            answered=runners.answered,
            dropped=queue.dropped,
            refused=queue.refused,
            batches=runners.batches,
            retries=runners.retries,
            waiting=len(queue),
            waiting_cost=queue.cost,
            computing=runners.computing,
            largest_batch=runners.largest,
            wait_seconds=queue.waited,
            estimated_wait=runners.rate.seconds_for(len(queue)),
        )

    def __repr__(self) -> str:
        return f"Batcher({self._runners.name}, {len(self._queue)} waiting, {self._runners.computing} computing)"


def _limit(scheduler: Submitter | None) -> int | None:
    """The bytes that batches may take, where that is known."""
    try:
        return (scheduler if isinstance(scheduler, Scope) else Submitter(find(scheduler)))._core().account.limit
    except RuntimeError:  # none is open yet, or the scope is not entered
        return None
