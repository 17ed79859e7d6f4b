"""The memory of arrays that left a CUDA scheduler: it is used again once the device has passed their holders' work.

Theory of operation. A dropped array's block goes to the next who asks, in the order of the stream that it was made on.
What runs on the device by then is not asked for. For an array inside the scheduler that is right: its tasks hold it
until the host has seen their end. But whoever awaited an array works on it on a stream of their own, most often the
null stream, and drops it (or the collector does) with that work still queued.

So what leaves shows its memory through a `Lease`, an owner that CuPy knows: all arrays, views and DLPack capsules of it
keep the one alive. When it dies, on whatever thread and in the middle of anything, it appends what it stands for to a
queue, with the stream that is current on that thread. No CUDA call is made there. The janitor, a thread, takes all that
is there, records one event on each stream concerned, sleeps until the device has passed those, and lets go. Only then
does the block go back to the pool and are its bytes told, since both hang on what the lease stands for. Meanwhile it
is noted as memory that is on its way back (see `completions`), so that nobody goes first for want of it.

An event on the null stream comes after the work of all blocking streams, too. Work on any other stream is unknown here:
`record_stream` tells of it. A stream that captures takes no event, which would become part of the graph: what needs one
there waits until the capture is over, which may be never: it is not on its way back.

The events are the janitor's own. A stream may still wait for the last event of one that it was given (see `stream`),
and is not to wait for a user's work by that.

Not taken: recording where the array dies, since that may be within a capture, on the event loop, or in a child process;
waiting for the whole device, which would wait for the scheduler's own streams, too.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from ..._core.completions import Completions
from . import threads
from .context import CUDAContext

_AGAIN = 0.02  # seconds until a stream that captured is looked at again: nobody tells when it has ended
_NULL = 0

Item = tuple[list[Any], dict[int, Any]]  # what is held, and the streams to wait for, by pointer


class Body:
    """A callable's run on a stream. What it makes and drops meanwhile goes back in the order of that stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.thread = threading.get_ident()
        self.over = False

    def orders(self, current: Any) -> bool:
        """Whether what dies now, where a stream is current, dies within."""
        return not self.over and current is self.stream and threading.get_ident() == self.thread


class Lease:
    """What shows the memory of an array that left: when it dies, nobody shows that any more.

    The janitor holds the memory itself. Else the collector, where it finds a lease in a cycle, would finalize that and
    all behind it in one go.

    Args:
        held: what keeps the memory.
        janitor: lets go of it.
        body: of the callable that made it.
    """

    __slots__ = ("_body", "held", "janitor")

    def __init__(self, held: Any, janitor: Janitor, body: Body | None = None) -> None:
        self._body = body
        self.held = weakref.ref(held)  # dead once the janitor has let go of it
        self.janitor = janitor
        janitor.lent[id(self)] = ([held], {})

    def record(self, pointer: int, stream: Any) -> None:
        """Note that a stream uses the memory: it is waited for before that is used again."""
        self.janitor.lent[id(self)][1][pointer] = stream

    def __del__(self) -> None:
        held, streams = self.janitor.lent.pop(id(self))
        current = self.janitor.current_stream()
        if streams or self._body is None or not self._body.orders(current):
            self.janitor.take(held, {**streams, current.ptr: current})


def lease_of(array: Any) -> Lease | None:
    """The lease on an array's memory, if it has one. Of anything."""
    memory = getattr(getattr(array, "data", None), "mem", None)
    owner = getattr(memory, "_owner", None)
    return owner if isinstance(owner, Lease) else None


