"""The stages of a pipeline: what they share, how they keep order and fail, and the one that runs coroutines.

A stage takes items from one link and puts what it makes of them into the next. An error of its function is how its
output ends: behind the results of the items before it, and with nothing after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from math import inf
from time import perf_counter
from typing import Any

import anyio

from ...runtime.cancellation import ended
from .links import Link, Where, flat

# What would mean something else to whoever drives a coroutine or a task.
_IMPASSABLE = (StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError)


class Stage:
    """What all stages share: their links, and how they fail."""

    def __init__(self, name: str, source: Link, out: Link, workers: int = 1, *, ordered: bool = True) -> None:
        self.name = name
        self.source = source
        self.out = out
        self.workers = workers
        self.ordered = ordered
        self.error: BaseException | None = None
        self.failed_at: Where = ()
        self.started = perf_counter()
        self.ended = inf

    async def run(self) -> None:
        """Work until there is no more input. Raises nothing of its own: an error ends the output."""
        raise NotImplementedError

    def busy(self, now: float) -> float:
        """Seconds of work so far, added up over the workers: whatever was not waiting."""
        waiting = self.source.arrival.seconds(now) + self.out.space.seconds(now)
        return max(0.0, self.workers * (min(now, self.ended) - self.started) - waiting)

    async def ready(self) -> bool:
        """Wait for room, which it takes, and for an item; False if no more are to be taken."""
        out, source = self.out, self.source
        if self.error is not None:
            return False
        if out.room > 0:
            out.room -= 1
        else:
            await out.reserve()
        return (bool(source.entries) or await source.arrived()) and self.error is None

    def fail(self, where: Where, error: BaseException) -> None:
        """Take no more items. The first error counts."""
        if self.error is None:
            self.error, self.failed_at = error, where
            self.source.end()
            self.out.release()

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
        self.out.end(self.source.error if self.error is None else noted(self.error, self.name, self.failed_at))


class Slot:
    """An item on its way through a stage, in which results wait for their turn."""

    __slots__ = ("done", "error", "item", "seconds", "where")

    def __init__(self, where: Where, item: Any) -> None:
        self.where = where
        self.item = item  # what goes in, then what comes out
        self.error: BaseException | None = None
        self.seconds = 0.0
        self.done = False


class Line:
    """Hands on the results of several workers: in the order in which the items were taken, if the stage is ordered."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._slots: deque[Slot] = deque()

    def enter(self, where: Where, item: Any) -> Slot:
        slot = Slot(where, item)
        if self._stage.ordered:
            self._slots.append(slot)
        return slot

    def leave(self, slot: Slot) -> None:
        """A slot is done: hand on what has its turn."""
        slot.done = True
        stage = self._stage
        if slot.error is not None:
            stage.fail(slot.where, slot.error)
        elif not stage.ordered:
            stage.out.put(slot.where, slot.item)
        while self._slots and self._slots[0].done:
            first = self._slots.popleft()
            if first.error is None:
                stage.out.put(first.where, first.item)
            else:
                stage.error, stage.failed_at = first.error, first.where  # the first in order, whichever came first
                self._slots.clear()


class LoopStage(Stage):
    """A coroutine function, awaited by as many tasks as there are workers."""

    def __init__(self, function: Callable[[Any], Any], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._function = function
        self._line = Line(self)

    async def run(self) -> None:
        serve = self._serve_in_turn if self.ordered and self.workers > 1 else self._serve
        async with anyio.create_task_group() as group:
            for _ in range(self.workers):
                group.start_soon(self.cancelled_once, serve)
        self.finish()

    async def _serve(self) -> None:
        """The most frequent path of all, so what `ready` does is written out."""
        source, out, function = self.source, self.out, self._function
        entries = source.entries
        while self.error is None:
            if out.room > 0:
                out.room -= 1
            else:
                await out.reserve()
            if not entries and not await source.arrived():
                return
            where, item = source.take()
            try:
                item = await function(item)
            except BaseException as error:
                stop_if_cancelled(error)
                self.fail(where, error)
                return
            out.put(where, item)
            del item  # while it waits, a worker holds nothing

    async def _serve_in_turn(self) -> None:
        while await self.ready():
            slot = self._line.enter(*self.source.take())
            try:
                slot.item = await self._function(slot.item)
            except BaseException as error:
                stop_if_cancelled(error)
                slot.error = error
            self._line.leave(slot)
            del slot


def stop_if_cancelled(error: BaseException) -> None:
    """Raise `error` again if it is the cancellation of this task, and not something that a function raised."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error


def noted(error: BaseException, name: str, where: Where) -> BaseException:
    """An exception as the consumer will see it: with a note of the stage and the item."""
    if isinstance(error, _IMPASSABLE):
        wrapper = RuntimeError(f"the function raised {type(error).__name__}, which cannot pass through `await`")
        wrapper.__cause__ = error
        error = wrapper
    notes = getattr(error, "__notes__", None)
    note = f"raised in the pipeline's stage {name}, at {_items(where)}"
    # Not by `add_note`, which an exception may refuse: a frozen dataclass does.
    object.__setattr__(error, "__notes__", [*(notes if isinstance(notes, list) else ()), note])
    return error


def _items(where: Where) -> str:
    if isinstance(where, int):
        return f"item {where} of the source"
    numbers = flat(where)
    return f"items {min(numbers)} to {max(numbers)} of the source"
