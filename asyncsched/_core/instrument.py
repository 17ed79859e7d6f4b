"""The events of a scheduler, as callbacks: the interface of traces, live views and guards.

Without an instrument each event costs one comparison. The engine and the streams call one observer, which forwards to
all instruments (`runtime.instruments`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .callsite import CallSite
from .model import Account, Scope, Task


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


class Instrument:
    """Callbacks for the events of a scheduler. Override those you want; the others cost nothing.

    Give it to `Scheduler(instruments=[...])`, or to `s.add_instrument` at any time. `s.remove_instrument` ends it, and
    so does closing the scheduler. Callbacks run in the middle of the scheduler's work, on the event loop's thread. Only
    `body_began` and `body_ended` run on the stream's thread, and on several at a time if there are several streams. So
    a callback must be quick, must never wait, and must neither submit nor cancel. A callback that raises is logged, its
    instrument is removed, and the scheduler goes on.

    A task has these attributes:

    - `name`; `seq`, its number in the order of submission; `scope`; `state`; `failure`;
    - `site`, the user's line, which `asc.observe.line_of` formats;
    - `cost`, in bytes;
    - `lane`, with `device` and `stream`, once the task is launched;
    - `value.meta`, with the result's `shape` and `dtype`;
    - `inputs`, the values it reads. An input's `task` is its producer while that is unfinished; its `seq` is the
      producer's number at any time.

    Read `inputs` and `value` only in `task_submitted`, and keep neither: holding a value keeps its buffer. Keeping a
    task is harmless.

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
        """The body is about to run, or on CUDA to be enqueued. Called on the stream's thread.

        With `inline_launch` it may be called twice: again if the task could not be enqueued from the loop's thread.
        """

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
            seq: the number of the task or operation that made it; -1 if no instrument was attached then.
        """

    def scope_opened(self, scope: Scope) -> None:
        """A scope was opened, or an iteration of a window began, which shares the queue of `scope.parent`."""

    def scope_left(self, scope: Scope) -> None:
        """The block of a window's iteration was left. Its tasks may go on."""

    def scope_closed(self, scope: Scope) -> None:
        """Nothing of the scope is unfinished any more."""

    def batch_formed(self, scope: Scope, items: int) -> None:
        """A batcher computes `items` items next, or a stepper `items` members, in a scope of their own."""

    # -- waiting ----------------------------------------------------------------------------------------------------

    def wait_began(self, tasks: Sequence[Task]) -> None:
        """A coroutine begins to wait until tasks are admitted, settled or ended. They may be already."""

    def wait_ended(self, tasks: Sequence[Task]) -> None:
        """The wait is over: the tasks are so, or the coroutine was cancelled."""


EVENTS = tuple(name for name in vars(Instrument) if not name.startswith("_"))
