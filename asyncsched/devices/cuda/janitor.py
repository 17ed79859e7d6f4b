"""The memory of arrays that left a CUDA scheduler. It is used again once the device has passed their holders' work.

Theory of operation. A dropped array's block goes to the next one that asks, in the order of the stream on which it was
made. Nobody looks at what else runs on the device then. For an array inside the scheduler that is right: its tasks hold
it until the host has seen their end. But a user works on an awaited array on a stream of their own, most often the null
stream. They drop the array (or the collector does) with that work still queued.

So the memory of an array that leaves is owned, for CuPy, by a `Loan`. All arrays, views and DLPack capsules of that
memory keep the loan alive. The loan holds the block.

1. The loan dies, on any thread and in the middle of anything. It appends its block to a queue, with the streams it was
   told of and the one that is current on that thread. It makes no call of CUDA.
2. The janitor, a thread, takes all that is in the queue. It records one event on each stream concerned, and lets go of
   each block when the device has passed the events of its streams. It asks for them, so that a busy stream keeps only
   what was used on it. Every block waits for the null stream first: while all do, the thread sleeps until it is past.
3. A block dies with its last loan, if the scheduler holds it no longer. Then its piece goes back to the pool, and its
   bytes are reported.

Until the janitor lets go, the block counts as memory that is on its way back (see `completions`). So no task is let
through out of order for want of it.

The collector does not see a loan (see `untracked`), so it dies after all finalisers that can reach its array.

An event on the null stream comes after the work of all blocking streams, too. Work on any other stream is unknown here:
call `record_stream` for it. A stream that captures takes no event, since that would become part of the graph. A block
that needs an event there waits until the capture is over. That may be never, so such a block is not on its way back.

The events are new ones, and never a task's. A stream may still wait for the last event that it was given (see
`stream`); recorded anew here, that event would make the stream wait for a user's work.

Not taken: recording where the array dies, since that may be within a capture, on the event loop, or in a child process;
waiting for the whole device, which would wait for the scheduler's own streams, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from gc import get_referents
from queue import Empty, SimpleQueue
from typing import Any

from ..._core.completions import Completions
from ..._interrupts import finaliser
from . import driver, threads
from .context import CUDAContext
from .driver import capturing
from .pool import behind

# Seconds until a stream that is busy, or captures, is looked at again, since nobody tells when that has ended. They are
# doubled each time that nothing has come back.
_SOON, _AGAIN = 1e-4, 0.02
_NULL = 0


class Body:
    """A callable's run on a stream. Arrays that it makes and drops meanwhile go back in the order of that stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.thread: int = threading.get_ident()
        self.over = False

    def orders(self, current: Any) -> bool:
        """Whether it is the body that drops an array now, on this thread with this current stream."""
        return not self.over and current is self.stream and threading.get_ident() == self.thread


class _Dropped:
    """Held objects that wait for streams.

    Attributes:
        streams: those to wait for, by pointer.
        events: by pointer, what was recorded on a stream; None, once the device has passed it.
    """

    __slots__ = ("events", "held", "streams")

    def __init__(self, held: list[Any], streams: dict[int, Any]) -> None:
        self.held: list[Any] = held
        self.streams: dict[int, Any] = {_NULL: None, **streams}
        self.events: dict[int, Any] = {}


class Loan:
    """Owns the memory of an array that left. When it dies, no array shows that memory through it any more.

    Args:
        held: the owner of the memory: the pool's block, or the array of a function that took memory elsewhere.
        janitor: lets go of it.
        body: the callable's run that made the array.
    """

    __slots__ = ("_body", "_streams", "held", "janitor")

    def __init__(self, held: Any, janitor: Janitor, body: Body | None = None) -> None:
        self.held: list[Any] = [held]  # in a list that the janitor empties: else the last reference could go here
        self.janitor: Janitor = janitor
        self._body = body
        self._streams: dict[int, Any] = {}

    def record(self, pointer: int, stream: Any) -> None:
        """Note that a stream uses the memory. The stream is waited for before the memory is used again."""
        self._streams[pointer] = stream

    @finaliser()
    def __del__(self) -> None:
        current = self.janitor.current_stream()
        if self._streams or self._body is None or not self._body.orders(current):
            self.janitor.take(self.held, {**self._streams, current.ptr: current})


