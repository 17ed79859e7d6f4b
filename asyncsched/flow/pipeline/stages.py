"""What the stages of a pipeline share: links on either side, how they fail, and how results keep their order.

A stage takes items from one link and puts what it makes of them into the next. An error of its function is how its
output ends: behind the results of the items before it, and with nothing after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

from ...errors import add_note, passable
from ...runtime.cancellation import ended
from .links import Link
from .origin import Origin, describe


class StagePlan(NamedTuple):
    """A stage to be made: what it is called, how many items it may have, how it is made of a name and two links."""

    label: str
    capacity: int
    make: Callable[[str, Link, Link], Stage]


class Stage:
    """What all stages share."""

    def __init__(self, name: str, source: Link, out: Link, workers: int = 1, *, ordered: bool = True) -> None:
        self.name = name
        self.source = source
        self.out = out
        self.workers = workers
        self.ordered = ordered
        self.error: BaseException | None = None
        self.failed_at: Origin = ()
        self.started = perf_counter()
        self.ended = inf

    async def run(self) -> None:
        """Work until there is no more input. Raises nothing of its own: an error ends the output."""
        raise NotImplementedError

    def busy(self, now: float) -> float:
        """Seconds of work so far, added up over the workers: whatever was not waiting."""
        waiting = self.source.for_items.seconds(now) + self.out.for_room.seconds(now)
        return max(0.0, self.workers * (min(now, self.ended) - self.started) - waiting)

    async def ready(self) -> bool:
        """Wait for room, which it takes, and for an item; False if no more are to be taken."""
        if self.error is not None:
            return False
        if not self.out.try_reserve():
            await self.out.reserve()
        return (bool(self.source.items) or await self.source.arrived()) and self.error is None

    def fail(self, origin: Origin, error: BaseException) -> None:
        """Take no more items. The first error counts."""
        if self.error is None:
            self.error, self.failed_at = error, origin
            self.source.end()
            self.out.lift_bound()

    async def cancelled_once(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run what awaits a user's coroutines, and if cancelled, cancel it once and wait for it.

        As asyncio does. A cancelled scope of anyio would do it again at each `await`, in a `finally`, too.
        """
        task = asyncio.create_task(work())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            self.fail((), error)  # for the case that a user's coroutine goes on all the same
            task.cancel()
            await ended(task)
            raise

    def finish(self) -> None:
        """There will be no more output."""
        self.ended = perf_counter()
        self.out.end(self.source.error if self.error is None else self._noted(self.error))

    def _noted(self, error: BaseException) -> BaseException:
        """An exception as the consumer will see it: with a note of the stage and the item."""
        error = passable(error, "the function raised")
        add_note(error, f"raised in the pipeline's stage {self.name}, at {describe(self.failed_at)}")
        return error


class Call:
    """One call of a stage's function, and what came of it."""

    __slots__ = ("done", "error", "item", "origin", "seconds")

    def __init__(self, origin: Origin, item: Any) -> None:
        self.origin = origin
        self.item = item  # what goes in, then what comes out
        self.error: BaseException | None = None
        self.seconds = 0.0
        self.done = False


class ReorderBuffer:
    """Passes on the results of several workers: in the order in which the items were taken, if the stage is ordered."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._calls: deque[Call] = deque()

    def enter(self, origin: Origin, item: Any) -> Call:
        """A call that is about to begin."""
        call = Call(origin, item)
        if self._stage.ordered:
            self._calls.append(call)
        return call

    def ended(self, call: Call) -> None:
        """Pass on its result, and those that waited for it."""
        call.done = True
        stage = self._stage
        if call.error is not None:
            stage.fail(call.origin, call.error)
        elif not stage.ordered:
            stage.out.put(call.origin, call.item)
        while self._calls and self._calls[0].done:
            first = self._calls.popleft()
            if first.error is None:
                stage.out.put(first.origin, first.item)
            else:
                stage.error, stage.failed_at = first.error, first.origin  # the first in order, whichever came first
                self._calls.clear()


def stop_if_cancelled(error: BaseException) -> None:
    """Raise `error` again if it is the cancellation of this task, and not something that a function raised."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
