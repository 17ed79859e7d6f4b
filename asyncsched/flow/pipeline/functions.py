"""Stages that run a plain function in threads: one for each item, or one that makes batches."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import types
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from traceback import TracebackException
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import anyio

from ..._system import log
from ...runtime.threads import in_thread, pass_interrupt, taken, yield_to_streams
from .collate import PACKED, Packed
from .marks import PLAIN, Marked, marked
from .order import check_rows
from .position import Origin, brief, describe
from .stages import DROPPED, Numbered, Stage, WaitQueue

T = TypeVar("T")

Function: TypeAlias = Callable[[Any], Any]
_MOST_TOLD: Final = 300  # characters of an error
_MOST_GATHERED: Final = 256  # items of a batch that the loop takes in one step, which others wait for; a guess


class Called(NamedTuple):
    """A function that a stage calls for each item."""

    function: Function
    verb: str = "map"  # or "filter", which leaves items out, or "flat_map", which lists what it gives
    retry: int = 0  # how often it is called again
    skips: tuple[type[Exception], ...] = ()  # for these an item is left out


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

    skipped: int

    def __init__(self, called: Called, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.called = called
        self._entered: deque[Call] = deque()  # if the stage is ordered: the calls that were not passed on, in order

    def _enter(self, items: list[Numbered]) -> list[Call]:
        """Calls that are about to begin."""
        calls = [Call(origin, item) for origin, item in items]
        if self.ordered:
            self._entered += calls
        return calls

    def _leave(self, calls: Sequence[Call]) -> None:
        """Calls have ended. Pass on their results; in an ordered stage those that wait for no other."""
        for call in calls:
            call.done = True
            if call.error is not None and call.given and self.leaves_out(call.origin, call.error, call.item):
                call.item, call.error = DROPPED, None
            if call.error is not None:
                self.fail(call.origin, call.error, call.item)
            elif not self.ordered:
                self.pass_on(call.origin, call.item)
        self._pass_on_in_order()

    def leaves_out(self, origin: Origin, error: BaseException, given: str) -> bool:
        """Whether an item is left out for this error. If so, counts it, and logs the first."""
        if not isinstance(error, self.called.skips):
            return False
        self.skipped += 1
        told = "".join(TracebackException.from_exception(error).format_exception_only()).strip().replace("\n", " ")
        failure = f"{describe(origin)}{given and f' ({given})'}: {told[:_MOST_TOLD]}"
        self.failures.append(failure)
        if self.skipped == 1:
            log.warning(
                "stage %s of a pipeline leaves out %s (others are counted in `statistics()`)", self.name, failure
            )
        return True

    def _pass_on_in_order(self) -> None:
        entered, out = self._entered, self.out
        while entered and entered[0].done:
            first = entered.popleft()
            if first.error is None:
                try:
                    out.put(first.origin, first.item)
                    continue
                except BaseException as error:  # as in `pass_on`
                    first.item, first.error = brief(first.item), error
                    self.fail(first.origin, error)
            # The first in the order of the items counts, whichever failed first
            self.error: BaseException | None = first.error
            self.failed_at: Origin = first.origin
            self.failed_on: str = first.item
            entered.clear()


class EntryQueue(Generic[T]):
    """Delivers on the loop's thread, in order, what any thread appends. Made on the loop's thread.

    Args:
        deliver: called with the things that are there. It takes them out, one after the other.
        failed: called with what `deliver` raises.

    Theory of operation. Each `call_soon_threadsafe` costs a system call, and a step of the loop. So threads append to a
    deque, and wake the loop only if no step that drains it is on its way. No lock is needed: `deque.append` and
    `popleft` are each one step to other threads, with the GIL and without it, and the order of two steps does the rest.
    A thread appends first and looks at the flag second. `drain` takes the flag down first and looks at the deque
    second. So the `drain` that takes the flag down sees all that threads appended while it was up. Two threads may both
    see it down, and wake the loop twice: the second `drain` finds nothing. A thread that appends without a wake-up has
    to be sure that another one wakes the loop. (trio's `EntryQueue` is the same for functions to be called.)
    """

    def __init__(self, deliver: Callable[[deque[T]], None], failed: Callable[[Origin, BaseException], None]) -> None:
        self._deliver = deliver
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self.things: deque[T] = deque()  # any thread appends one, which is delivered at the next wake-up
        self.awake: bool = False  # whether a step of the loop that drains this is on its way

    def wake(self) -> None:
        """Have all things that were appended delivered soon. From any thread."""
        if not self.awake:
            self.awake = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Deliver all things that are there, now."""
        self.awake = False
        while self.things:
            try:
                self._deliver(self.things)
            except BaseException as error:  # say, an item's size: nobody sees what a callback of the loop raises
                self._failed((), error)
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise


async def in_threads(
    stage: Stage, work: Callable[[], None], feed: Callable[[], Awaitable[None]], told: SimpleQueue[Any]
) -> None:
    """Run `work` in a thread for each worker of a stage, and `feed` beside them. At the end each gets False from the
    queue `told`: no more comes."""
    async with anyio.create_task_group() as group:
        for _ in range(stage.workers):
            group.start_soon(in_thread, work, f"pipeline {stage.name}")
        try:
            await feed()
        except BaseException as error:
            stage.stop()
            pass_interrupt(error)
            raise
        finally:
            for _ in range(stage.workers):
                told.put(False)


class ThreadStage(CallingStage):
    """A plain function in threads, which share their calls.

    Theory of operation. Calls come in runs: as many as there are items, and room for the results. They wait in a deque,
    from which each thread takes one after the other. Only a thread that finds none waits in a queue. A run wakes as
    many threads as there are calls for. A thread looks at the deque *after* it was woken. Calls are added *before* the
    look at how many wake-ups are under way. So no call is left behind.
    """

    marks = True  # whether results are marked, since the function may write to their arrays again

    def __init__(self, called: Called, *args: Any, **options: Any) -> None:
        super().__init__(called, *args, **options)
        lists = called.verb == "flat_map"
        self.function: Function = partial(_listed, called.function, self.name) if lists else called.function
        self._calls: deque[Call] = deque()  # that no thread has taken
        self._wake_ups: SimpleQueue[bool] = SimpleQueue()  # for the threads; False to end
        self._made = EntryQueue(self._collect, self.fail)
        self.seconds: float = 0.0

    async def run(self) -> None:
        try:
            await in_threads(self, self._work, self.feed, self._wake_ups)
        finally:
            self._made.drain()
            self._calls.clear()  # the stage was left
            self._entered.clear()

    async def feed(self) -> None:
        """Give every item to the threads."""
        while await self.ready():
            room = 1 + self.out.reserve_some(len(self.source.items) - 1)
            # In no variable, so that this holds no item while it waits
            self._hand_over(self._enter(self.source.take_some(room)))

    def _hand_over(self, calls: list[Call]) -> None:
        """Let the threads make these calls."""
        self._calls += calls
        for _ in range(min(len(self._calls), self.workers) - self._wake_ups.qsize()):
            self._wake_ups.put(True)

    def _work(self) -> None:
        """The work of one thread."""
        self.serve(self.function)

    def serve(self, function: Function) -> None:
        """Make calls, with this thread's own function, until there will be no more."""
        if self.called.verb == "filter":
            function = _keeps(function)
        if self.called.retry:
            function = _tries(function, self.called.retry, self)
        made, calls, out = self._made, self._calls, self.out
        yield_to_streams()
        while taken(self._wake_ups):
            # After an error no call is made: the item that failed comes before those that no thread has taken.
            while calls and self.error is None and not self.abandoned:
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
        calls = [made.popleft() for _ in range(len(made))]
        self.seconds += sum([call.seconds for call in calls])
        self._leave(calls)


class BatchStage(ThreadStage):
    """Batches of `size` items, collated in a thread; by default large ones as their items come (`Packed`)."""

    def __init__(self, collate: Callable[[list[Any]], Any] | None, size: int, drop_last: bool, *args: Any) -> None:
        super().__init__(Called(operator.call), *args)
        self.marks: bool = collate is not None
        self._collate = collate
        self._size = size
        self._drop_last = drop_last
        self._behind = 0  # calls that the thread has not ended
        self._ended = WaitQueue()

    async def feed(self) -> None:
        source, size = self.source, self._size
        part, packed = size, None
        try:
            while await self.ready(part):
                packed = Packed(size, self._collate, source.items[0][1])
                part = packed.part
                source.gather(min(part, _MOST_GATHERED))
                while (lacking := min(size - len(packed), part - len(packed) % part)) and await source.arrived(lacking):
                    if part < size:
                        await self._caught_up()
                    packed.add(source.take_some(lacking))
                    if not len(packed) % part and len(packed) < size:
                        self._behind += 1
                        self._hand_over([Call((), packed.pack)])
                if self.error is not None:  # of the batch before, or of a part of this one
                    return
                if len(packed) < size and source.error is not None:  # a resumed epoch gives the items
                    return
                if len(packed) < size and self._drop_last:
                    self.out.drop(packed.origins())  # they count as received in the next epoch, if the block has one
                    return
                self._behind += 1
                self._hand_over(self._enter([(packed.origins(), packed.collate)]))
                packed = None
        finally:
            packed = None  # a cancellation keeps this frame, until the garbage collector comes

    async def _caught_up(self) -> None:
        """Wait until the thread has done all its calls: while it lags, no more items are taken."""
        while self._behind and self.error is None:
            await self._ended.wait()

    def fail(self, origin: Origin, error: BaseException, given: str = "") -> None:
        super().fail(origin, error, given)
        self._ended.wake_all()

    def _leave(self, calls: Sequence[Call]) -> None:
        self._behind -= len(calls)
        super()._leave([call for call in calls if call.item is not PACKED])
        if self._ended.waiters:
            self._ended.wake()


def _keeps(function: Function) -> Function:
    """A function that returns the item, or `DROPPED` if `function` returns a false value."""

    def kept(item: Any) -> Any:
        return item if checked(function(item)) else DROPPED

    return kept


def _listed(function: Function, stage: str, item: Any) -> list[Any]:
    return listed(checked(function(item)), stage)


def listed(found: Iterable[Any], stage: str) -> list[Any]:
    """All items of the iterable that a function returned, each with its mark."""
    check_rows(found, None)
    return [marked(part, stage) for part in found]


def _tries(function: Function, retry: int, stage: Stage) -> Function:
    """A function that calls `function` again if that raises, as long as anybody wants the result."""

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


def checked(result: Any) -> Any:
    """The result of a plain function. Raises if it is a coroutine."""
    if type(result) is types.CoroutineType:
        result.close()
        raise TypeError("the function returned a coroutine: pass the coroutine function itself, not a wrapper")
    return result
