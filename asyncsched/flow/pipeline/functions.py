"""Stages that run a function: a coroutine function on the event loop, a plain one in threads; or that makes batches."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, copy_context
from queue import SimpleQueue
from time import perf_counter
from typing import Any, TypeAlias

import anyio
import numpy as np

from ...runtime.threads import in_thread, interrupts_pass, yield_to_streams
from ...tensors.handles import Handle
from .links import DROPPED, DroppingLink, Numbered
from .position import Origin, brief
from .stages import Call, EntryQueue, ReorderBuffer, Stage

Function: TypeAlias = Callable[[Any], Any]


class LoopStage(Stage):
    """A coroutine function, awaited by as many tasks as there are workers.

    What a call leaves in the context of its task, or in its count of cancellations, is not for the next item: then the
    worker goes on in a task of its own. A task for each item would cost more than most items do.
    """

    def __init__(self, function: Function, *args: Any, filters: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self._function = _keeps_later(function) if filters else function
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
                out.unreserve()
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


class ThreadStage(Stage):
    """A plain function in threads, which share one queue."""

    def __init__(self, function: Function, *args: Any, filters: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self.function = function
        self._filters = filters
        self._results = ReorderBuffer(self)
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._made = EntryQueue(self._collect)
        self._stopped = False
        self._seconds = 0.0

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(self.workers):
                group.start_soon(in_thread, self._work, f"pipeline {self.name}")
            try:
                with interrupts_pass():
                    await self.feed()
            except BaseException:
                self._stopped = True
                raise
            finally:
                for _ in range(self.workers):
                    self._calls.put(None)
        self._made.drain()
        self.finish()

    def busy(self, now: float) -> float:
        return self._seconds

    def fail(self, origin: Origin, error: BaseException, given: str = "") -> None:
        self._stopped = True  # what no thread has taken comes after it
        super().fail(origin, error, given)

    async def feed(self) -> None:
        """Give every item to the threads."""
        while await self.ready():
            self.give(*self.source.take())

    def give(self, origin: Origin, item: Any) -> None:
        """Give one item, for whose result there is room."""
        self._calls.put(self._results.enter(origin, item))

    def _work(self) -> None:
        """What each of the threads runs."""
        yield_to_streams()
        self.serve(self.function)

    def serve(self, function: Function) -> None:
        """Make the calls that a thread takes, by a function of its own."""
        if self._filters:
            function = _keeps(function)
        while not self._stopped and (call := self._calls.get()) is not None:
            started = perf_counter()
            try:
                call.item = checked(copy_context().run(function, call.item))
            except BaseException as error:
                call.item, call.error = brief(call.item), error
            call.seconds = perf_counter() - started
            self._made.append(call)
            del call  # while it waits, a thread holds nothing
            # While there are more calls and the next stage lacks nothing, the loop need not wake up for each result.
            # It cannot be forgotten: the last thread that works finds no more calls.
            if self._calls.empty() or not self.out.lacks(len(self._made)):
                self._made.wake()

    def _collect(self, call: Call) -> None:
        self._seconds += call.seconds
        self._results.ended(call)


class BatchStage(ThreadStage):
    """Batches of `size` items, collated in a thread."""

    def __init__(self, collate: Callable[[list[Any]], Any], size: int, drop_last: bool, *args: Any) -> None:
        super().__init__(collate, *args)
        self._size = size
        self._drop_last = drop_last

    async def feed(self) -> None:
        source = self.source
        while await self.ready():
            taken = [source.take()]
            while len(taken) < self._size and (source.items or await source.arrived(self._size - len(taken))):
                taken.append(source.take())
            if len(taken) < self._size and (self._drop_last or source.error is not None):
                self._drop(taken)
                return
            self.give(tuple(origin for origin, _ in taken), [item for _, item in taken])
            del taken

    def _drop(self, taken: list[Numbered]) -> None:
        """A batch that is not full counts as received in the next epoch, if there is one in this block."""
        if isinstance(self.out, DroppingLink):
            self.out.drop(tuple(origin for origin, _ in taken))


def _keeps(function: Function) -> Function:
    """A function that gives the item, or `DROPPED` where `function` says so."""

    def kept(item: Any) -> Any:
        return item if checked(function(item)) else DROPPED

    return kept


def _keeps_later(function: Function) -> Function:
    """The same of a coroutine function."""

    async def kept(item: Any) -> Any:
        return item if await function(item) else DROPPED

    return kept


def checked(result: Any) -> Any:
    """What a plain function returned, unless it is a coroutine."""
    if type(result) is types.CoroutineType:
        result.close()
        raise TypeError("the function returned a coroutine: pass the coroutine function, not one around it")
    return result


def collate(items: Sequence[Any]) -> Any:
    """Stack items along a new first axis, as PyTorch's DataLoader does by default.

    Arrays, what NumPy can make one of (PyTorch's tensors on the CPU) and Python or NumPy numbers become one array of
    shape (len(items), ...), in NumPy's dtype for them; tuples and lists a tuple, named tuples one of their kind, dicts
    and other mappings a dict, with each field collated. Anything else, as text, bytes, None and tensors of a scheduler,
    becomes a list, where PyTorch refuses what it does not know, and makes a list of tuples, too.

    Raises:
        ValueError: if shapes, lengths or keys differ between items.
    """
    first = items[0]
    if isinstance(first, Mapping):
        _must_agree("keys", [item.keys() for item in items])
        return {key: collate([item[key] for item in items]) for key in first}
    if isinstance(first, tuple | list):
        _must_agree("length", [len(item) for item in items])
        fields = [collate(field) for field in zip(*items, strict=True)]
        return type(first)(*fields) if hasattr(first, "_fields") else tuple(fields)
    if isinstance(first, np.ndarray):
        _must_agree("shape", [np.shape(item) for item in items])
        masked = any(isinstance(item, np.ma.MaskedArray) for item in items)
        return np.ma.stack(items) if masked else np.stack(items)  # which would drop the masks
    if hasattr(first, "__array__") and not isinstance(first, np.generic | Handle):
        return collate([np.asarray(item) for item in items])
    if isinstance(first, bool | int | float | complex | np.generic):
        return np.array(items)
    return list(items)


def _must_agree(what: str, found: Sequence[Any]) -> None:
    for i, other in enumerate(found):
        if other != found[0]:
            raise ValueError(
                f"the items of a batch differ in {what}: {found[0]} and, at {i}, {other};"
                " make them alike in a `.map` before, or pass `.batch(..., collate=fn)`"
            )