def keeper_of(array: Any) -> Any:
    """The owner of an array's memory: a loan, or a block of the pool. None for other memory, and for objects that are
    no arrays."""
    return kept_for(getattr(getattr(array, "data", None), "mem", None))


def kept_for(memory: Any) -> Any:
    """The same for a memory object of CuPy's. It does not name its owner, but the collector knows its references."""
    return next((kept for kept in map(behind, get_referents(memory)) if kept is not None), None)


def loan_of(array: Any) -> Loan | None:
    """The loan on an array's memory, if it has one. Takes any object."""
    keeper = keeper_of(array)
    return keeper if isinstance(keeper, Loan) else None


def record_stream(array: Any, stream: Any) -> None:
    """Say that a stream works on an awaited array, so that the array may be dropped before the work is done.

    Needed for streams made with `non_blocking=True`. Those of PyTorch and other libraries are made so, too. Other work
    is waited for without a call: that on the null stream, on blocking streams, and on the stream that is current for
    CuPy where the array is dropped. The call never blocks, and asks nothing of CUDA. It counts until the memory has
    come back::

        a = await y                                  # a cupy.ndarray
        side = cupy.cuda.Stream(non_blocking=True)
        with side:
            b = a * 10
        asyncsched.record_stream(a, side)
        del a                                        # its memory is used again once `side` has come so far

        t = torch.from_dlpack(a)                     # PyTorch's stream is not CuPy's
        asyncsched.record_stream(a, torch.cuda.current_stream())

    Args:
        array: the array, or a view of it that CuPy made. An array that another library made of it by DLPack is not
            known here.
        stream: CuPy's or PyTorch's, which is kept alive meanwhile; or the pointer of a stream that lives long enough.

    Raises:
        TypeError: for an array that no CUDA scheduler gave, and for objects that are no streams.
        ValueError: for a stream of another device, and for -1, by which DLPack means no stream.
    """
    loan = loan_of(array)
    if loan is None:
        raise TypeError(
            f"record_stream() wants an array that a CUDA scheduler gave (`a = await t`), or CuPy's view of it, not"
            f" {type(array).__module__}.{type(array).__name__}: on the CPU, and for memory of your own, there is"
            " nothing to tell"
        )
    pointer = stream if isinstance(stream, int) else getattr(stream, "ptr", getattr(stream, "cuda_stream", None))
    if pointer is None:
        raise TypeError(f"a stream is CuPy's, PyTorch's or a pointer to one, not {type(stream).__name__}")
    if pointer < 0:
        raise ValueError(f"{pointer} is no pointer to a stream: record_stream() wants the one that works on the array")
    device, number = getattr(stream, "device_id", getattr(stream, "device_index", -1)), loan.janitor.number
    if device not in (-1, number):
        raise ValueError(
            f"the stream is of cuda:{device} and the array of cuda:{number}: synchronize the stream before the array"
            " is dropped"
        )
    loan.record(pointer, stream)


def thread_name(context: CUDAContext) -> str:
    """The name of the thread of a device's janitor."""
    return f"asyncsched {context.name} janitor"


