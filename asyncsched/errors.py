"""All exceptions of asyncsched. Each message names the cure."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


class AsyncSchedError(Exception):
    """Base of all errors that asyncsched itself raises.

    Each has a note with the command that prints its cause and its cure. Tracebacks show it below the message.

    >>> asc.QueueFull("no room").__notes__
    ['cause and cure: `python -m asyncsched explain QueueFull`']
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"cause and cure: `python -m asyncsched explain {type(self).__name__}`")


class QueueFull(AsyncSchedError):
    """The backlog or the limits leave no room, and the call does not wait, or has waited as long as it may.

    Cure: use the form that waits (`await s.put(a)`, `await s.submit(fn)`), `await s.barrier()` now and then, or bound
    the loop: `w = s.window(2)` before it, `async with w:` in it. For `s.scope(reserve=, wait=)`: come back after
    `retry_after`.

    >>> async def main():
    ...     async with asc.Scheduler("cpu", max_bytes=1000) as s:
    ...         x = await s.put(np.ones(100))
    ...         try:
    ...             s.put_nowait(np.ones(100))
    ...         except asc.QueueFull as error:
    ...             print(error)
    >>> asc.run(main)
    no room for this array now: `await s.put(array)` waits for it

    Attributes:
        retry_after: seconds until there should be room, by the measured rate; None if unknown.
    """

    retry_after: float | None = None


class LimitTooSmall(AsyncSchedError):
    """A limit in bytes does not admit a task, or all waiting tasks.

    Attributes:
        needed: the limit that would have been enough for the task, or for all waiting tasks; None if unknown.
        limit: the present limit.
    """

    def __init__(self, message: str, needed: int | None = None, limit: int | None = None) -> None:
        super().__init__(message)
        self.needed = needed
        self.limit = limit

    @property
    def suggested_limit(self) -> int | None:
        """The limit to try next: `needed`, but at least twice the present limit, since more tasks may follow.

        So a few tries find a limit that works, and it is less than twice the smallest one.
        """
        if self.needed is None or self.limit is None:
            return self.needed
        return max(self.needed, 2 * self.limit)


class TaskTooLarge(LimitTooSmall, ValueError):
    """A task that could never run: alone, with its distinct input buffers, it needs more bytes than the limit.

    Cure: raise the limit to `suggested_limit`, or split the task.

    >>> async def main():
    ...     async with asc.Scheduler("cpu", max_bytes=1000) as s:
    ...         try:
    ...             await s.put(np.ones(200))
    ...         except asc.TaskTooLarge as error:
    ...             print(error.needed, error.limit, error.suggested_limit)
    >>> asc.run(main)
    1600 1000 2000
    """


class MemoryDeadlockError(LimitTooSmall):
    """Nothing can go on: all bytes are held by tasks and coroutines that themselves wait for bytes.

    It is raised at once where the event loop has nothing left to do, so that no coroutine can go on. Otherwise it is
    raised after 10 seconds without progress, if everybody who holds the bytes is found, and waits here.

    The oldest awaited task gets it. When its awaiter drops the bytes it holds, the others may go on. If that frees
    none, more get it, each time twice as many.

    Cure: drop results sooner (`del`, smaller scopes), take fewer at a time, reserve with `s.scope(reserve=...)`,
    or raise the limit to `suggested_limit`.

    >>> async def main():
    ...     async with asc.Scheduler("cpu", max_bytes=1500) as s:
    ...         x = await s.put(np.ones(100))
    ...         try:
    ...             y = await s.put(np.ones(100))  # waits for the bytes of x, which only this coroutine could drop
    ...         except asc.MemoryDeadlockError as error:
    ...             print(error.needed, error.limit, error.suggested_limit)
    >>> asc.run(main)
    1600 1500 3000
    """


class Preempted(MemoryDeadlockError):
    """Scopes wait for each other to grow, and this one must give its bytes back, so that the others go on.

    `await scope.grow()` raises it in one of these scopes; its docstring says in which. Cure: leave the scope, drop the
    tensors made in it (they count as long as a variable holds them), and start over in a new scope that reserves
    `reserve`. It waits until there is room for all those bytes.

    >>> async def write(s, name, pages):
    ...     reserve = 100
    ...     while True:
    ...         try:
    ...             async with s.scope(name=name, reserve=reserve) as cache:
    ...                 for _ in range(pages - reserve // 100):
    ...                     await cache.grow(100)
    ...             return f"{name} has written {pages} pages"
    ...         except asc.Preempted as told:
    ...             reserve = told.reserve
    ...             print(f"{name} starts over, with {reserve} bytes")
    >>> async def main():
    ...     async with asc.Scheduler("cpu", max_bytes=400) as s:
    ...         print(await asyncio.gather(write(s, "a", 3), write(s, "b", 3)))
    >>> asc.run(main)
    b starts over, with 300 bytes
    ['a has written 3 pages', 'b has written 3 pages']

    Attributes:
        reserve: the bytes that the scope had, plus those that it asked for.
    """

    def __init__(
        self, message: str, needed: int | None = None, limit: int | None = None, reserve: int | None = None
    ) -> None:
        super().__init__(message, needed, limit)
        self.reserve = reserve


