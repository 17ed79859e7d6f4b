"""The stage that puts batches on the device ahead of the consumer.

Theory of operation. A batch that is put ahead takes bytes that others may need before the consumer takes it. For
instance the consumer itself: its work on one batch may wait for the room that the next batch fills. Two rules prevent
that they block each other:

1. *All or nothing.* A batch is put in a scope that reserves its bytes, so no two half batches wait for each other.
2. *Giving back.* When the scheduler is stuck, and somebody else is among those that wait, the batches ahead go back to
   the host. The device's tensors are dropped. The host's arrays, which are kept until the consumer has taken the batch,
   return to the link in front. A put that is under way is cancelled. For the next `CAUTION` batches the stage puts one
   only when the consumer waits for it. As long as anything is ahead, the stage stays, also at the end of the source.

While the consumer waits for a batch that itself waits for room, this stage says that it answers the consumer
(`answered_by`). So if the consumer still holds the bytes that the batch needs, that is found to be a deadlock, and
raised.

One reserve of `depth` batches for the whole epoch, instead of giving back, was tried and dropped. It takes its bytes
whether a batch is ahead or not. If the limit just suffices for one batch and the consumer's work on it, a reserve of
`depth` batches is refused as too large, or leaves the consumer waiting for ever. Shrunk to the limit less one batch, it
is still a guess of the consumer's needs, keeps two pipelines from sharing a limit, and hides from the search for a
deadlock what the consumer holds. A later batch may be larger than the first. And the consumer's batch is charged to the
reserve: at a depth of 1 an `async for`, which lets go of one batch when it has the next, would wait for itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any

import anyio
import numpy as np

from ..._core.model import DONE
from ..._core.tenants import Share
from ..._tree import leaves, map_leaves
from ...runtime.context import current_scope
from ...runtime.runtime import Answerer, Runtime
from ...runtime.waiting import awaited
from ...tensors.handles import Handle
from ...tensors.putting import importable, make_put
from ..scope import Scope
from .marks import Marked
from .position import Origin
from .stages import Numbered, Stage

_ARRAYS = "__dlpack__", "__array__", "__array_interface__"  # what `put` takes
CAUTION = 16  # after some had to go back, so many batches are put only when asked for; a guess


class DeviceStage(Stage, Answerer):
    """Puts the arrays of each item, in tuples, lists and dicts, too."""

    def __init__(self, runtime: Runtime, device: object, *args: Any) -> None:
        super().__init__(*args)
        self.out.shares = self.out.capacity  # wake this stage for each batch that is taken
        self._runtime = runtime
        self._around = partial(current_scope, runtime)
        self._device = device
        self._task: asyncio.Task[Any] | None = None
        self._ahead: deque[Numbered] = deque()  # the host's arrays of `out.items`, and of the item being put
        self._putting: anyio.CancelScope | None = None
        self._caution = 0

    async def run(self) -> None:
        self._task = asyncio.current_task()
        self._runtime.reclaimers.add(self._reclaim)
        self._runtime.answerers.add(self)
        try:
            while await self._more():
                ((origin, item),) = self.source.take_some(1)
                self._drop_taken()
                self._ahead.append((origin, item))
                try:
                    await self._put_ahead(origin, item)
                except BaseException as error:
                    if isinstance(error, asyncio.CancelledError) and self._task is not None and self._task.cancelling():
                        raise
                    self.fail(origin, error)
                del item
        finally:
            self._runtime.reclaimers.discard(self._reclaim)
            self._ahead.clear()

    async def _more(self) -> bool:
        """Wait for an item to put, and for room, and take the room. In times of caution wait for the consumer to ask,
        too.

        False if there is no item left and the consumer has taken all batches ahead: until then they may have to go
        back.
        """
        out = self.out
        while True:
            while self._caution and not out.for_items.waiters:
                await out.for_room.wait()
            self._caution = max(0, self._caution - 1)
            if await self.ready():
                return True
            if self.error is not None or not out.items:
                return False
            await out.for_room.wait()

    async def _put_ahead(self, origin: Origin, item: Any) -> None:
        with anyio.CancelScope() as self._putting:
            there = await self._put(item.check(origin) if type(item) is Marked else item)
            if type(item) is Marked:
                item.check(origin)  # again: the copy may have been made later
        given_back, self._putting = self._putting.cancel_called, None
        if not given_back:
            self.out.put(origin, there)

    async def _put(self, item: Any) -> Any:
        sources = [importable(self._runtime, leaf, self._device) for leaf in leaves(item) if _is_array(leaf)]
        nbytes = sum([target.memory.footprint(array.nbytes) for array, _, target in sources])
        scope = Scope(self._runtime, self._around, f"stage {self.name}", nbytes or None, None, None, Share())
        scope._takes_turn = False  # `run` waits where there is nothing to put, and here where arrays are large
        async with scope:
            core = scope._entered()
            made = [make_put(self._runtime, core, source, bounded=False) for source in sources]
            tasks = [task for task, _ in made]
            try:
                if [task for task in tasks if task.state < DONE]:
                    await awaited(self._runtime, tasks)
                for failure in [task.failure for task in tasks if task.failure is not None]:
                    failure.rethrow()
                tensors = iter([tensor for _, tensor in made])
            finally:
                del made, sources, tasks  # an exception holds this frame, and a task the exception
        return map_leaves(lambda leaf: next(tensors) if _is_array(leaf) else leaf, item)

    def _drop_taken(self) -> None:
        """Drop the host's arrays of batches that the consumer has taken."""
        while len(self._ahead) > len(self.out.items) + (self._putting is not None):
            self._ahead.popleft()

    def answered_by(self) -> dict[int, set[asyncio.Task[Any]]]:
        """For a search for holders: the future of a waiting consumer, by identity, with the task of this stage that
        answers it."""
        return {id(future): {self._task} for future in self.out.for_items.waiters if self._task is not None}

    def _reclaim(self) -> bool:
        """The scheduler is stuck: free the batches ahead if somebody else needs their bytes. Returns whether any was
        freed."""
        runtime = self._runtime
        if self.out.for_items.waiters or not self.out.items:
            return False
        mine = [task for waiter, tasks in runtime.parked.values() if waiter is self._task for task in tasks]
        if all(task in mine for task in runtime.engine.admission.tasks()):
            return False
        self._give_back()
        return True

    def _give_back(self) -> None:
        self._drop_taken()
        self.out.withdraw()
        if self._putting is not None:
            self.out.unreserve()
            self._putting.cancel()
        self.source.put_back(self._ahead)
        self._ahead.clear()
        self._caution = CAUTION


def _is_array(leaf: Any) -> bool:
    """Whether this is an array of NumPy or of another library, such as PyTorch's tensors or a table of numbers, but no
    tensor of ours, and no number."""
    kind = type(leaf)
    return any(map(partial(hasattr, kind), _ARRAYS)) and not isinstance(leaf, Handle | np.generic)
