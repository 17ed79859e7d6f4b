"""The stage that runs a coroutine function on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

import anyio

from .origin import brief
from .stages import ReorderBuffer, Stage


class LoopStage(Stage):
    """A coroutine function, awaited by as many tasks as there are workers.

    What a call leaves in the context of its task, or in its count of cancellations, is not for the next item: then the
    worker goes on in a task of its own. A task for each item would cost more than most items do.
    """

    def __init__(self, function: Callable[[Any], Any], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._function = function
        self._results = ReorderBuffer(self)

    async def run(self) -> None:
        work = self._work_in_order if self.ordered and self.workers > 1 else self._work
        async with anyio.create_task_group() as group:
            for _ in range(self.workers):
                group.start_soon(self.run_apart, work)
        self.finish()

    async def _work(self) -> bool:
        """One worker of a stage without order. The most frequent path of all, so `ready` is written out here."""
        source, out, function = self.source, self.out, self._function
        context, cancellations = _state()
        items = source.items
        while self.error is None:
            if not out.try_reserve():
                await out.reserve()
            if not items and not await source.arrived():
                break
            origin, item = source.take()
            try:
                item = await function(item)
            except BaseException as error:
                self.fail(origin, error, brief(item))
                break
            out.put(origin, item)
            del item  # while it waits, a worker holds nothing
            if copy_context() != context or cancellations():
                return True
        return False

    async def _work_in_order(self) -> bool:
        context, cancellations = _state()
        while await self.ready():
            call = self._results.enter(*self.source.take())
            try:
                call.item = await self._function(call.item)
            except BaseException as error:
                call.item, call.error = brief(call.item), error
            self._results.ended(call)
            del call
            if copy_context() != context or cancellations():
                return True
        return False


def _state() -> tuple[Context, Callable[[], int]]:
    """A copy of this task's context, and what counts its cancellations."""
    task = asyncio.current_task()
    assert task is not None
    return copy_context(), task.cancelling
