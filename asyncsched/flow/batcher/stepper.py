"""Steps with members that stay: one call, again and again, for all members that have joined.

Theory of operation. A stepper is a batcher whose items come back. A member's seat is an entry of the queue. The one
runner forms a step of the entries, computes it, and hands each member its output. A member that is not done, and has
room for another output, is put into the queue in the same turn of the loop, so it is there when the runner looks again.
A member without room is put there when somebody reads. Nothing runs while the queue is empty.

The next step of a plain function is put on its stream in the turn of the loop that ends the last one, so readers use
their outputs while it runs. A member that leaves after an output which is not its last is thus mostly in the next step.
It waits for the end of that step, in spite of cancellation: until then a stream's thread may write to the member's
memory.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import count
from time import monotonic
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from ..._arguments import check_int, check_plain, parse_bytes
from ..._blocks import asynccontextmanager
from ..._core.model import Scope as CoreScope
from ..._instead import naming_arguments
from ...errors import TaskCancelled
from ...pictures.record import Record, Seconds
from ...runtime.context import current_scope, deadline, find, innermost
from ...runtime.runtime import Runtime
from ...runtime.threads import outlast
from ..scope import Scope, Submitter
from ..tasks import check_wait
from .members import NOBODY, MemberQueue, Seat
from .queue import is_error, own
from .runners import Runners

Member = TypeVar("Member")
Output = TypeVar("Output")


class Skip(Enum):
    """The type of `asc.SKIP`."""

    SKIP = "SKIP"

    def __repr__(self) -> str:
        return "asyncsched.SKIP"


SKIP: Final = Skip.SKIP
"""A step returns this for a member that has no output yet: it has read a part of a long prompt, say."""


@dataclass(frozen=True, slots=True)
class Last(Generic[Output]):
    """A step returns this as the last output of a member. The member is in no step any more, and its iteration ends
    after the output. `Last()`, without a value, ends it without an output: for an end-of-text token that nobody should
    see, say.

    Raises:
        TypeError: for a `Last` as its value.
    """

    value: Output | Literal[Skip.SKIP] = SKIP

    def __post_init__(self) -> None:
        if type(self.value) is Last:
            raise TypeError("Last takes an output, and this is a Last already: a member has one last output")


Returned: TypeAlias = Output | Last[Output] | Literal[Skip.SKIP] | Exception


@dataclass(frozen=True, repr=False)
class StepperStatistics(Record):
    """A snapshot of a stepper. Times are seconds. Counts are since it was made, except the first five.

    `stepped / steps` is the mean size of a step, `first_seconds / begun` the mean time to the first output, and
    `gap_seconds / (outputs - begun)` the mean gap.
    """

    admitting: int
    """Members that wait for their reserve, or for more."""
    members: int
    """Members that have joined and not left."""
    stepping: int
    """Members that are in a step."""
    waiting: int
    """Members that wait for a step: for the next, or for room in one."""
    paused: int
    """Members with `ahead` outputs that nobody has read: they are in no step."""
    joined: int
    """Members that have ever joined."""
    begun: int
    """Members that have had an output."""
    failed: int
    """Members that an exception ended: their own, or one of their step."""
    steps: int
    """Steps computed."""
    stepped: int
    """Members in these steps, added up."""
    outputs: int
    """Outputs of these members, added up."""
    retries: int
    """Parts of failed steps that were computed again (`isolate=`)."""
    largest_step: int
    """The most members that ever were in one step."""
    first_seconds: Seconds
    """Seconds from joining, with its reserve, to the first output, added up."""
    gap_seconds: Seconds
    """Seconds from one output of a member to its next, added up. Time in which it is paused does not count."""
    longest_gap: Seconds
    """The longest of these gaps."""
    wait_seconds: Seconds
    """Seconds for which members have waited for their next step, added up."""
    stepped_per_second: float
    """Members stepped per second, of the last second or so in which any were."""


class Outputs(Generic[Output]):
    """The outputs of a member, in their order: `async for output in outputs`. Made by `stepper.join(member)`.

    One coroutine reads at a time. If it is cancelled while it waits for an output, none is lost. It may stop, and go on
    later. After the last output the iteration ends. An exception that a step gave the member, or raised, is raised
    once, after the outputs before it; then the iteration has ended, too.
    """

    __slots__ = ("_again", "_seat")

    def __init__(self, seat: Seat, again: Callable[[Seat], None]) -> None:
        self._seat = seat
        self._again = again

    def __aiter__(self) -> Outputs[Output]:
        return self

    async def __anext__(self) -> Output:
        """The next output, as soon as it is there.

        Raises:
            StopAsyncIteration: after the last.
            Exception: the one that a step gave or raised, in place of an output.
            DeadlineExceeded: if the deadline of the scope in which it joined has passed.
            SchedulerClosed: if the scheduler has closed.
            RuntimeError: if another coroutine waits here, or the member has left.
        """
        seat = self._seat
        if seat.unread:
            await asyncio.sleep(0)
        while not (seat.unread or seat.ended or seat.left):
            if seat.future is not None:
                raise RuntimeError("another coroutine waits for this member's outputs: one reads them at a time")
            await seat.changed()
        if seat.left:
            raise RuntimeError(
                "outputs are read inside `async with stepper.join(member)`, and that block was left: put the block"
                " around the code that reads them; in FastAPI into a dependency that yields the outputs"
            )
        if not seat.unread:
            error, seat.error = seat.error, None
            try:
                raise StopAsyncIteration if error is None else error
            finally:
                del error  # its traceback holds this frame
        output: Output = seat.unread.popleft()
        if seat.paused:
            self._again(seat)
        return output

    def __repr__(self) -> str:
        seat = self._seat
        state = "left" if seat.left else "ended" if seat.ended else "going on" if seat.going else "paused"
        return f"Outputs({len(seat.unread)} to read, {state})"


@dataclass(eq=False, repr=False)
class Beside(Submitter):
    """Opens scopes in the ambient one, but in none of this name: a member that joins in the block of another has a
    reserve of its own, and no part of the other's."""

    _runtime: Runtime
    name: str

    def _core(self) -> CoreScope:
        self._runtime.check()
        here = innermost()
        while here is not None and here.core.name == self.name:
            here = here.outer
        return self._runtime.engine.root if here is None else current_scope(self._runtime, here)


