"""One epoch of a pipeline: its links and stages at work, and the consumer's end."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, cast

import anyio

from ...errors import passable
from ...runtime.cancellation import ended, to_its_end
from ...runtime.threads import in_thread
from .links import Link
from .position import Progress
from .sources import SourceStage, is_iterable, make_source
from .stages import Stage, StagePlan
from .statistics import PipelineStatistics, report

T = TypeVar("T")


class Plan(NamedTuple):
    """What a pipeline is made of: a source, how many items may be read ahead of the first stage, and the stages."""

    source: Any
    buffer: int
    stages: tuple[StagePlan, ...] = ()


class Items(AsyncIterator[T]):
    """What `pipe.open()` gives: an async iterator, for one coroutine, while its block is open.

    Leaving the block stops every stage and closes the source. It waits for functions that run in threads or processes,
    cancelled or not, since they cannot be interrupted; entering it does so for a source that is a function. Only the
    end of the loop, after a second Ctrl-C say, leaves them behind. Cancelling the wait for an item loses none. The loop
    is passed through whenever nothing is ready, and so at least once in as many items as the last stage may have ready.

    The stages run in a task of their own, not in that of the consumer. So blocks may end in any order and be left in
    another task than they were entered in, as they are around the `yield` of an async generator.
    """

    def __init__(self, plan: Plan, progress: Progress, on_enter: Callable[[Items[T]], None]) -> None:
        self._plan = plan
        self._progress = progress
        self._on_enter = on_enter  # raises if no epoch may begin now
        self._position = progress.position
        self._work: asyncio.Task[None] | None = None
        self._links: list[Link] = []
        self._stages: list[Stage] = []
        self._source: SourceStage | None = None
        self._out = Link(0)
        self._state = "not open yet"
        self._waiting = False
        self._started = 0.0
        self._report: PipelineStatistics | None = None  # once it is closed

    async def __aenter__(self) -> Self:
        if self._state != "not open yet":
            raise RuntimeError("these items were opened before: call `pipe.open()` again for another epoch")
        self._on_enter(self)
        self._position = self._progress.begin()
        try:
            self._build(await self._iterable())
            self._started = perf_counter()
            self._work = asyncio.create_task(self._run(), name="pipeline")
        except BaseException:
            self._close()
            raise
        self._work.add_done_callback(self._ended)
        self._state, self._progress.unread = "open", True
        return self

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                for stage in self._stages:
                    stage.started = self._started
                    group.start_soon(stage.work, name=f"pipeline stage {stage.name}")
        except BaseException as error:  # it was cancelled, or a stage broke, which the consumer would wait for
            self._out.end(passable(error, "the stages of the pipeline ended by"))

    def _ended(self, work: asyncio.Task[Any]) -> None:
        if not self._out.ended:  # it was cancelled before it began
            self._out.end(passable(asyncio.CancelledError(), "the stages of the pipeline ended by"))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._work is not None
        assert self._source is not None
        source = self._source
        self._state = "closed"
        self._work.cancel()
        try:
            await ended(self._work)
        finally:
            self._close()
        if error is None and source.closing_error is not None:
            raise source.closing_error

    async def __anext__(self) -> T:
        out = self._out
        if not out.items:
            await self._arrived()
        origin, item = out.take()
        position = self._position
        if origin == position.taken and not position.ahead:  # written out: as it is for most items
            position.taken += 1
        else:
            position.receive(origin)
        return item  # type: ignore[no-any-return]

    async def _arrived(self) -> None:
        """Wait for an item. Raises what ended the stream instead."""
        self._must_be_open()
        if self._waiting:
            raise RuntimeError("another coroutine waits for the next item: give each its own share, or a pipeline")
        self._waiting = True
        try:
            if await self._out.arrived():
                return
        finally:
            self._waiting = False
        self._must_be_open()
        if self._out.error is not None:
            raise self._out.error.with_traceback(None)
        self._progress.finish()
        raise StopAsyncIteration

    def _must_be_open(self) -> None:
        if self._state != "open":
            raise RuntimeError(f"the pipeline is {self._state}: iterate inside `async with pipe.open() as items`")

    async def _iterable(self) -> Any:
        """The iterable of this epoch; a source that is a function is called for it."""
        source = self._plan.source
        if is_iterable(source):
            return source
        make = partial(cast(Callable[[int], Any], source), self._position.epoch)
        made = await to_its_end(in_thread(make, "source of a pipeline"))
        if not is_iterable(made):
            if inspect.iscoroutine(made):
                made.close()
            raise TypeError(f"the pipeline's source returned a {type(made).__name__}, which is not iterable")
        return made

    def _build(self, iterable: Any) -> None:
        link = Link(self._plan.buffer)
        self._source = make_source(iterable, self._position.copy(), link)
        self._links, self._stages = [self._source.source, link], [self._source]
        for number, plan in enumerate(self._plan.stages, 1):
            source, link = link, Link(plan.capacity)
            self._links.append(link)
            self._stages.append(plan.make(f"{number} ({plan.label})", source, link))
        self._out = link

    def _close(self) -> None:
        """Drop all but the report: what was read ahead, and an error's frames, would keep memory alive."""
        self._state = "closed"
        self._report = self.statistics()
        for link in self._links:
            link.close()
        for stage in self._stages:
            stage.error = None
        self._links, self._stages, self._source, self._out = [], [], None, Link(0)
        self._progress.open = False

    def statistics(self) -> PipelineStatistics:
        """A snapshot, or what was so when it was closed."""
        return self._report or report(self._stages, self._out, self._started, perf_counter())