class SchedulerStalled(AsyncSchedError):
    """A task waited for bytes longer than `stall_timeout`, with nothing in flight that could free them.

    It is no known deadlock: something may still happen in the event loop, and somebody who holds the bytes does not
    wait for the scheduler, or is not found.

    >>> async def main():
    ...     async with asc.Scheduler("cpu", max_bytes=1000, stall_timeout=0.01) as s:
    ...         kept = [await s.put(np.ones(100))]
    ...         asyncio.get_running_loop().call_later(60, kept.clear)
    ...         try:
    ...             await s.put(np.ones(100))
    ...         except asc.SchedulerStalled as error:
    ...             print(type(error).__name__)
    >>> import asyncio
    >>> asc.run(main)
    SchedulerStalled
    """


class TaskCancelled(AsyncSchedError):
    """The awaited task was cancelled. The message says by whom.

    It is deliberately no `asyncio.CancelledError`, which would silently end the awaiting task.

    >>> async def main():
    ...     async with asc.Scheduler("cpu", streams=1, max_ops=1) as s:
    ...         first, second = s.submit_nowait(sum, range(1_000_000)), s.submit_nowait(max, 1, 2)
    ...         second.cancel()
    ...         try:
    ...             await second
    ...         except asc.TaskCancelled as error:
    ...             print(error)
    ...         await first
    >>> asc.run(main)
    max was cancelled by cancel()
    """


class DeadlineExceeded(AsyncSchedError, TimeoutError):
    """A deadline passed. The unfinished tasks are cancelled.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         try:
    ...             async with s.scope(name="request 42", deadline=0.01):
    ...                 await asyncio.Event().wait()
    ...         except asc.DeadlineExceeded as error:
    ...             print(error)
    >>> asc.run(main)
    scope 'request 42' passed its deadline of 0.01 s, and its unfinished tasks were cancelled: ...
    """


class ImplicitBarrierError(AsyncSchedError, TypeError):
    """A tensor was read without `await`, which would have blocked the event loop.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         loss = (await s.put(np.ones(3))).sum()
    ...         try:
    ...             return float(loss)
    ...         except asc.ImplicitBarrierError as error:
    ...             print(error)
    ...         return await loss.item()
    >>> asc.run(main)
    float(t) is an implicit barrier, which would block the event loop: use `await t.item()`
    3.0
    """


class CaptureError(AsyncSchedError):
    """A step cannot be captured. The message names the operation, and its line if there is one.

    Cure: leave that operation out of the captured function, and issue it before or after the replay.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.arange(3))
    ...         try:
    ...             await s.capture(lambda x: x[x > 1], x)
    ...         except asc.CaptureError as error:
    ...             print(error)
    >>> asc.run(main)
    getitem_advanced: the shape of its result depends on data, so it cannot be captured
    """


class CheckpointDamaged(AsyncSchedError, ValueError):
    """The file given to `load` is not as `save` wrote it, or is no checkpoint. The message says what is wrong.

    Cure: load an earlier checkpoint, or copy this one again from an intact copy. `load` returns nothing from such a
    file.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> async def main(path):
    ...     async with asc.Scheduler("cpu") as s:
    ...         await asc.save(path, {"weight": await s.put(np.ones(3))})
    ...         path.write_bytes(path.read_bytes()[:-1] + b"!")
    ...         try:
    ...             await asc.load(path)
    ...         except asc.CheckpointDamaged as error:
    ...             print("'weight' is not what was written" in str(error))
    >>> with TemporaryDirectory() as folder:
    ...     asyncio.run(main(Path(folder) / "state.safetensors"))
    True
    """


class SchedulerClosed(AsyncSchedError, RuntimeError):
    """The scheduler or scope takes no more work: it or its event loop was closed, or the process was forked.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.ones(3))
    ...     try:
    ...         x + 1
    ...     except asc.SchedulerClosed as error:
    ...         print(error)
    >>> asc.run(main)
    the scheduler is closed: open another by ...
    """


# By name, since the core does not import asyncio. asyncio turns the second into the first when futures are chained.
_CANCELLATIONS = (("asyncio.exceptions", "CancelledError"), ("concurrent.futures._base", "CancelledError"))


def add_note(error: BaseException, text: str) -> None:
    """Do the same as `error.add_note`, also for an exception that refuses changes, such as a frozen dataclass."""
    with suppress(Exception):  # from a method that its class overrides: the note is lost
        object.__setattr__(error, "__notes__", [*notes_of(error), text])


def notes_of(error: BaseException) -> list[Any]:
    """A copy of an exception's notes; empty if they cannot be read."""
    with suppress(Exception):  # from a method that its class overrides
        notes = getattr(error, "__notes__", None)
        return [*notes] if isinstance(notes, list) else []
    return []


def passable(error: BaseException, what: str) -> BaseException:
    """`error`, or a RuntimeError in its place if `error` means something else to whoever drives a coroutine.

    Such exceptions are messages to a coroutine, a generator or a task: it ended, close, be cancelled. A user's
    exception that only shares the name with one of them is returned as it is.

    Args:
        error: an exception that a user's function raised or returned.
        what: the beginning of the message, as in "the function raised".

    >>> passable(StopIteration(), "the function raised")
    RuntimeError('the function raised StopIteration, which cannot pass through `await`')
    """
    cancelled = any((kind.__module__, kind.__name__) in _CANCELLATIONS for kind in type(error).__mro__)
    if not cancelled and not issubclass(type(error), StopIteration | StopAsyncIteration | GeneratorExit):
        return error
    wrapper = RuntimeError(f"{what} {type(error).__name__}, which cannot pass through `await`")
    wrapper.__cause__ = error
    return wrapper