def record_stream(array: Any, stream: Any) -> None:
    """Tell that a stream works on an array that was awaited, so that the array may be dropped before the work is done.

    Needed for streams made with `non_blocking=True`, which are those of PyTorch and other libraries, too. What runs on
    the null stream, on blocking streams, or on the stream that is current for CuPy where the array is dropped is waited
    for without a word. Never blocks, makes no call of CUDA, and holds until the array's memory has come back::

        a = await y                                  # a cupy.ndarray
        side = cupy.cuda.Stream(non_blocking=True)
        with side:
            b = a * 10
        asyncsched.record_stream(a, side)
        del a                                        # its memory is used again once `side` has come so far

        t = torch.from_dlpack(a)                     # PyTorch's stream is not CuPy's
        asyncsched.record_stream(a, torch.cuda.current_stream())

    Args:
        array: the array, or a view of it that CuPy made. What another library made of it by DLPack is not known here.
        stream: CuPy's or PyTorch's, which is kept meanwhile, or the pointer of one that lives long enough.

    Raises:
        TypeError: for an array that no CUDA scheduler gave, or no stream.
        ValueError: for a stream of another device, and for -1, which DLPack knows as no stream.
    """
    lease = lease_of(array)
    if lease is None:
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
    device, number = getattr(stream, "device_id", getattr(stream, "device_index", -1)), lease.janitor.number
    if device not in (-1, number):
        raise ValueError(
            f"the stream is of cuda:{device} and the array of cuda:{number}: synchronize the stream before the array"
            " is dropped"
        )
    lease.record(pointer, stream)


class Janitor:
    """The thread of one device that waits for work which nobody told the scheduler of, and then lets go."""

    def __init__(self, context: CUDAContext, completions: Completions) -> None:
        self._context = context
        self._completions = completions
        self._events: list[Any] = []  # spare ones of its own: a stream may still wait for one that was a task's
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._stream_on: Callable[[int], Any] = context.cupy.cuda.get_current_stream
        self.number = context.number
        self._closing = self._over = False
        self.lent: dict[int, Item] = {}  # what leases stand for, by their identity

    def open(self) -> None:
        """Start the thread. On the event loop's, where CuPy makes what `current_stream` looks at."""
        self.current_stream()
        threads.run(self._run, f"asyncsched {self._context.name} janitor")

    def close(self) -> None:
        """Nobody takes memory any more: let the thread end once the last in use has gone back to the device."""
        self._closing = True
        self.wake()

    def wake(self) -> None:
        """Have it look at the pool. On any thread, at any time."""
        self._queue.put(None)

    def take(self, held: list[Any], streams: dict[int, Any]) -> None:
        """Empty a list once the null stream and these have come so far. On any thread, at any time.

        The list itself is emptied, since whoever hands it over may still hold it.
        """
        self._completions.returning[id(held)] = held
        self._queue.put((held, streams))
        if self._over:
            self._let_go()

    def current_stream(self) -> Any:
        """CuPy's on this thread, for this device."""
        return self._stream_on(self.number)

    def _run(self) -> None:
        waiting: list[Item] = []
        pool = self._context.pool
        with self._context.current():
            while not self._closing or waiting or pool.reserved() > 0 or not self._queue.empty():
                self._gather(waiting)
                waiting = self._wait_for(waiting) if waiting else []
                if self._closing:
                    pool.free()
        self._over = True
        self._let_go()

    def _let_go(self) -> None:
        """The thread has ended, so no memory is in use, or the device is lost: there is nothing to wait for."""
        with suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    item[0].clear()
                    self._completions.returned(id(item[0]))

    def _gather(self, waiting: list[Item]) -> None:
        """Add what has come; sleep until something comes, if nothing waits."""
        with suppress(Empty):
            item = self._queue.get(timeout=_AGAIN if waiting else None)
            while True:
                if item is not None:
                    waiting.append(item)
                item = self._queue.get_nowait()

    def _wait_for(self, burst: list[Item]) -> list[Item]:
        """Wait for the device. Returns those of a burst that have to wait for the end of a capture."""
        runtime = self._context.runtime
        pointers = {_NULL}.union(*[streams for _, streams in burst])
        try:
            recorded = {pointer: event for pointer in pointers if (event := self._record(pointer)) is not None}
            for event in recorded.values():
                runtime.eventSynchronize(event.ptr)
                self._events.append(event)
        except runtime.CUDARuntimeError:  # a stream is gone, or the device is lost and nothing runs on it any more
            with suppress(runtime.CUDARuntimeError):
                runtime.deviceSynchronize()
            recorded = dict.fromkeys(pointers)
        for held, streams in burst:
            if recorded.keys() >= {_NULL, *streams}:
                held.clear()
            self._completions.returned(id(held))
        return [item for item in burst if item[0]]

    def _record(self, pointer: int) -> Any:
        """An event on a stream; None while that captures."""
        event = self._events.pop() if self._events else self._context.new_event()
        return event if self._context.record(event, pointer) else None
