"""One epoch of a pipeline: its links and stages at work, the iterator for the consumer, and statistics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from ..._instead import OnlyAsync
from ...errors import passable
from ...pictures.record import BytesPerSecond, Record, Seconds
from ...runtime.runtime import Runtime
from ...runtime.threads import ended, in_thread, to_its_end
from .loop_stages import TakeStage
from .order import is_in_memory, is_iterable
from .plan import BUFFER, IN_MEMORY, Plan
from .position import EPOCH, Behind, Progress, noted
from .sources import SourceStage, close, make_source
from .stages import Link, Stage

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class StageStatistics(Record):
    """A snapshot of one stage in the present epoch, or the last. Times are seconds, added up over its workers."""

    name: str
    """Its number, and what it does, as text."""
    workers: int
    """How many items it works on at once."""
    capacity: int
    """The most items that may be in it: being made, held to be shuffled, or waiting for the next stage. In a buffer of
    bytes, as many as fit by the largest so far."""
    items: int
    """Items it has finished, and put where the next stage takes them."""
    busy_seconds: Seconds
    """Working: in its function, or reading the source. Threads are timed in the thread."""
    input_wait_seconds: Seconds
    """Waiting for an item: the stage before it is slower."""
    room_wait_seconds: Seconds
    """Waiting for room for a result: the stage behind it is slower."""
    items_per_second: float
    """Items that it has finished per second, since the epoch was opened and until the stage ended."""
    bytes_per_second: BytesPerSecond
    """The bytes of these items per second, by the size of every 64th."""
    seconds_per_item: Seconds
    """Its work for one item. Where this is some microseconds the stage costs more than its function: put blocks in, not
    rows, and `.unbatch()` behind it."""
    skipped: int
    """Items that it left out for an error, by `skip=`."""
    failures: tuple[str, ...]
    """The last 16 of these: the item and the error."""


@dataclass(frozen=True, repr=False)
class PipelineStatistics(Record):
    """A snapshot of a pipeline in the present epoch, or the last."""

    stages: tuple[StageStatistics, ...]
    """The source, and then each stage in the order of the pipeline."""
    seconds: Seconds
    """Since the epoch was opened, until now or until it was closed."""
    wait_seconds: Seconds
    """Time for which the consumer has waited for items. The rest of `seconds` is the consumer's own work."""
    bottleneck: str
    """The name of the busiest, per worker: a stage, or "the consumer". Empty before the first epoch."""


NOT_OPENED: Final = PipelineStatistics((), 0.0, 0.0, "")
_CLOSED: Final = Link(0)  # stays empty


