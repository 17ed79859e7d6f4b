"""Stages that run a function: a coroutine function on the event loop, a plain one in threads. And the stage that makes
batches."""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import perf_counter
from typing import Any, TypeAlias

import anyio

from ...runtime.threads import in_thread, pass_interrupt, taken, yield_to_streams
from .collate import PACKED, Packed, pack_or_collate
from .links import DROPPED, PLAIN, DroppingLink, Marked, Numbered, WaitQueue, marked
from .position import Origin, brief
from .stages import EntryQueue, Stage

Function: TypeAlias = Callable[[Any], Any]
Policy: TypeAlias = tuple[
    int, tuple[type[Exception], ...]
]  # how often to call again, and for what to leave an item out
Variables: TypeAlias = list[tuple[ContextVar[Any], Any]]
_UNSET = object()


@dataclass(slots=True, eq=False)
class Call:
    """One call of a stage's function, and its result or error."""

    origin: Origin
    item: Any  # the argument, then the result; after an error the argument in brief
    error: BaseException | None = None
    given: bool = True  # to the function: an array that was overwritten is no error of it
    done: bool = False
    seconds: float = field(init=False)  # of a thread's work


class CallingStage(Stage):
    """The base of stages that call a function for each item. Results of several workers are passed on in the order in
    which the items were taken, if the stage is ordered."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._entered: deque[Call] = deque()  # in order, what was not passed on

    def _enter(self, items: list[Numbered]) -> list[Call]:
        """Calls that are about to begin."""
        calls = [Call(origin, item) for origin, item in items]
        if self.ordered:
            self._entered += calls
        return calls

    def _leave(self, call: Call) -> None:
        """A call has ended. Pass on its result, if the stage has no order."""
        call.done = True
        if call.error is not None and call.given and self.leaves_out(call.origin, call.error, call.item):
            call.item, call.error = DROPPED, None
        if call.error is not None:
            self.fail(call.origin, call.error, call.item)
        elif not self.ordered:
            self.pass_on(call.origin, call.item)

    def _pass_on_in_order(self) -> None:
        """Pass on the results that wait for no other."""
        entered, out = self._entered, self.out
        while entered and entered[0].done:
            first = entered.popleft()
            if first.error is None:
                try:
                    out.put(first.origin, first.item)
                    continue
                except BaseException as error:  # as `pass_on`
                    first.item, first.error = brief(first.item), error
                    self.fail(first.origin, error)
            # The first in the order of the items counts, whichever failed first
            self.error: BaseException | None = first.error
            self.failed_at: Origin = first.origin
            self.failed_on: str = first.item
            entered.clear()

    def _finish(self) -> None:
        self._entered.clear()  # what nobody took, where the stage was left
        super()._finish()


class LoopStage(CallingStage):
    """A coroutine function, awaited by as many tasks as there are workers.

    If a call changes the context of its asyncio task, or its count of cancellations, the next item must not see that:
    then the worker goes on in a new task. A task for each item would cost more than most items do.
    """

    def __init__(
        self, function: Function, *args: Any, filters: bool = False, policy: Policy = (0, ()), **options: Any
    ) -> None:
        super().__init__(*args, **options)
        retry, skips = policy
        self.skips: tuple[type[Exception], ...] = skips
        function = _keeps_later(function) if filters else function
        self._function = _tries_later(function, retry, self) if retry else function

    async def run(self) -> None:
        work = self._work_in_order if self.ordered and self.workers > 1 else self._work
        async with anyio.create_task_group() as group:
            for _ in range(self.workers):
                group.start_soon(self.run_apart, work)

    async def _work(self) -> bool:
        """One worker of a stage without order. It is the most frequent path, so `ready` is written out here."""
        source, out, function = self.source, self.out, self._function
        variables, cancellations = _state()
        items = source.items
        while self.error is None:
            if out.room > 0:
                out.room -= 1
            else:
                await out.reserve()
            if not items and not await source.arrived():
                out.unreserve()
                break
            origin, item = source.take()
            try:
                item = await function(item)
                out.put(origin, item if type(item) in PLAIN else marked(item, self.name))
            except BaseException as error:
                if not self.leaves_out(origin, error, brief(item)):
                    self.fail(origin, error, brief(item))
                    break
                out.put(origin, DROPPED)
            del item  # while it waits, a worker holds nothing
            if cancellations() or _changed(variables):
                return True
        return False

    async def _work_in_order(self) -> bool:
        variables, cancellations = _state()
        while await self.ready():
            (call,) = self._enter([self.source.take()])
            try:
                call.item = marked(await self._function(call.item), self.name)
            except BaseException as error:
                call.item, call.error = brief(call.item), error
            self._leave(call)
            self._pass_on_in_order()
            del call
            if cancellations() or _changed(variables):
                return True
        return False


def _state() -> tuple[Variables, Callable[[], int]]:
    """The context variables of this task, and the method that counts its cancellations."""
    task = asyncio.current_task()
    assert task is not None
    return list(copy_context().items()), task.cancelling


def _changed(variables: Variables) -> bool:
    """Whether this task's context has changed. Two contexts would ask their values whether they are equal, which arrays
    cannot say."""
    context = copy_context()
    if len(context) != len(variables):
        return True
    for variable, value in variables:  # noqa: SIM110  # a generator takes twice the time
        if context.get(variable, _UNSET) is not value:
            return True
    return False


class ThreadStage(CallingStage):
    """A plain function in threads, which share their calls.

    Theory of operation. Calls come in runs: as many as there are items, and room for the results. So they wait in a
    deque, from which each thread takes one after the other, and only a thread that finds none waits in a queue. A run
    wakes as many threads as it has calls for. A thread looks at the deque *after* it was woken, and calls are added
    *before* the look at how many wake-ups are under way. So no call is left behind.
    """

    marks = True  # whether its results may be arrays that it writes to again

    def __init__(
        self, function: Function, *args: Any, filters: bool = False, policy: Policy = (0, ()), **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._retry, skips = policy
        self.skips: tuple[type[Exception], ...] = skips
        self.function = function
        self._filters = filters
        self._calls: deque[Call] = deque()  # that no thread has taken
        self._wake_ups: SimpleQueue[bool] = SimpleQueue()  # for the threads; False to end
        self._made = EntryQueue(self._collect, self.fail)
        self._stopped = False
        self._seconds = 0.0

    async def run(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                for _ in range(self.workers):
                    group.start_soon(in_thread, self._work, f"pipeline {self.name}")
                try:
                    await self.feed()
                except BaseException as error:
                    self.stop()
                    pass_interrupt(error)
                    raise
                finally:
                    for _ in range(self.workers):
                        self._wake_ups.put(False)
        finally:
            self._made.drain()
            self._calls.clear()  # the stage was left

    def busy(self, seconds: float, waited: float) -> float:
        return self._seconds

    def fail(self, origin: Origin, error: BaseException, given: str = "") -> None:
        self._stopped = True  # calls that no thread has taken come after it
        super().fail(origin, error, given)

    def stop(self) -> None:
        super().stop()
        self._stopped = True

    async def feed(self) -> None:
        """Give every item to the threads."""
        while await self.ready():
            room = 1 + self.out.reserve_some(len(self.source.items) - 1)
            self._hand_over(self._enter(self.source.take_some(room)))  # in no variable: while it waits, it holds none

    def _hand_over(self, calls: list[Call]) -> None:
        """Have threads make these calls."""
        self._calls += calls
        for _ in range(min(len(self._calls), self.workers) - self._wake_ups.qsize()):
            self._wake_ups.put(True)

    def _work(self) -> None:
        """Each thread runs this."""
        yield_to_streams()
        self.serve(self.function)

    def serve(self, function: Function) -> None:
        """Make calls, with this thread's own function, until there will be no more."""
        if self._filters:
            function = _keeps(function)
        if self._retry:
            function = _tries(function, self._retry, self)
        made, calls, out = self._made, self._calls, self.out
        while not self._stopped and taken(self._wake_ups):
            while calls and not self._stopped:
                try:
                    call = calls.popleft()
                except IndexError:  # another thread was faster
                    break
                self._make(call, function)
                made.things.append(call)
                del call  # while it waits, a thread holds nothing
                # While there are more calls and the next stage lacks nothing, the loop need not wake up for each
                # result. No result is forgotten, since the last thread that works finds no more calls.
                if not made.awake and (not calls or len(out.items) + len(made.things) >= out.wanted):
                    made.wake()

    def _make(self, call: Call, function: Function) -> None:
        started, result = perf_counter(), None
        try:
            if type(call.item) is Marked:
                call.given = False
                call.item = call.item.check(call.origin)
                call.given = True
            result = copy_context().run(function, call.item)
            if type(result) not in PLAIN:
                result = marked(checked(result), self.name) if self.marks else checked(result)
            call.item = result
        except BaseException as error:
            call.item, call.error = brief(call.item), error
        call.seconds = perf_counter() - started
        del call, result  # an error's traceback holds this frame

    def _collect(self, made: deque[Call]) -> None:
        while made:
            call = made.popleft()
            self._seconds += call.seconds
            self._leave(call)
        self._pass_on_in_order()