class Janitor:
    """The thread of one device that waits for users' work on memory that left, and then lets go of the memory."""

    def __init__(self, context: CUDAContext, completions: Completions) -> None:
        self._context = context
        self._completions = completions
        self._queue: SimpleQueue[_Dropped | None] = SimpleQueue()
        self._pause: float | None = None
        self._stream_on: Callable[[int], Any] = context.cupy.cuda.get_current_stream
        self.number: int = context.number
        self._closing = self._over = False

    def open(self) -> None:
        """Start the thread. Called on the event loop's thread, where CuPy then makes what `current_stream` reads."""
        self.current_stream()
        threads.run(self._run, thread_name(self._context))

    def close(self) -> None:
        """Nobody takes memory any more. The thread ends once all memory has gone back to the device."""
        self._closing = True
        self.wake()

    def wake(self) -> None:
        """Have the thread look at the pool. On any thread, at any time."""
        self._queue.put(None)

    def take(self, held: list[Any], streams: dict[int, Any]) -> None:
        """Empty a list, once the null stream and these streams have done all their work up to now.

        Called on any thread, at any time. The list itself is emptied, since the caller may still hold it.
        """
        self._completions.returning[id(held)] = held
        self._queue.put(_Dropped(held, streams))
        if self._over:
            self._let_go()

    def current_stream(self) -> Any:
        """The stream that is current for CuPy on this thread and this device."""
        return self._stream_on(self.number)

    def _run(self) -> None:
        waiting: list[_Dropped] = []
        pool = self._context.pool
        with self._context.on_own_thread():
            while not self._closing or waiting or pool.reserved() > 0 or not self._queue.empty():
                self._gather(waiting)
                if waiting:
                    waiting = self._wait_for(waiting)
                if self._closing:
                    pool.free()
        self._over = True
        self._let_go()

    def _let_go(self) -> None:
        """Empty all lists at once. The thread has ended, so no memory is in use or the device is lost: nobody waits."""
        with suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    item.held.clear()
                    self._completions.returned(id(item.held))

    def _gather(self, waiting: list[_Dropped]) -> None:
        """Add what has come to what waits. If nothing waits, sleep until something comes."""
        with suppress(Empty):
            item = threads.resting(self._queue.get, timeout=self._pause)
            while True:
                if item is not None:
                    waiting.append(item)
                item = self._queue.get_nowait()

    def _wait_for(self, waiting: list[_Dropped]) -> list[_Dropped]:
        """Let go of what the device is past. Returns the rest."""
        runtime = self._context.runtime
        try:
            self._record(waiting)
            self._look(waiting)
        except runtime.CUDARuntimeError:  # a stream was destroyed, or the device is lost and nothing runs on it
            with suppress(runtime.CUDARuntimeError), capturing:
                runtime.deviceSynchronize()
            for item in waiting:
                item.events = dict.fromkeys(item.streams)
        for item in waiting:
            recorded = len(item.events) == len(item.streams)
            if recorded and not any(item.events.values()):
                item.held.clear()
            if not (recorded and item.held):  # it is back, or a capture keeps it
                self._completions.returned(id(item.held))
        rest = [item for item in waiting if item.held]
        back = len(rest) < len(waiting)
        self._pause = None if not rest else _SOON if back else min(2 * (self._pause or _SOON), _AGAIN)
        return rest

    def _record(self, waiting: list[_Dropped]) -> None:
        """Record an event on each stream that has none yet for something that waits for it, unless it captures."""
        lacking = {pointer for item in waiting for pointer in item.streams.keys() - item.events.keys()}
        for pointer in lacking:
            event = self._context.new_event()
            if self._context.record(event, pointer):
                for item in waiting:
                    if pointer in item.streams:
                        item.events.setdefault(pointer, event)

    def _look(self, waiting: list[_Dropped]) -> None:
        """Note what the device has passed. Sleeps, without the GIL, while all wait for the null stream."""
        if all(item.events.get(_NULL) for item in waiting):
            self._context.runtime.eventSynchronize(waiting[0].events[_NULL].ptr)
        passed: dict[Any, bool] = {None: True}
        for item in waiting:
            for pointer, event in item.events.items():
                if event not in passed:
                    passed[event] = self._passed(event)
                if passed[event]:
                    item.events[pointer] = None

    def _passed(self, event: Any) -> bool:
        """Whether the device has passed an event. Asks without the GIL."""
        found = driver.passed(event.ptr)
        return self._context.passed(event) if found is None else found