class Items(AsyncIterator[T], OnlyAsync):
    """Made by `pipe.open()`: an async iterator, for one coroutine, while its block is open.

    Leaving the block stops every stage and closes the source. It waits for functions that run in threads or processes,
    also when it is cancelled, since they cannot be interrupted. Entering the block does so for a source that is a
    function. Only the end of the loop, say after a second Ctrl-C, leaves them behind. Cancelling the wait for an item
    loses none. Taking an item passes through the event loop whenever no item is ready: at least once in as many items
    as the last stage may have ready.

    The stages run in an asyncio task of their own, not in the consumer's. So blocks may end in any order, and may be
    left in another task than the one that entered them, as happens around the `yield` of an async generator.
    """

    def __init__(self, plan: Plan, progress: Progress, on_enter: Callable[[Items[T]], None], runtime: Runtime) -> None:
        self._plan = plan
        self._progress = progress
        self._on_enter = on_enter  # raises if no epoch may begin now
        self._runtime = runtime
        self._position = progress.position
        self._work: asyncio.Task[None] | None = None
        self._stages: list[Stage] = []
        self._source: SourceStage | None = None
        self._iterable: Any = None
        self._unread: Any = None  # a source that a function has made
        self._out = _CLOSED
        self._enough = False  # a stage has enough items: no epoch is read any more
        self._given = 0  # how many items had gone into the `repeat` before this epoch
        self._state = "not open yet"
        self._started = 0.0
        self._report = NOT_OPENED  # once it is closed, the statistics from then

    def __len__(self) -> int:
        """How many items are still to come. Raises TypeError if that is not known, as after a filter."""
        if self._state == "closed":
            return 0
        if self._state == "open":
            return self._plan.length(self._iterable, self._progress.received())
        position = self._progress.next()
        return self._plan.length(self._plan.readable(position.epoch), position)

    def __bool__(self) -> bool:
        return True  # or it would ask for a length, which may be unknown

    if not TYPE_CHECKING:  # with it, type checkers would take this for iterable

        def __iter__(self) -> NoReturn:
            raise TypeError("items come one by one: `async for item in items`; with tqdm, use tqdm.asyncio's")

    async def __aenter__(self) -> Self:
        if self._state != "not open yet":
            raise RuntimeError("these items were opened before: call `pipe.open()` again for another epoch")
        self._on_enter(self)
        self._position = self._progress.begin()
        self._runtime.step_watchers.add(self._progress)
        try:
            self._iterable = await self._read_source()
            self._position.check(self._iterable)
            self._started = perf_counter()
            self._build()
            self._work = asyncio.create_task(self._run(), name="pipeline")
        except BaseException as error:
            try:
                await self._close_unread()
            finally:
                self._close(error)
            raise
        # It may be cancelled before it begins
        self._work.add_done_callback(lambda work: self._end(asyncio.CancelledError()))
        self._state, self._progress.unread = "open", True
        return self

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                _start(group, self._stages[self._plan.repeated + 1 :])
                if not await self._read():
                    group.cancel_scope.cancel()
        except BaseException as error:  # it was cancelled, or a stage broke
            self._end(error)

    async def _read(self) -> bool:
        """Run the source, and the stages before a `repeat`, once for each epoch. False if one was cancelled."""
        before = self._before()
        out, number, epochs = before[-1].out, 0, self._plan.epochs
        while True:
            out.more = not self._enough and (epochs is None or self._position.epoch % epochs + number + 1 < epochs)
            async with anyio.create_task_group() as group:
                _start(group, before)
            if self._enough:
                out.more = False
                out.end()
            if out.ended or group.cancel_scope.cancel_called:
                return not group.cancel_scope.cancel_called
            number += 1
            try:
                before[0] = await self._again(before, number)
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                out.end(noted(error, f"raised where the source of epoch {self._position.epoch + number} was made"))
                return True

    def _before(self) -> list[Stage]:
        """The source, and the stages before the `repeat`, which see each epoch end."""
        return self._stages[: self._plan.repeated + 1]

    def _end_block(self) -> None:
        """A stage has enough items: no epoch is read any more."""
        self._enough = True
        self._end_epoch()

    def _end_epoch(self) -> None:
        """A stage before the `repeat` has enough items of this epoch: its source is read no more."""
        assert self._source is not None
        self._source.read_no_more()

    async def _again(self, before: Sequence[Stage], number: int) -> Stage:
        """A source for another epoch, of this number in the block. The stages before the `repeat` are used again."""
        old = self._source
        assert old is not None
        if self._plan.epochs is None and before[-1].out.count == self._given and not old.skip.reaches(old.first):
            why = "the source has no items"
            if old.end > old.first:
                why = "the stages before the `repeat` leave out every item, as in a batch that is not full"
            raise ValueError(f"there is nothing to repeat for ever: {why}")
        self._given = before[-1].out.count
        first = before[0].out
        for stage in before:
            stage.ended = inf
            stage.out.reopen()
            first.drop(stage.out.dropped())
        first.drop(Behind((), (range(old.end, number * EPOCH),)))  # the gap to the next epoch's numbers
        self._iterable = await self._read_source(number)
        new = make_source(self._iterable, old.skip, old.source, first, number * EPOCH, self._plan.most)
        self._source = self._stages[0] = new
        if self._enough:
            new.read_no_more()
        new.started, new.epoch, new.closing_error = old.started, old.epoch, old.closing_error
        if new.seconds is not None:
            new.seconds += old.seconds or 0.0  # None, if the last source was of another kind
        return new

    def _end(self, error: BaseException) -> None:
        """The stages have ended. Tell the consumer, who would wait for them, unless the block was left."""
        if self._stages and not self._out.ended:
            self._out.end(passable(error, "the stages of the pipeline ended by"))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._work is not None
        assert self._source is not None
        source = self._source
        self._state = "closed"
        for stage in self._stages:
            if stage.ended == inf:
                stage.stop()
        self._work.cancel()
        try:
            try:
                await ended(self._work)
            finally:
                await self._close_unread()
        finally:
            self._close(error)
        if error is None and source.closing_error is not None:
            raise passable(source.closing_error, "closing the source raised")

    async def __anext__(self) -> T:
        out, position = self._out, self._position
        origin = position.in_hand
        if origin is None or not out.items:
            await self._arrived()
        elif origin == position.taken and not position.ahead:  # written out, since most items come this way
            position.taken += 1
        else:
            position.receive(origin)
        position.in_hand, item = out.take()
        return item  # type: ignore[no-any-return]

    async def _arrived(self) -> None:
        """Wait for an item. If there is none, raise the exception that ended the items."""
        self._must_be_open()
        self._progress.asked()
        if self._out.for_items.waiters:
            raise RuntimeError("another coroutine waits for the next item: give each its own share, or a pipeline")
        if await self._out.arrived():
            return
        if self._state == "open" and self._out.error is None:
            self._progress.finish()
            raise StopAsyncIteration
        self._must_be_open()
        assert self._out.error is not None
        raise BaseException.with_traceback(self._out.error, None)

    def _must_be_open(self) -> None:
        if self._state != "open":
            raise RuntimeError(f"the pipeline is {self._state}: iterate inside `async with pipe.open() as items`")

    async def _read_source(self, number: int = 0) -> Any:
        """The source of the epoch with this number in the block. Functions that make it are called in a thread."""
        plan = self._plan
        if is_iterable(plan.source) and plan.order is None and not plan.shards:
            return plan.source

        def read() -> Any:
            self._unread = plan.read(self._position.epoch + number)
            return self._unread

        return await to_its_end(in_thread(read, "source of a pipeline"))

    async def _close_unread(self) -> None:
        """Close an iterator that was made for an epoch that was cancelled, or never began, so that no stage reads
        it."""
        unread, self._unread, source = self._unread, None, self._source
        if unread is not None and not (source is not None and source.opened and source.iterable is unread):
            await to_its_end(close(unread))

    def _build(self) -> None:
        plan, skip = self._plan, self._progress.began
        first = Link(*(plan.buffer or (IN_MEMORY if is_in_memory(self._iterable) else BUFFER, None)))
        links = [Link(0), first, *[Link(one.capacity, one.most_bytes) for one in plan.stages]]
        self._source = make_source(self._iterable, skip, *links[:2], 0, plan.most)
        self._stages = [self._source]
        for number, (one, (source, out)) in enumerate(zip(plan.stages, pairwise(links[1:]), strict=True), 1):
            source.fitted += out.fitted
            self._stages.append(one.make(f"{number} ({one.label})", source, out))
        for stage in self._stages:
            stage.started, stage.epoch, stage.skip = self._started, self._position.epoch, skip
            if isinstance(stage, TakeStage):
                stage.of_block = stage not in self._before()
                stage.enough = self._end_block if stage.of_block else self._end_epoch
        self._out = links[-1]

    def _close(self, error: BaseException | None) -> None:
        """Drop everything but the report: items read ahead, and an error's frames, would keep memory alive."""
        self._state = "closed"
        self._report = self.statistics()
        self._out.close()
        for stage in self._stages:
            stage.source.close()  # the one in front of the source has its error, too
            stage.error = None
        self._stages, self._source, self._iterable, self._out = [], None, None, _CLOSED
        self._runtime.step_watchers.discard(self._progress)
        self._progress.close(error)

    def statistics(self) -> PipelineStatistics:
        """A snapshot; after closing, the one from then."""
        return _report(self._stages, self._out, self._started, perf_counter()) if self._stages else self._report


def _start(group: TaskGroup, stages: Sequence[Stage]) -> None:
    for stage in stages:
        group.start_soon(stage.work, name=f"pipeline stage {stage.name}")


def _report(stages: Sequence[Stage], out: Link, started: float, now: float) -> PipelineStatistics:
    """A snapshot of these stages, of which the last puts into `out`."""
    figures, waited = [stage.figures(now) for stage in stages], out.for_items.seconds(now)
    found, seconds = tuple([StageStatistics(*one) for one in figures]), now - started
    load = {stage.name: stage.busy_seconds / stage.workers for stage in found} | {"the consumer": seconds - waited}
    return PipelineStatistics(found, seconds, waited, max(load, key=load.__getitem__))
