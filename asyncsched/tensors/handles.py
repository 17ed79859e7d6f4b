"""Handles: the objects that users hold on values, which are there or to come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, cast

from .._core.callsite import CallSite, line_of
from .._core.model import DONE, Lease, Value
from .._instead import TASK, no_attribute
from .._interrupts import Lock
from ..devices.contract import Job
from ..devices.memory import deliver, reveal
from ..runtime.life import Life, running_loop
from ..runtime.runtime import INLINE_COPY, Runtime
from ..runtime.threads import in_thread, under_way
from ..runtime.waiting import wait

FORKED: Final = Life.FORKED  # read at every await
_moving = Lock()  # held where a handle goes on to another value, and where any thread takes a lease of its value
T = TypeVar("T")


class Handle(Lease, Generic[T]):
    """A result to come. `await` it: that is the only barrier.

    Dropping every handle does not cancel the task; `cancel()` does. The task runs already, so `asyncio.create_task`,
    which starts a coroutine, refuses the handle; `asyncio.ensure_future(t)` makes an asyncio task that waits for it.
    """

    __slots__ = ("__weakref__",)

    def _move(self, other: Handle[T], before: Value | None = None) -> bool:
        """Go on to the value of another handle, which the caller is about to drop: its entry is taken over. If `before`
        is given, only from that value. Returns whether it did.

        No finaliser runs between the look and the move. What was there is dropped last, since that may run finalisers.
        """
        _dropped = self._value, self._entry
        with _moving:
            if before is not None and self._value is not before:
                return False
            self._value, self._entry = other._value, other._entry
        return True

    def _lease(self) -> Lease:
        """A lease of the present value, on any thread. On the loop's thread no finaliser comes before it is read."""
        value, _kept = self._value, self._entry
        if runtime_of(value).thread != threading.get_ident():
            with _moving:
                value, _kept = self._value, self._entry
        return Lease(value)

    def _give_up(self, gone: Donated) -> Lease:
        """Give up the value, so that a lease of it is all that is left of this handle. Every use of that raises."""
        lease = self._lease()
        with _moving:
            self._value, self._entry = gone, None  # type: ignore[assignment]
        return lease

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the result and return it. Always passes through the event loop.

        Raises the task's exception, or TaskCancelled. Cancelling the waiter leaves the task alone.
        """
        kept, value = self._entry, self._value  # `t[i] = v` may move the handle to another value meanwhile
        task = value.task
        try:
            # `reach`, written out: one frame less in the most frequent wait
            if task is None or task.state >= DONE or task.failure is not None:
                if value.account.runtime.life is FORKED:
                    value.account.runtime.refuse()
                yield
            else:
                yield from wait(value.account.runtime, (task,))
            if task is not None and task.state == DONE:
                value.task = None
            if value.device.remote and value.failure is None:
                return cast(T, (yield from copy_out(value).__await__()))
            result: T = deliver(value)
            return result
        finally:
            del self, kept, value, task  # no cycle: an exception holds this frame, and these lead to the exception

    def done(self) -> bool:
        """Whether there is a result, an error or a cancellation."""
        return _is_done(self._value)

    def result(self) -> T:
        """The result, if it is there already.

        Raises:
            InvalidStateError: (of asyncio) if the result is not there, or is in another process: `await` the handle.
        """
        kept = self._lease()
        value = _done(kept)
        if value.device.remote and value.failure is None:
            raise asyncio.InvalidStateError("the result is in another process: use `await`, which brings it here")
        result: T = deliver(value)
        return result

    def exception(self) -> BaseException | None:
        """The exception of a task that is done, or None. Counts as seeing the failure."""
        failure = _done(self).failure
        return None if failure is None else failure.exception

    def cancel(self) -> bool:
        """Cancel the task and its dependents. Returns False if it had ended already.

        A task that already runs keeps its slot and bytes until it physically ends.
        """
        value = self._value  # read once, as in `_done`
        task = value.task
        if value.settled or task is None:
            return False
        runtime = runtime_of(value)
        runtime.check_waiting()
        return runtime.cancel(task, "cancel()")

    def _status(self) -> str:
        value = self._value
        if value.failure is not None:
            return "cancelled" if value.failure.cancelled else f"failed: {value.failure.kind}"
        task = value.task
        return "done" if task is None or task.state >= DONE else f"pending: {task.name}"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} lives in its scheduler and cannot be pickled: pickle the result of `await t`;"
            " `await asc.save(path, model.state_dict())` writes a state to a file"
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} lives in its scheduler and cannot be copied: copy the result of `await t`."
            " Tensors are values, so the result of `model.state_dict()` needs no copy"
        )

    def __copy__(self) -> NoReturn:
        self.__deepcopy__({})


class Donated:
    """Stands in a handle for a value that was donated to a captured step. Any use of it raises."""

    __slots__ = ("_site", "_taker")

    def __init__(self, taker: str, site: CallSite | None) -> None:
        self._taker, self._site = taker, site

    def __getattr__(self, name: str) -> NoReturn:
        self.refuse()

    def refuse(self) -> NoReturn:
        """Raise an error that says where the tensor went."""
        raise RuntimeError(
            f"this tensor was donated to {self}, which writes over its memory: use what that call returned in its"
            " place, or donate `t.copy()` and keep `t`"
        )

    def __str__(self) -> str:
        return f"{self._taker} at {line_of(self._site)}"


def _is_done(value: Value) -> bool:
    if not value.settled and (runtime := value.account.runtime).completions.items:
        # A task without waiters wakes nobody, so its end may not have been taken in yet.
        if runtime.thread == threading.get_ident():
            runtime.dispatch()
        else:
            runtime.completions.notify()
    return value.settled


def _done(lease: Lease) -> Value:
    """The present value, which must be done. Read once: a finaliser may assign to a handle meanwhile."""
    value = lease._value
    if not _is_done(value):
        raise asyncio.InvalidStateError("the result is not there yet: use `await`")
    return value


class Task(Handle[T]):
    """A submitted callable. `await` gives its result.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         task = await s.submit(divmod, 7, 2)
    ...         print(await task, task.done(), task)
    >>> asc.run(main)
    (3, 1) True Task(divmod, done)
    """

    __slots__ = ("_name",)

    def __init__(self, value: Value, name: str) -> None:
        super().__init__(value)
        self._name = name

    def __repr__(self) -> str:
        return f"Task({self._name}, {self._status()})"

    if not TYPE_CHECKING:  # type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            cure = TASK.get(name, "`await t`, or a Tensor, which `submit(fn, ..., shape=, dtype=)` gives")
            raise no_attribute("a Task", name, {} if name.startswith("_") else {name: cure}, type(self))


def runtime_of(value: Value) -> Runtime:
    """The scheduler that a value belongs to."""
    return cast(Runtime, value.account.runtime)


@coroutine
def reach(value: Value) -> Generator[Any, None, None]:
    """Wait until `value` is there; if it is, pass through the loop once."""
    task = value.task
    if task is None or task.state >= DONE or task.failure is not None:
        if value.account.runtime.life is FORKED:  # from Python 3.14 on, its loop would go on with nothing
            value.account.runtime.refuse()
        yield
    else:
        yield from wait(value.account.runtime, (task,))


def copied_at_once(value: Value) -> bool:
    """Whether a done value's array is copied out at once, without waiting."""
    return value.device.inline and not value.device.remote and value.array.nbytes <= INLINE_COPY


async def copy_out(value: Value) -> Any:
    """A host copy of a done value's array: a small one at once, others on the copy stream. Costs no tracked bytes."""
    kept, array = Lease(value), value.array  # the buffer must not be written over meanwhile
    runtime, device = runtime_of(value), value.device
    reveal(value)
    if device.remote:
        return await device.bring(array)
    if copied_at_once(value):
        return device.fetch(array)
    if runtime.life is Life.CLOSED or running_loop() is not runtime.loop:  # no copy stream, or another loop's
        return await in_thread(lambda: device.fetch(array), "copies out")
    assert runtime.loop is not None
    future: asyncio.Future[None] = runtime.loop.create_future()
    job = Job(lambda: device.fetch(kept._value.array))

    def told(_: Job) -> bool:
        under_way.discard(job)
        if not future.done():
            future.set_result(None)
        return True

    job.waiters = {told: None}
    under_way.add(job)
    device.offload(job)
    await future
    error, job.error = job.error, None  # no cycle: its frames hold the job
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback holds this frame
    return job.result
