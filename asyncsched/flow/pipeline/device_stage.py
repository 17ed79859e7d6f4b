"""The stage that puts batches on the device ahead of the consumer.

What is put ahead takes bytes that others may need before the consumer takes it: the consumer itself, for instance,
whose work on one batch waits for the room that the next one fills. So a batch is put all or nothing, in a scope that
reserves its bytes, and when the scheduler is stuck while others wait, what is ahead goes back to the host: the stage
keeps the host's arrays until the consumer has taken theirs. For a while it then puts a batch only when the consumer
waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np

from ..scope import Scope
from .links import Where
from .stages import Stage, stop_if_cancelled

if TYPE_CHECKING:
    from ...scheduler import Scheduler

CAUTION = 16  # batches put only when asked for, after some had to go back; a guess


class DeviceStage(Stage):
    """Puts the arrays of each item, in tuples, lists and dicts, too."""

    def __init__(self, scheduler: Scheduler, device: object, *args: Any) -> None:
        super().__init__(*args)
        self._scheduler = scheduler
        self._device = device
        self._ahead: deque[tuple[Where, Any]] = deque()  # what the host has of `out.entries`, and of the item being put
        self._putting: anyio.CancelScope | None = None
        self._scope: Scope | None = None
        self._caution = 0
        self._consumer: asyncio.Future[None] = (
            asyncio.get_running_loop().create_future()
        )  # stands for what it waits for

    async def run(self) -> None:
        reclaimers = self._scheduler._runtime.reclaimers
        reclaimers.add(self._reclaim)
        try:
            while await self._more():
                where, item = self.source.take()
                self._forget_taken()
                self._ahead.append((where, item))
                try:
                    await self._put_ahead(where, item)
                except BaseException as error:
                    stop_if_cancelled(error)
                    self.fail(where, error)
                del item
        finally:
            reclaimers.discard(self._reclaim)
            self._ahead.clear()
        self.finish()

    async def _more(self) -> bool:
        """Wait for an item to put, and for room, which it takes; in times of caution until the consumer waits, too.

        False if there is none and the consumer has taken all that is ahead, since until then it may have to go back.
        """
        out = self.out
        while True:
            while self._caution and not out.arrival.sleepers:
                await out.space.sleep()
            self._caution = max(0, self._caution - 1)
            if await self.ready():
                return True
            if self.error is not None or not out.entries:
                return False
            out.room += 1
            await out.space.sleep()

    async def _put_ahead(self, where: Where, item: Any) -> None:
        with anyio.CancelScope() as self._putting:
            there = await self._put(item)
        given_back, self._putting = self._putting.cancel_called, None
        if not given_back:
            self.out.put(where, there)

    async def _put(self, item: Any) -> Any:
        memory = self._scheduler._runtime.device(self._device).memory
        nbytes = sum(memory.footprint(array.nbytes) for array in _arrays(item))
        self._scope = self._scheduler.scope(name=f"stage {self.name}", reserve=nbytes or None)
        try:
            async with self._scope as scope:
                return await _each_array(item, lambda array: scope.put(array, device=self._device))
        finally:
            self._scheduler._runtime.parked.pop(self._consumer, None)

    def _forget_taken(self) -> None:
        """Keep the host's arrays no longer than the consumer leaves the device's here."""
        while len(self._ahead) > len(self.out.entries) + (self._putting is not None):
            self._ahead.popleft()

    def _reclaim(self) -> bool:
        """The scheduler is stuck: free what is ahead if somebody else needs it. Returns whether anything was freed."""
        mine = self._scope._inner if self._scope is not None else None
        runtime = self._scheduler._runtime
        pending = runtime.engine.admission.tasks()
        if self.out.arrival.sleepers:
            # The consumer waits for what this waits for: so the search for a deadlock must see it.
            runtime.parked[self._consumer] = self.out.taker, [task for task in pending if task.scope is mine]
        elif self.out.entries and any(task.scope is not mine for task in pending):
            self._give_back()
            return True
        return False

    def _give_back(self) -> None:
        out, source = self.out, self.source
        self._forget_taken()
        returned = len(self._ahead)
        source.entries.extendleft(reversed(self._ahead))
        source.room -= returned
        out.room += returned
        out.count -= len(out.entries)
        out.entries.clear()
        self._ahead.clear()
        if self._putting is not None:
            self._putting.cancel()
        self._caution = CAUTION


def _arrays(item: Any) -> list[np.ndarray[Any, Any]]:
    """Every array in an item."""
    if isinstance(item, np.ndarray):
        return [item]
    parts = item.values() if isinstance(item, dict) else item if isinstance(item, tuple | list) else ()
    return [array for part in parts for array in _arrays(part)]


async def _each_array(item: Any, put: Callable[[Any], Awaitable[Any]]) -> Any:
    """The item with each array replaced."""
    if isinstance(item, np.ndarray):
        return await put(item)
    if isinstance(item, dict):
        return {key: await _each_array(part, put) for key, part in item.items()}
    if isinstance(item, tuple | list):
        parts = [await _each_array(part, put) for part in item]
        return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)
    return item