class Stepper(Generic[Member, Output]):
    """Computes steps of members that stay, as continuous batching of language models does.

    While there are members, `step` is called again and again, with a list of the members whose turn it is. It gives
    each of them an output. They join and leave between steps. A member is any object of your program that stands for a
    request: one with its cache and its last token, say.

    *Joining.* `async with stepper.join(member) as outputs:` enters as soon as the member's reserve is there; the next
    step has it. The object is one member while the block is open, by identity. *Leaving* the block takes it out, also
    by cancellation or an exception of the body. If a step has it, leaving waits until that step has ended, even when it
    is cancelled. So when the block is left, no step reads or writes the member's memory, which may be given to the next
    member, as may its slot of a cache. Unread outputs are dropped. *Pausing.* Outputs wait in a queue until they are
    read. A member with `ahead` unread outputs is in no step until one is read. Others go on.

    *A step gives a member* one of these: an output; `asc.SKIP`, for nothing yet; `asc.Last(output)`, for the last one;
    an exception, which ends this member alone, and is raised where its outputs are read. An exception that `step`
    itself raises ends every member of that step, each with a copy of it, since nobody knows how far the step came with
    any of them. So does a list that is not as long as that of the members. Members that were not in that step go on.
    With `isolate`, where `step` can be repeated, only the member that fails ends.

    *Who goes*, if `max_cost` does not admit all: the highest `priority` of the scopes in which members joined, but a
    lower class that waits gets every 17th place or so. In a class tenants have equal shares of cost, or shares by their
    weights. The members of a tenant have equal shares, but of those with a deadline the oldest go first; a member that
    still fits in goes besides. A part of a long prompt is the step of a member without an output yet that costs more
    than one with outputs. It goes where the tokens of others leave room; if they never do, in every 17th step or so. If
    all fit, all go. The cost is asked for before each step.

    *If the scheduler closes*, the step that runs may end, and members read the outputs that they have. Then they get
    SchedulerClosed. *A step that never ends* holds up all of its members, also those that want to leave. `s.explain()`
    names it, with its present line. Steps run in scopes of their own, below the scheduler itself, in the context in
    which the stepper was made. A stepper belongs to the event loop that uses it first; once that loop is closed, to the
    next. It needs no closing: without members nothing of it runs.

    >>> async def main():
    ...     async with asc.Scheduler("cpu"):
    ...         def count_down(members):
    ...             for member in members:
    ...                 member["left"] -= 1
    ...             return [m["left"] if m["left"] else asc.Last("go") for m in members]
    ...         stepper = asc.Stepper(count_down)
    ...         async def rocket(left):
    ...             async with stepper.join({"left": left}) as outputs:
    ...                 return [output async for output in outputs]
    ...         print(await asyncio.gather(rocket(3), rocket(1)))
    >>> asc.run(main)
    [[2, 1, 'go'], ['go']]

    Args:
        step: takes a list of members, and returns as many outputs in the same order, as a list or an array. A coroutine
            function is awaited on the loop, and may use tensors. A plain function runs on a stream's thread. So does a
            PyTorch module, without gradients; it is called with the list. `step` may not wait for this stepper, which
            waits for it.
        max_cost: the most that the members of one step may cost, added up.
        cost: the cost of a member's next step: tokens, say, one or those of the next part of its prompt. Without it
            each costs 1.
        ahead: how many outputs of a member may be unread. With 1 each is taken before the member's next step; a few
            keep it going while its reader writes to a socket.
        reserve: bytes that each member claims before it joins, as `s.scope(reserve=)` does, or a function of the member
            that says how many. The block is in that scope then; the bytes are free when it has been left. A tensor that
            a step makes takes none of them, even if the member keeps it: make a cache in the block, and let a captured
            step write it in place (`s.capture(fn, cache, donate=0)`). A function is asked again before each step. If it
            says more than before, the member waits for these bytes, by `scope.grow()`, and is in no step meanwhile;
            others go on. So a cache may grow page by page. If all wait for each other, the youngest gets Preempted
            where its outputs are read: it should leave and join again.
        wait: most seconds that a member waits for its reserve, as in `s.scope(reserve=, wait=)`. Then joining raises
            QueueFull, so a server can refuse before it begins to answer. Without it, joining waits for as long as it
            takes.
        isolate: whether a step that fails (by an `Exception` of `step`, or by a wrong number of outputs) is computed
            again in halves, and these in halves, until the member that fails is alone. So it alone ends. Off by
            default, since `step` must be repeatable: one that raises has changed none of its members. Let it compute
            first, and only then advance them, in their caches, too.
        scheduler: whose streams and scopes are used; default the ambient one where the stepper is made, else that of
            the member, else the only one open on the loop. If it is a scope, steps run in it and take their bytes from
            its reserve, if it has one: so they have bytes even if members have reserved all others.

    Raises:
        TypeError, ValueError: for arguments that make no sense.
    """

    @naming_arguments
    def __init__(
        self,
        step: Callable[[list[Member]], Sequence[Returned[Output]]]
        | Callable[[list[Member]], Awaitable[Sequence[Returned[Output]]]],
        *,
        max_cost: float = 64,
        cost: Callable[[Member], float] | None = None,
        ahead: int = 4,
        reserve: int | str | Callable[[Member], int | str] | None = None,
        wait: float | None = None,
        isolate: bool = False,
        scheduler: Submitter | None = None,
    ) -> None:
        if not callable(step):
            raise TypeError(f"a stepper takes a function of a list of members, not {type(step).__name__}")
        check_int("ahead", ahead)
        if scheduler is not None:
            find(scheduler)  # raises if it is none
        check_wait(wait, reserve)
        check_plain("reserve=", reserve)
        self._reserve = reserve if reserve is None or callable(reserve) else parse_bytes(reserve, "reserve")
        self._wait = wait
        self._ahead = ahead
        self._scheduler = scheduler
        self._queue = MemberQueue(max_cost, cost)
        self._runners = Runners(step, self._queue, 1, isolate, None, scheduler)
        self._seats = self._queue.seats
        self._numbers = count()
        self._joined = self._begun = self._failed = self._outputs = 0
        self._first_seconds = self._gap_seconds = self._longest_gap = 0.0
        # Told of each output: whether it is its member's first, and the seconds since the one before, or since joining
        self._on_output: Callable[[bool, float], None] | None = None

    @asynccontextmanager
    async def join(self, member: Member) -> AsyncIterator[Outputs[Output]]:
        """Let a member take part in steps while the block is open: `async with stepper.join(member) as outputs:`.

        Entering waits for the member's reserve, if it has one. Leaving waits for the step that has the member, also
        when cancelled.

        Raises:
            ValueError: if this very object is a member already.
            TaskTooLarge: if it costs more than a step may, or reserves more than there is.
            QueueFull: if its reserve does not come within `wait`. Or if its last output would come after the deadline
                of its scope, by what members and steps took lately.
            MemoryDeadlockError, SchedulerStalled, DeadlineExceeded: as in `s.scope(reserve=)`.
            RuntimeError: if the stepper belongs to another event loop.
        """
        loop, here, key = self._runners.bind(), innermost(), id(member)
        if key in self._seats and self._seats[key].loop is loop:
            raise ValueError(f"{member!r} has joined already: leave before it joins again, or let it be another object")
        owner, by = None if here is None else here.core.queue.tenant, asyncio.current_task()
        assert by is not None
        seat = Seat(
            member, 1.0, 0.0, deadline(here), NOBODY, None, owner, next(self._numbers), self._settle, loop, here,
            weakref.ref(by),
        )  # fmt: skip
        self._queue.check_member(seat, seat.deadline, monotonic())
        self._seats[key] = seat
        del by  # the task holds this frame
        try:
            async with self._room(seat) as seat.room:
                seat.since = now = monotonic()
                self._go(seat, now)
                seat.joined, self._joined = True, self._joined + 1
                try:
                    yield Outputs(seat, self._again)
                except BaseException:
                    self._queue.learn(seat, whole=False)
                    raise
                else:
                    self._queue.learn(seat, whole=True)
                finally:
                    await self._leave(seat)
        finally:
            if self._seats.get(key) is seat:
                del self._seats[key]

    def statistics(self) -> StepperStatistics:
        """A snapshot."""
        runners, seats = self._runners, [seat for seat in self._seats.values() if seat.joined]
        return StepperStatistics(
            admitting=len(self._seats) - len(seats) + len(runners.growing),
            members=len(seats),
            stepping=runners.computing,
            waiting=len(self._queue),
            paused=sum(seat.paused for seat in seats),
            joined=self._joined,
            begun=self._begun,
            failed=self._failed,
            steps=runners.batches,
            stepped=runners.answered,
            outputs=self._outputs,
            retries=runners.retries,
            largest_step=runners.largest,
            first_seconds=self._first_seconds,
            gap_seconds=self._gap_seconds,
            longest_gap=self._longest_gap,
            wait_seconds=self._queue.waited,
            stepped_per_second=runners.rate.per_second,
        )

    def __repr__(self) -> str:
        found = self.statistics()
        return (
            f"Stepper({self._runners.name}, {found.members} members: {found.stepping} in a step, {found.paused} paused)"
        )

    def _room(self, seat: Seat) -> AbstractAsyncContextManager[Scope | None]:
        if self._reserve is None:
            return nullcontext()
        seat.reserved = self._reserve if isinstance(self._reserve, int) else self._asked(seat)
        around = Beside(find(self._scheduler), f"member of {self._runners.name}")
        wait = self._wait if seat.reserved else None
        return around.scope(name=around.name, reserve=seat.reserved or None, wait=wait)

    def _asked(self, seat: Seat) -> int:
        """The bytes that a member needs now, if it can be asked."""
        reserve = self._reserve(seat.item) if callable(self._reserve) else None
        return 0 if reserve is None else parse_bytes(reserve, "reserve")

    def _go(self, seat: Seat, now: float) -> None:
        """Let a member wait for a step; first for bytes, if it needs more. If its cost raises, nothing has changed."""
        cost = self._queue.cost_of(seat.item)
        seat.deadline = deadline(seat.joined_in, seat.joined_by())  # a scope around it may have been left since
        if callable(self._reserve) and seat.room is not None and (more := self._asked(seat) - seat.reserved) > 0:
            if not seat.reserved:
                raise ValueError(f"a member reserved nothing as it joined, and {more:,} bytes now: begin with a few")
            seat.growing = self._runners.growing[seat] = task = seat.loop.create_task(seat.room.grow(more))
            task.add_done_callback(partial(self._grown, seat, more))
            seat.going = True
            return
        self._queue.join(seat, cost, now)  # before `wake`: an eager runner looks at the queue at once
        try:
            self._runners.wake(seat.loop)
        except BaseException:
            seat.going = not self._queue.drop(seat)
            raise

    def _grown(self, seat: Seat, more: int, task: asyncio.Task[None]) -> None:
        """A member has more bytes, and may wait for a step. Or it will not get them."""
        seat.growing = None
        self._runners.growing.pop(seat, None)
        told = TaskCancelled("the wait for more bytes was cancelled, as when the event loop ends")
        error = told if task.cancelled() else task.exception()
        seat.reserved += more
        self._settle(seat, SKIP if error is None else error)

    def _again(self, seat: Seat) -> None:
        """Let a member that was paused wait for a step."""
        seat.since = now = monotonic()
        self._go_or_end(seat, now)

    def _go_or_end(self, seat: Seat, now: float) -> None:
        try:
            self._go(seat, now)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of the user's `cost` or `reserve`: the other members have no part in it
            self._end(seat, error)

    def _end(self, seat: Seat, error: BaseException) -> None:
        seat.ended, seat.error = True, own(error)
        self._failed += 1

    def _settle(self, seat: Seat, result: Any) -> None:
        """A step that had a member has ended, or will never run. Take its output."""
        seat.going = False
        if not seat.left:
            now = monotonic()
            if type(result) is Last:
                seat.ended, result = True, result.value
            elif result is Last:
                result = TypeError("the step returned the class Last: use `asc.Last(output)`")
            if is_error(result):
                self._end(seat, result)
            elif result is not SKIP:
                seat.unread.append(result)
                self._time(seat, now)
            if not seat.ended and len(seat.unread) < self._ahead:
                self._go_or_end(seat, now)
            elif seat.paused:
                seat.stands = 0.0  # it goes on as one that joins
        if seat.unread or seat.ended or seat.left:
            seat.wake()

    def _time(self, seat: Seat, now: float) -> None:
        """Count an output and the seconds that it took."""
        seconds, seat.since = now - seat.since, now
        self._outputs += 1
        if self._on_output is not None:
            self._on_output(not seat.begun, seconds)
        if seat.begun:
            self._gap_seconds += seconds
            if seconds > self._longest_gap:
                self._longest_gap = seconds
        else:
            seat.begun = True
            self._begun += 1
            self._first_seconds += seconds

    async def _leave(self, seat: Seat) -> None:
        """Take a member out, and wait until no step has it, even when cancelled."""
        seat.left = True
        if self._queue.drop(seat):
            seat.going = False
        if seat.growing is not None:
            seat.growing.cancel()
        seat.wake()  # a reader in another coroutine
        await outlast(lambda: seat.going, seat.changed)
