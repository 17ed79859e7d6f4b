"""The outside of the engine: `Host`, which it asks; and `Instrument`, which is told of events by callbacks.

Traces, live views and guards are instruments. Without an instrument each event costs one comparison. The engine and the
streams call one observer, which forwards to all instruments (`runtime.instruments`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from .callsite import CallSite
from .model import Account, CallPlan, Lane, Scope, Task


class InlineOp(NamedTuple):
    """A quick operation that ran on the event loop's thread.

    Attributes:
        meta: of the result, with `shape` and `dtype`.
        nbytes: bytes that the result is charged.
        site: the user's line.
        began, ended: times in seconds of `time.perf_counter`.
        seq: its number, in one sequence with the tasks.
    """

    name: str
    scope: Scope
    meta: Any
    nbytes: int
    site: CallSite | None
    began: float
    ended: float
    seq: int


def kind_of(task: Task) -> str:
    """What a task is: "call" of a function, "operation", "copy" to the device, "claim" of bytes, or "step", which
    decides whether an optimiser's step moves the parameters. To be asked in `task_submitted`.

    >>> class Kinds(asc.observe.Instrument):
    ...     def task_submitted(self, task):
    ...         print(asc.observe.kind_of(task), asc.observe.tenant_of(task.scope))
    >>> async def main():
    ...     async with asc.Scheduler("cpu", instruments=[Kinds()]) as s, s.scope(tenant="alice"):
    ...         await s.call(max, 1, 2)
    >>> asc.run(main)
    call alice
    """
    if not task.lanes:
        return "claim"
    if not isinstance(task.plan, CallPlan):
        return "operation"
    if task.context is not None:
        return "call"
    return "copy" if task.move is None else "step"


def tenant_of(scope: Scope) -> Hashable | None:
    """The tenant whose work a scope is: its own, or that of a scope around it; None if nobody named one."""
    tenant: Hashable | None = scope.queue.tenant.name
    return tenant


def priority_of(scope: Scope) -> int:
    """The priority of a scope's work: its own, or that of a scope around it; 0 if nobody set one."""
    level: int = scope.queue.tenant.priority.level
    return level


