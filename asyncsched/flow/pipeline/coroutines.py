"""The stage that runs a coroutine function on the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from .origin import brief
from .stages import ReorderBuffer, Stage, stop_if_cancelled


class LoopStage(Stage):
    """A coroutine function, awaited by as many tasks as there are workers."""

    def __init__(self, function: Callable[[Any], Any], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._function = function
        self._results = ReorderBuffer(self)

    async def run(self) -> None:
        work = self._work_in_order if self.ordered and self.workers > 1 else self._work
        async with anyio.create_task_group() as group:
            for _ in range(self.workers):
                group.start_soon(self.cancelled_once, work)
        self.finish()

    async def _work(self) -> None:
        """One worker of a stage without order. The most frequent path of all, so `ready` is written out here."""
        source, out, function = self.source, self.out, self._function
        items = source.items
        while self.error is None:
            if not out.try_reserve():
                await out.reserve()
            if not items and not await source.arrived():
                return
            origin, item = source.take()
            try:
                item = await function(item)
            except BaseException as error:
                stop_if_cancelled(error)
                self.fail(origin, error, brief(item))
                return
            out.put(origin, item)
            del item  # while it waits, a worker holds nothing

    async def _work_in_order(self) -> None:
        while await self.ready():
            call = self._results.enter(*self.source.take())
            try:
                call.item = await self._function(call.item)
            except BaseException as error:
                stop_if_cancelled(error)
                call.item, call.error = brief(call.item), error
            self._results.ended(call)
            del call
