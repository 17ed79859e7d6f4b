"""Computing batches, one after another, for as long as there are items."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any

from ..._arguments import is_coroutine_function
from ...errors import TaskCancelled, passable
from ...runtime.context import Ambient, ambient, find, innermost
from ...runtime.rates import Rate
from ..scope import Scope, Submitter
from .queue import Parts, Queue, Waiting

Answered = tuple[list[Waiting], Sequence[Any]]


class Runners:
    """The runners of a batcher: coroutines that each form a batch, compute it, and form the next."""

    def __init__(
        self,
        fn: Callable[[list[Any]], Any],
        queue: Queue,
        most: int,
        isolate: bool,
        reserve: int | None,
        scheduler: Submitter | None,
    ) -> None:
        self.name: str = getattr(fn, "__qualname__", None) or type(fn).__name__
        self.batches: int = 0
        self.retries: int = 0
        self.answered: int = 0
        self.largest: int = 0
        self.rate: Rate = Rate()
        self._fn = fn
        self._is_async = is_coroutine_function(fn)
        self._queue = queue
        self._isolate = isolate
        self._most = most
        self._reserve = reserve
        self._scheduler = scheduler
        self._context = contextvars.copy_context()
        self._context.run(_leave_scopes)
        self._since = 0.0  # when the rate was last measured, or work began
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what an event loop has left that is closed."""
        self.computing: int = 0
        self._parts = Parts()
        self._active: set[object] = set()  # the runners that will look at the queue again
        self._tasks: set[asyncio.Task[None]] = set()  # the loop alone would not keep them
        # What is being computed. By weak references, since it holds items: a search for holders would end here.
        self._batches: weakref.WeakSet[Batch] = weakref.WeakSet()

    def wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """An item has joined the queue."""
        if len(self._active) == self._most:
            return
        if not self._active:
            self._since = monotonic()
        me = object()
        self._active.add(me)
        run = self._run(me)
        try:
            # Without keywords, which a task factory may not take.
            task = self._context.copy().run(loop.create_task, run)
        except BaseException:
            self._active.discard(me)
            run.close()
            raise
        task.set_name(f"batches of {self.name}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._gone, me))

    async def _run(self, me: object) -> None:
        batch = Batch(None)
        try:
            while self._queue or self._parts:
                batch = Batch(self._parts.take(others_wait=bool(self._queue)))
                await self._compute(batch)
        except BaseException:
            self._give_up(batch)
            raise
        finally:
            self._active.discard(me)  # in the same step that found the queue empty: who comes next starts a runner

    def _gone(self, me: object, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if me in self._active:  # it never began
            self._active.discard(me)
            self._give_up(Batch(None))

    def _give_up(self, batch: Batch) -> None:
        """A runner did not come to its end, since the loop is ending say: nobody must wait for it."""
        self._form(batch)
        left = self._parts.empty()
        self.computing -= len(left)
        self._ended(batch, batch.items)
        for waiting in (*batch.items, *self._queue.empty(), *left):
            waiting.future.cancel()

    async def _compute(self, batch: Batch) -> None:
        try:
            runtime = find(self._scheduler)
            runtime.answerers.add(self)
            self._batches.add(batch)
            around = self._scheduler if isinstance(self._scheduler, Scope) else Submitter(runtime)
            async with around.scope(name=f"batch of {self.name}", reserve=self._reserve) as scope:
                self._form(batch)
                if runtime.ledger.observer is not None:
                    runtime.ledger.observer.batch_formed(scope._core(), len(batch.items))
                wanted, returned = await self._call(scope, batch)
                results = _one_each(returned, len(wanted), self.name)
        except GeneratorExit:  # the loop is gone
            raise
        except BaseException as error:  # some libraries raise their own, and callers wait for what becomes of the batch
            self._form(batch)
            if _ends_the_loop(error, batch):
                raise
            self._failed(batch, error)
        else:
            self._deliver(batch, wanted, results)

    def answered_by(self) -> dict[int, set[asyncio.Task[Any]]]:
        """For a search for holders: the callers' futures by identity, and who may answer them: any of the runners."""
        runners = set[asyncio.Task[Any]](self._tasks)
        in_batches = (waiting for batch in self._batches for waiting in batch.items or batch.part or ())
        return {id(waiting.future): runners for waiting in (*self._queue, *self._parts, *in_batches)}

    def _form(self, batch: Batch) -> None:
        """Choose the items of a batch, as late as possible, unless that was done."""
        if batch.formed:
            return
        batch.formed, now = True, monotonic()
        if batch.part is None:
            batch.items = self._queue.form(now)
            self.computing += len(batch.items)
            self.largest = max(self.largest, len(batch.items))
        else:
            batch.items = [waiting for waiting in batch.part if waiting.wanted(now)]
            dropped = [waiting for waiting in batch.part if not waiting.wanted(now)]
            self._queue.dropped += len(dropped)
            self.computing -= len(dropped)
            for waiting in dropped:
                waiting.expire()

    async def _call(self, scope: Scope, batch: Batch) -> Answered:
        items = batch.items
        if not items:
            return [], []
        if self._is_async:
            batch.begun = True
            # In a task of its own, to which the context and the count of cancellations belong that it leaves behind.
            task = asyncio.create_task(self._called([waiting.item for waiting in items]))
            task.set_name(f"batch of {self.name}")
            returned, error = await task
            try:
                if error is not None:
                    raise error
            finally:
                del error, task  # its traceback holds this frame
            return items, returned
        return await scope.call(partial(self._on_stream, batch), name=self.name)

    async def _called(self, items: list[Any]) -> tuple[Any, BaseException | None]:
        """What an async function returned or raised, as a result: the event loop ends by some of what a task raises."""
        try:
            return await self._fn(items), None
        except GeneratorExit as error:
            return None, passable(error, f"{self.name} raised")
        except BaseException as error:
            return None, error

    def _on_stream(self, batch: Batch) -> Answered:
        """Compute the items that are still wanted. Runs on a stream's thread."""
        now = monotonic()
        wanted = [waiting for waiting in batch.items if waiting.wanted(now)]
        batch.begun = True
        return wanted, self._fn([waiting.item for waiting in wanted]) if wanted else []

    def _deliver(self, batch: Batch, wanted: list[Waiting], results: list[Any]) -> None:
        self.answered += len(wanted)
        self._queue.dropped += len(batch.items) - len(wanted)
        for waiting, result in zip(wanted, results, strict=True):
            waiting.settle(result)
        for waiting in batch.items:
            waiting.expire()
        self._ended(batch, batch.items)

    def _failed(self, batch: Batch, error: BaseException) -> None:
        if self._isolate and batch.begun and len(batch.items) > 1 and issubclass(type(error), Exception):
            self._parts.cut(batch.items)
            self._ended(batch, [])
            with contextlib.suppress(Exception):  # of a task factory: this runner goes on by itself
                self.wake(asyncio.get_running_loop())
            return
        if issubclass(type(error), asyncio.CancelledError):
            error = TaskCancelled(f"{self.name}, the function of a batcher, ended in a CancelledError")
        self.answered += len(batch.items)
        for waiting in batch.items:
            waiting.settle(error)
        self._ended(batch, batch.items)

    def _ended(self, batch: Batch, settled: list[Waiting]) -> None:
        """A batch has been computed, whatever came of it. Some of its items may have to be computed again."""
        now = monotonic()
        if batch.items and batch.part is None:
            self.batches += 1
        elif batch.items:
            self.retries += 1
        if settled:
            self.computing -= len(settled)
            self.rate.add(len(settled), now - self._since)
        if settled or not batch.items:
            self._since = now


@dataclass(slots=True, eq=False, weakref_slot=True)
class Batch:
    """What is computed at once: what the queue has, or a part of a batch that failed."""

    part: list[Waiting] | None
    items: list[Waiting] = field(default_factory=list)  # once it is formed
    formed: bool = False
    begun: bool = False  # the function was called: what is raised from then on may be its own


def _leave_scopes() -> None:
    """Work in the scheduler's root scope: a batcher outlives the scope that it was made in, a request's say."""
    here = innermost()
    if here is not None:
        ambient.set(Ambient(here.runtime, here.runtime.engine.root, None))


def _ends_the_loop(error: BaseException, batch: Batch) -> bool:
    """Whether the runner was cancelled, or Ctrl-C came while none of the user's code ran."""
    if issubclass(type(error), asyncio.CancelledError):
        runner = asyncio.current_task()
        return runner is not None and runner.cancelling() > 0
    return issubclass(type(error), KeyboardInterrupt | SystemExit) and not batch.begun


def _one_each(returned: Any, wanted: int, name: str) -> list[Any]:
    single = getattr(returned, "ndim", 1) == 0  # of an array: it has a length that raises
    if single or not hasattr(returned, "__len__") or isinstance(returned, Mapping | Set | str):
        found = "a single number" if single else type(returned).__name__
        raise TypeError(f"{name} must return a list of results, one per item, not {found}")
    results = list(islice(returned, max(wanted, len(returned)) + 1))  # not more, where it has no end
    if len(results) != wanted:
        raise ValueError(
            f"{name} got {wanted} items and returned {len(results)} results: return one per item, in order"
        )
    return results