class BatchStage(ThreadStage):
    """Batches of `size` items, collated in a thread; by default large ones as their items come (`Packed`)."""

    def __init__(self, collate: Callable[[list[Any]], Any] | None, size: int, drop_last: bool, *args: Any) -> None:
        super().__init__(pack_or_collate, *args)
        self.marks: bool = collate is not None
        self._collate = collate
        self._size = size
        self._drop_last = drop_last
        self._behind = 0  # calls that the thread has not ended
        self._ended = WaitQueue()

    async def feed(self) -> None:
        source, size = self.source, self._size
        while await self.ready():
            packed = Packed(size, self._collate)
            packed.add(source.take_some(1))
            part = packed.part
            while len(packed) < size and (source.items or await source.arrived(size - len(packed))):
                packed.add(source.take_some(min(size - len(packed), part - len(packed) % part)))
                if not len(packed) % part and len(packed) < size:
                    await self._caught_up()
                    self._behind += 1
                    self._hand_over([Call((), packed.pack)])
            if part < size:
                await self._caught_up()
            if self.error is not None:  # of the batch before, for which this has waited
                return
            if len(packed) < size and (self._drop_last or source.error is not None):
                self._drop(packed.origins())
                return
            self._behind += 1
            self._hand_over(self._enter([(packed.origins(), packed)]))
            del packed

    async def _caught_up(self) -> None:
        """Wait until the thread has done all its calls: while it lags, no more items are taken."""
        while self._behind and self.error is None:
            await self._ended.wait()

    def fail(self, origin: Origin, error: BaseException, given: str = "") -> None:
        super().fail(origin, error, given)
        self._ended.wake_all()

    def _leave(self, call: Call) -> None:
        self._behind -= 1
        if call.item is not PACKED:
            super()._leave(call)
        self._ended.wake()

    def _drop(self, origins: tuple[Origin, ...]) -> None:
        """Items of a batch that is not full count as received in the next epoch, if there is one in this block."""
        if isinstance(self.out, DroppingLink):
            self.out.drop(origins)


