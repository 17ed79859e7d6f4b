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
    """A quick operation that ran on the loop's thread.

    Attributes:
        meta: of the result, with `shape` and `dtype`.
        nbytes: what the result is charged.
        site: the user's line.
        began, ended: in seconds of `time.perf_counter`.
        seq: its number, among those of the tasks.
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
    """Callbacks for what a scheduler does. Override those you want; those you do not override cost nothing.

    Give it to `Scheduler(instruments=[...])`, or to `s.add_instrument` at any time; `s.remove_instrument` ends it, as
    closing the scheduler does. Methods run in the middle of the scheduler's work: on the loop's thread, but for
    `body_began` and `body_ended`, which run on that of the stream, and on several at a time where there are several. So
    they are quick, never wait, and neither submit nor cancel anything. One that raises is logged and removed, and the
    scheduler goes on.

    A task has `name`, `seq` (its number in the order of submission), `scope`, `site` (the user's line, which
    `asc.observe.line_of` writes out), `cost` (bytes), `value.meta` (its `shape` and `dtype`), `inputs` (values, whose
    `task` is the producer while that is unfinished, and whose `seq` is its number, then and later), `lane` (with
    `device` and `stream`, once it is launched), `state` and `failure`. Look at `inputs` and `value` in `task_submitted`
    alone, and keep neither: who holds a value keeps its buffer. To keep a task is harmless.

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
        """It was given to a scheduler, which is open or about to be."""

    def opened(self) -> None:
        """Its scheduler is open, on the running loop. Called at once if it was open when the instrument was added."""

    def detached(self) -> None:
        """It was removed, or the scheduler has closed. Nothing follows."""

    # -- a task -----------------------------------------------------------------------------------------------------

    def task_submitted(self, task: Task) -> None:
        """It joined the backlog. A claim of bytes, which a scope's reserve is, has no `lanes` and takes no slot."""

    def task_launched(self, task: Task) -> None:
        """It was given its slot and its bytes, and is about to be put on the stream `task.lane`."""

    def body_began(self, task: Task) -> None:
        """On the stream's thread: its body is about to run; on CUDA, to be enqueued.

        With `inline_launch` it may be called twice: again, if the task could not be enqueued from the loop's thread.
        """

    def body_ended(self, task: Task, began: float, ended: float) -> None:
        """Its body ran, in seconds of `time.perf_counter`; on CUDA as the device did. On a thread of the stream."""

    def task_ended(self, task: Task) -> None:
        """It is done, failed or cancelled: `task.state`. What was charged and not kept, `task.refund`, is back."""

    def op_ran_inline(self, op: InlineOp) -> None:
        """A quick operation ran on the loop's thread, without becoming a task."""

    # -- bytes and scopes -------------------------------------------------------------------------------------------

    def bytes_released(self, account: Account, nbytes: int, seq: int) -> None:
        """A result was dropped, and its bytes are free: `account.used` are left.

        Args:
            seq: of the task, or the operation, whose result it was; -1 for one from before an instrument was there.
        """

    def scope_opened(self, scope: Scope) -> None:
        """A scope was opened, or an iteration of a window began, which shares the queue of `scope.parent`."""

    def scope_left(self, scope: Scope) -> None:
        """The block of a window's iteration was left: its tasks may go on."""

    def scope_closed(self, scope: Scope) -> None:
        """Nothing of it is unfinished any more."""

    def batch_formed(self, scope: Scope, items: int) -> None:
        """A batcher computes so many items next, or a stepper so many members, in a scope of their own."""

    # -- who waits --------------------------------------------------------------------------------------------------

    def wait_began(self, tasks: Sequence[Task]) -> None:
        """A coroutine begins to wait until tasks are admitted, settled or ended. They may be already."""

    def wait_ended(self, tasks: Sequence[Task]) -> None:
        """The wait is over: they are, or the coroutine was cancelled."""


EVENTS = tuple(name for name in vars(Instrument) if not name.startswith("_"))
