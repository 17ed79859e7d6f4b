"""Every exception of asyncsched. Each message names the cure."""

from __future__ import annotations


class AsyncSchedError(Exception):
    """Base of all errors that asyncsched itself raises."""


class QueueFull(AsyncSchedError):
    """The backlog or the limits leave no room, and the call was one that never waits.

    Cure: use the form that waits (`await s.put(a)`, `await s.submit(fn)`), `await s.barrier()` now and then,
    or bound the run-ahead with `s.window(2)`.

    Attributes:
        retry_after: seconds after which there should be room, by the measured rate; None if unknown.
    """

    retry_after: float | None = None


class TaskTooLarge(AsyncSchedError, ValueError):
    """A task that could never run: alone, with its inputs, it needs more bytes than the limit.

    Attributes:
        needed: bytes of its output, its workspace and its distinct input buffers together.
        limit: the bytes that its scope or scheduler allows.
    """

    def __init__(self, message: str, needed: int, limit: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.limit = limit


class MemoryDeadlockError(AsyncSchedError):
    """Nothing can go on: every byte is held by something that itself waits for bytes.

    Cure: drop results sooner (`del`, smaller scopes), take fewer at a time, reserve with `s.scope(reserve=...)`,
    or raise the limit to `suggested_limit`, which would have admitted this task.

    Attributes:
        suggested_limit: bytes; None if unknown.
    """

    def __init__(self, message: str, suggested_limit: int | None = None) -> None:
        super().__init__(message)
        self.suggested_limit = suggested_limit


class SchedulerStalled(AsyncSchedError):
    """A task waited for bytes longer than `stall_timeout`, with nothing in flight that could free them."""


class TaskCancelled(AsyncSchedError):
    """The awaited task was cancelled. The message says by whom.

    Deliberately no `asyncio.CancelledError`, which would end the awaiting task in silence.
    """


class DeadlineExceeded(AsyncSchedError, TimeoutError):
    """What was to be done by a deadline was not. What was unfinished is cancelled."""


class ImplicitBarrierError(AsyncSchedError, TypeError):
    """Something tried to read a tensor without `await`, which would have blocked the event loop."""


class CaptureError(AsyncSchedError):
    """A step cannot be captured. The message names the operation, and the line where there is one.

    Cure: leave that operation out of the captured function, and issue it before or after the replay.
    """


class SchedulerClosed(AsyncSchedError, RuntimeError):
    """The scheduler or scope takes no more work: it was closed, its event loop was, or the process forked."""
