"""The base of a pipeline's stages: links on either side, and how stages fail.

A stage takes items from one link and puts its results into the next. An error of its function ends its output: behind
the results of the items before it, and with nothing after it.

The parts of a pipeline, and how many items it gives.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable
from math import inf
from time import perf_counter
from traceback import TracebackException
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ..._core.failure import copied
from ..._log import log
from ...errors import add_note, notes_of, passable
from ...runtime.threads import ended
from .links import Link
from .order import Shard, arranged, is_in_memory, is_iterable, is_map, of_epoch
from .position import EPOCH, Origin, Position, brief, describe

T = TypeVar("T")
_FAILURES_KEPT: Final = 16
_MOST_TOLD: Final = 300  # characters of each


class StagePlan(NamedTuple):
    """The plan of a stage: its name, how many items it may have, and the function that makes it of a name and two
    links."""

    label: str
    capacity: int
    make: Callable[[str, Link, Link], Stage]
    # How many items it makes of so many, by default as many. Raises TypeError if that is not known.
    length: Callable[[int], int] = int
    # Of how many items its first so many are made, by default of as many. None if that is not known.
    needs: Callable[[int], int] | None = int
    link: type[Link] = Link  # behind it
    most_bytes: int | None = None  # of these items
    shuffles: bool = False
    unbatches: bool = False


class Stage:
    """The base of all stages."""

    def __init__(self, name: str, source: Link, out: Link, workers: int = 1, *, ordered: bool = True) -> None:
        self.name = name
        self.source = source
        self.out = out
        self.workers = workers
        self.ordered = ordered
        self.epoch = 0
        self.skip: Position = Position()  # what counted when the block was opened
        self.skips: tuple[type[Exception], ...] = ()  # of the function: such an item is left out
        self.skipped: int = 0
        self.failures: deque[str] = deque(maxlen=_FAILURES_KEPT)  # of the last of these
        self.held = 0  # items that it keeps besides those that have room in `out`
        self.closing: bool = False  # what it reads
        self.abandoned: bool = False  # what it makes, by anybody
        self.error: BaseException | None = None
        self.failed_at: Origin = ()
        self.failed_on: str = ""  # the item there, if it is brief
        self.started: float = perf_counter()
        self.ended: float = inf

    async def work(self) -> None:
        """Run to the end of the output. Whatever ends it is told to the next stage, which would wait for it."""
        try:
            await self.run()
        except BaseException as error:
            self.fail((), _alone(error))
            self._finish()
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise
        else:
            self._finish()

    async def run(self) -> None:
        """Work until there is no more input. Raises nothing of its own: an error ends the output.

        Called again, after a clean end, for another epoch of a `repeat`.
        """
        raise NotImplementedError

    def busy(self, seconds: float, waited: float) -> float:
        """Seconds of work in the first so many, added up over the workers: all time in which they have not waited."""
        return max(0.0, self.workers * seconds - waited)

    async def ready(self) -> bool:
        """Wait for room, and take it, and for an item. False if it takes no more items."""
        if self.error is not None:
            return False
        if not self.out.try_reserve():
            await self.out.reserve()
        if self.source.items or await self.source.arrived():
            return self.error is None
        self.out.unreserve()
        return False

    def stop(self) -> None:
        """Nobody wants its output any more: begin no more work."""
        self.abandoned = True

    def fail(self, origin: Origin, error: BaseException, given: str = "") -> None:
        """Take no more items. The first error counts."""
        if self.error is None:
            self.error, self.failed_at, self.failed_on = error, origin, given
            self.source.end()
            self.out.lift_bound()

    def leaves_out(self, origin: Origin, error: BaseException, given: str) -> bool:
        """Whether an item is left out for this error; then it is told of."""
        if not isinstance(error, self.skips):
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

    def pass_on(self, origin: Origin, item: Any) -> None:
        """Put an item that the stage is done with. The next stage may not be able to tell its size."""
        try:
            self.out.put(origin, item)
        except BaseException as error:
            self.fail(origin, error, brief(item))

    async def run_apart(self, work: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Run a function that awaits a user's coroutines. While it returns True, run it again in a new asyncio task.

        If this is cancelled, cancel it once and wait for it, as asyncio does. A cancelled scope of anyio would cancel
        it again at each `await`, even in a `finally`. A source that is being closed is not cancelled any more.
        """
        go_on = True
        while go_on:
            task = asyncio.create_task(work())
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                self.fail((), error)  # in case a user's coroutine goes on all the same
                self.abandoned = True
                if not self.closing:
                    task.cancel()
                await ended(task)
                raise
            if task.cancelled():  # by somebody else
                self.fail((), asyncio.CancelledError())
                return
            if (raised := task.exception()) is not None:  # told before the other workers are cancelled for it
                self.fail((), raised)
            go_on = task.result()

    def _finish(self) -> None:
        """There will be no more output."""
        self.ended = perf_counter()
        self.out.end(self.source.error if self.error is None else self._noted(self.error))

    def _noted(self, error: BaseException) -> BaseException:
        """Add a note to an exception for the consumer: the stage and the item."""
        given = f": {self.failed_on}" if self.failed_on else ""
        where = f", at {describe(self.failed_at)}" if self.failed_at != () else ""
        return noted(error, f"raised in the pipeline's stage {self.name}{where}{given}")