def _keeps(function: Function) -> Function:
    """A function that gives the item, or `DROPPED` if `function` returns false."""

    def kept(item: Any) -> Any:
        return item if checked(function(item)) else DROPPED

    return kept


def _keeps_later(function: Function) -> Function:
    """The same of a coroutine function."""

    async def kept(item: Any) -> Any:
        return item if await function(item) else DROPPED

    return kept


def _tries(function: Function, retry: int, stage: Stage) -> Function:
    """A function that is called again where it raises, while anybody wants its result."""

    def tried(item: Any) -> Any:
        left = retry
        while True:
            try:
                return checked(function(item))
            except Exception:
                if not left or stage.abandoned:
                    raise
                left -= 1

    return tried


def _tries_later(function: Function, retry: int, stage: Stage) -> Function:
    """The same of a coroutine function."""

    async def tried(item: Any) -> Any:
        left = retry
        while True:
            try:
                return await function(item)
            except Exception:
                if not left or stage.abandoned:
                    raise
                left -= 1

    return tried


def checked(result: Any) -> Any:
    """The result of a plain function. Raises if it is a coroutine."""
    if type(result) is types.CoroutineType:
        result.close()
        raise TypeError("the function returned a coroutine: pass the coroutine function itself, not a wrapper")
    return result
