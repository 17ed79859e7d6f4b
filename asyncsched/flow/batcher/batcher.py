"""One call for what many callers ask for at the same time.

Theory of operation. Callers put an item into a queue and wait for a future each. While the queue holds anything, up to
`concurrency` runners live: each forms a batch, computes it and forms the next, and ends when it finds the queue empty.
So there is nothing to open or close, and nothing polls. What arrives while all runners are busy is the next batch:
batches grow with the load, and a lone item is not held up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Generic, TypeVar, cast

from ..._arguments import check_int, parse_bytes
from ..._instead import naming_arguments
from ...errors import QueueFull
from ...runtime.context import find, innermost
from ...runtime.record import Record, Seconds
from ..scope import Scope, Submitter, check_reserve
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
    """Items that were cancelled or expired before they were computed, and so never were."""
    refused: int
    """Items turned away because the queue was full."""
    batches: int
    """Batches computed."""
    retries: int
    """Parts of batches that failed, computed again to find out which item made them fail (`isolate`)."""
    waiting: int
    """Items in the queue."""
    waiting_cost: float
    """What the items in the queue cost, added up."""
    computing: int
    """Items in batches that have begun and not ended."""
    largest_batch: int
    """The most items that ever were in one batch."""
    wait_seconds: Seconds
    """How long items have waited for their batch, added up."""
    estimated_wait: Seconds | None
    """Seconds the queue will take to drain, by the measured rate; None before the first batch."""


class Batcher(Generic[Item, Result]):
    """Gathers the items of many callers and computes them together: `result = await batcher(item)`.

    A batch is what has gathered while the one before was computed, the oldest first, and shared between the tenants of
    the callers' scopes by cost over weight. Of their priorities the highest goes first, but a lower one that waits gets
    every 17th place or so. An item whose caller was cancelled, or whose scope's deadline has passed, is dropped from
    the queue, and from a batch that has not started; in a batch that runs it is computed, and its result dropped.

    Batches run in scopes of their own, below the scheduler itself, in the context in which the batcher was made, not in
    that of a caller. A batcher belongs to the event loop that uses it first, and once that is closed to the next. It
    needs no closing: while its queue is empty nothing of it runs.

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
        fn: takes a list of items and returns as many results in the same order, as a list or an array. A result that is
            an exception is raised in that item's caller alone; what `fn` itself raises, in every caller of the batch. A
            coroutine function is awaited on the loop; a plain one runs on a stream of the scheduler, and finds its
            items as they are: tensors need a coroutine function. The next batch may run on another stream's thread, so
            what belongs to one thread, as a connection of sqlite3 does, needs one too, which awaits `s.call(model,
            items, resource=model)`. It may not wait for this batcher, which waits for it.
        max_batch_cost: the most that the items of one batch cost, added up.
        max_queue: most items in the queue; None for no bound.
        cost: what an item costs: rows, tokens, padded size. Without it each costs 1.
        concurrency: how many batches are computed at a time; with 1 `fn` never runs twice at once.
        isolate: whether a batch that fails, by an `Exception` of `fn` or by a wrong number of results, is computed
            again in halves, and these in halves, until what fails is alone: so each caller gets its own result, or its
            own error. Off by default, since `fn` may do what must not be done twice. Among n items one that fails takes
            at most 2 * ceil(log2(n)) runs more, k of them k times as many, and all of them 2n - 2. These runs wait for
            admission like any batch, and take turns with the batches that form meanwhile.
        reserve: bytes that each batch claims before it is formed, as `s.scope(reserve=)` does: so it does not lack
            them for what others hold. Callers in scopes with reserves keep these while they wait: leave room for both.
        scheduler: whose streams and scopes are used; default the ambient one where the batcher is made, else that of
            its callers, else the only one open on the loop. Of a scope: batches run in it, and take what they need of
            its reserve, if it has one.

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
            find(scheduler)  # raises for what is none
        self.reserve: int | None = None if reserve is None else parse_bytes(reserve, "reserve")
        if self.reserve is not None:
            check_reserve(self.reserve, _limit(scheduler), "a batch (reserve=)")
        self._queue = Queue(BATCH, max_batch_cost, max_queue, cost)
        self._runners = Runners(fn, self._queue, concurrency, isolate, self.reserve, scheduler)

    async def __call__(self, item: Item) -> Result:
        """Wait for a batch with this item, and return its result. Cancelling it drops the item.

        Raises:
            QueueFull: at once, if `max_queue` items wait. Its `retry_after` is how long these will take.
            TaskTooLarge: if the item costs more than a batch may.
            DeadlineExceeded: if the deadline of the caller's scope passed before the item was computed.
            MemoryDeadlockError: if its batch can get no bytes while this caller and others keep their reserves.
            Exception: whatever `fn` returned for this item, or raised.
        """
        loop = self._runners.bind()
        cost = self._queue.cost_of(item)
        try:
            self._queue.check()
        except QueueFull as full:
            full.retry_after = self._runners.rate.seconds_for(len(self._queue))
            raise
        # No await between the check and the push: the room it found is there.
        here = innermost()
        until, owner = (inf, None) if here is None else (here.until, here.core.queue.tenant)
        waiting = Waiting(item, cost, monotonic(), until, self._queue.tenant(owner), loop.create_future())
        self._queue.push(waiting)
        try:
            self._runners.wake(loop)
            return cast(Result, await waiting.future)
        finally:
            self._queue.drop(waiting)
            if waiting.future.done() and not waiting.future.cancelled():
                waiting.future.exception()  # seen, also when the caller was cancelled in the same step

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
    """The bytes that batches may take, as far as that is known."""
    try:
        return (scheduler if isinstance(scheduler, Scope) else Submitter(find(scheduler)))._core().account.limit
    except RuntimeError:  # none is open yet, or the scope is not entered
        return None