def noted(error: BaseException, note: str) -> BaseException:
    """A copy of an exception for the consumer, with a note: a user may raise the same again in each epoch."""
    error = passable(error, "the function raised")
    copy = copied(error, error.__traceback__, error.__context__, notes_of(error))
    if note not in notes_of(copy):  # it cannot be copied, and has it
        add_note(copy, note)
    return copy


def _alone(error: BaseException) -> BaseException:
    """The error, or the first of several workers', out of groups of its own."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


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


_UNKNOWN = "the length of this pipeline is not known"


class Plan(NamedTuple):
    """A source, how many items may be read ahead of the first stage, and how many bytes, and the stages."""

    source: Any
    buffer: tuple[int, int | None]
    order: Any = None
    shards: tuple[Shard, ...] = ()
    stages: tuple[StagePlan, ...] = ()
    epochs: int | None = 1  # that are read in one `open()`; None for no end
    repeated: int = 0  # how many of the stages stand before the `repeat`, and see each epoch end
    most: int = sys.maxsize  # items that are read in each epoch: enough for each `take`
    takes: tuple[tuple[int, int], ...] = ()  # behind how many of the stages each `take` stands, and of how many items

    def labels(self) -> list[str]:
        """The names of its parts, in order."""
        labels = [stage.label for stage in self.stages]
        if self.epochs != 1:
            labels.insert(self.repeated, "repeat" if self.epochs is None else f"repeat {self.epochs}")
        for place, count in reversed(self.takes):  # they stand before the `repeat`
            labels.insert(place, f"take {count}")
        return [f"shard {shard.index} of {shard.count}" for shard in self.shards] + labels

    def read(self, epoch: int) -> Any:
        """The source and order of an epoch, where they are functions of its number. Raises TypeError if the result
        cannot be read."""
        return arranged(of_epoch(self.source, epoch, self.order), self.order, self.shards, epoch)

    def check_position(self, iterable: Any, position: Position) -> None:
        """Raise ValueError for a position behind the end of a source that is read by index: it is of another
        pipeline."""
        now = position.now()
        received = max([now.taken, *[number + 1 for number in now.ahead if number < EPOCH]])
        by_index = is_in_memory(iterable) or is_map(iterable)
        if received and by_index and received > (count := len(iterable)):
            raise ValueError(
                f"the loaded position is behind {received} items, and the source has {count}: load the `state_dict()`"
                " of a pipeline with the same source"
            )

    def readable(self, epoch: int) -> Any:
        """As `read`, if that does not take making a source, which may wait. Raises TypeError if it does."""
        if not is_iterable(self.source):
            raise TypeError(f"{_UNKNOWN}: a function of the epoch makes its source; in its block `len(items)` may be")
        return self.read(epoch)

    def length(self, iterable: Any, position: Position) -> int:
        """How many items this iterable gives from a position on, as if all epochs were as long as this one.

        Raises TypeError if that is not known.
        """
        if self.epochs is None:
            raise TypeError(f"{_UNKNOWN}: `repeat()` goes on for ever; `repeat(epochs)` does not")
        try:
            count = len(iterable)
        except TypeError as error:
            raise TypeError(f"{_UNKNOWN}: its source has none ({error})") from None
        count = min(count, self.most)
        now = position.now()
        received = Counter(number // EPOCH for number in now.ahead)
        received[0] += now.taken
        before, behind = self.stages[: self.repeated], self.stages[self.repeated :]
        whole = _through(before, count)
        total = whole * (self.epochs - now.epoch % self.epochs)
        total -= sum(whole - _through(before, max(0, count - taken)) for taken in received.values())
        return _through(behind, total)


def _through(stages: Iterable[StagePlan], count: int) -> int:
    """How many items these stages make of `count` items."""
    for stage in stages:
        count = stage.length(count)
    return count


def unknown_after(label: str, items: int) -> int:
    """The length behind a filter."""
    raise TypeError(f"{_UNKNOWN}: `{label}` decides as it goes which items it keeps")