class Instrument:
    """Callbacks for the events of a scheduler. Override those you want; the others cost next to nothing.

    Give it to `Scheduler(instruments=[...])`, or to `s.add_instrument` at any time. `s.remove_instrument` ends it, and
    so does closing the scheduler. Callbacks run in the middle of the scheduler's work, on the event loop's thread. Only
    `body_began` and `body_ended` run on the stream's thread, and on several at a time if there are several streams. So
    a callback must be quick, must never wait, and must neither submit nor cancel. A callback that raises is logged, its
    instrument is removed, and the scheduler goes on.

    A task has these attributes:

    - `name`; `seq`, its number in the order of submission; `scope`; `state`;
    - `failure`, of a task that failed or was cancelled: `failure.error` is a copy of the exception, `failure.told()`
      its text, `failure.kind` the name of its class, and `failure.upstream` is None where the task itself raised. To
      read these is not to see it: barriers and scopes still report it;
    - `site`, the user's line, which `asc.observe.line_of` formats;
    - `cost`, in bytes, which are charged from `task_launched` on. If it had a `lane`, `refund` of them are back at its
      end. The others are those of its result, and come back with `bytes_released` for its `seq`;
    - `lanes`, on which it may run, and `lane`, the one it was given, once it is launched: a stream, with `device`,
      `stream` (which has a `name`), `load`, the tasks on it, and `copies`, whether it carries only copies in;
    - `expedited`, whether it was queued before the rest of its scope;
    - `value.meta`, with the result's `shape` and `dtype`;
    - `context`, of a call, in which the function runs. It is this call's own. `task.context.run(var.set, value)` in
      `task_submitted` sets a context variable around the body, on the stream's thread;
    - `inputs`, the values it reads. An input's `task` is its producer while that is unfinished; its `seq` is the
      producer's number at any time.

    Read `inputs`, `value` and `context` only in `task_submitted`, and keep none: holding a value keeps its buffer.
    Keeping a task is harmless. `asc.observe.kind_of(task)` says what a task is, `asc.observe.tenant_of(scope)` whose.

    A scope has a `name`; `parent`, None for the scheduler's own; `children`; `tasks`, its own unfinished ones;
    `reserve` in bytes, of which `account.used` are used; `queue`, which a window's iteration shares with its parent;
    `over()`, whether it has ended with all below it. `asc.observe.priority_of(scope)` is its priority.

    What no event tells, `asc.observe.Probe(scheduler)` reads at any moment: counts, streams, scopes, who waits. The
    package's own instruments use this interface alone.

    Events of submission, of scopes and of batches come in the code that they tell of, and in its context: there
    `contextvars` are those of the user's coroutine.

    >>> class Names(asc.observe.Instrument):
    ...     def task_submitted(self, task):
    ...         print("submitted", task.name)
    ...     def task_ended(self, task):
    ...         print("ended", task.name)
    >>> async def main():
    ...     async with asc.Scheduler("cpu", instruments=[Names()]) as s:
    ...         await s.call(max, 1, 2)
    >>> asc.run(main)
    submitted max
    ended max
    """

    def attached(self, scheduler: Any) -> None:
        """The instrument was given to a scheduler, which is open or about to open."""

    def opened(self) -> None:
        """The scheduler is open, on the running loop. Called at once if it is open when the instrument is added."""

    def detached(self) -> None:
        """The instrument was removed, or the scheduler has closed. No event follows."""

    # -- a task -----------------------------------------------------------------------------------------------------

    def task_submitted(self, task: Task) -> None:
        """The task joined the backlog. A claim of bytes (a scope's reserve) has no `lanes` and takes no slot."""

    def task_launched(self, task: Task) -> None:
        """The task has its slot and its bytes, and is about to be put on the stream `task.lane`."""

    def body_began(self, task: Task) -> None:
        """The body is about to run, or on CUDA to be enqueued. Called on the stream's thread."""

    def body_ended(self, task: Task, began: float, ended: float) -> None:
        """The body ran, between these times of `time.perf_counter`; on CUDA, of the device. On a stream's thread."""

    def task_ended(self, task: Task) -> None:
        """The task is done, failed or cancelled: `task.state`. Its `task.refund`, the charge not kept, is back."""

    def op_ran_inline(self, op: InlineOp) -> None:
        """A quick operation ran on the loop's thread, without becoming a task."""

    # -- bytes and scopes -------------------------------------------------------------------------------------------

    def bytes_released(self, account: Account, nbytes: int, seq: int) -> None:
        """A result was dropped, and its bytes are free: `account.used` bytes are left.

        Args:
            seq: the number of the task or operation that made it; -1 if no instrument was told of that.
        """

    def scope_opened(self, scope: Scope) -> None:
        """A scope was opened, or an iteration of a window began, which shares the queue of `scope.parent`."""

    def scope_left(self, scope: Scope) -> None:
        """The block of a window's iteration was left. Its tasks may go on."""

    def scope_closed(self, scope: Scope, error: BaseException | None) -> None:
        """Nothing of the scope is unfinished any more.

        Args:
            error: the exception or cancellation that left its block. None if it was left normally, also where tasks in
                it failed, as `task_ended` has told. Keep no exception: it holds frames.
        """

    def batch_formed(self, scope: Scope, items: int, callers: Sequence[Any]) -> None:
        """A batcher computes `items` items next, or a stepper `items` members, in a scope of their own.

        Args:
            callers: for each of them the `contextvars.Context` in which the batcher was called, or the stepper joined:
                `var in context`, `context[var]`.
        """

    # -- waiting ----------------------------------------------------------------------------------------------------

    def wait_began(self, tasks: Sequence[Task]) -> None:
        """A coroutine begins to wait until tasks are admitted, settled or ended. They may be already."""

    def wait_ended(self, tasks: Sequence[Task]) -> None:
        """The wait is over: the tasks are so, or the coroutine was cancelled."""


EVENTS = tuple(name for name in vars(Instrument) if not name.startswith("_"))


class Host:
    """What the engine needs from outside: the runtime. These defaults are enough for an engine by itself.

    Attributes:
        clock: returns seconds.
    """

    clock: Callable[[], float] = staticmethod(lambda: 0.0)

    def loop_lane(self, task: Task) -> Lane | None:
        """The lane of the event loop's thread, if a quick task may run there now; else None."""
        return None

    def quiet_in_use(self) -> bool:
        """Whether a quick task runs on the event loop's thread now."""
        return False

    def spend(self, seconds: float) -> None:
        """Take note that a quick task held the event loop's thread for so long, beyond the usual cost of a task."""

    def quietly(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function that runs quick tasks."""
        return function(*args)

    def on_stuck(self, tasks: Sequence[Task]) -> None:
        """Take note of the stuck tasks; empty if there are none.

        Called after each dispatch that leaves pending tasks and a free slot, and once when no task is stuck any more.
        """

    def on_overrun(self, task: Task, site: CallSite) -> None:
        """Take note that a task, of this line, made more than it was charged, and tracked bytes are above the limit."""

    def on_cancel(self, task: Task) -> None:
        """Take note that a task is cancelled after its launch."""

    def on_interrupted(self, error: BaseException) -> None:
        """Abandon everything: an exception left a change of state in the middle. See `engine`."""
