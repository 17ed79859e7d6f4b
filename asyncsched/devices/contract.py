"""What the scheduler knows of a device, and no more.

A stream is a FIFO that runs what it is given in order. An event is a point in a stream. A device runs tasks on its
streams, drops every reference before it posts a completion to the completions, and takes buffers back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .._core.completions import Completions
from .._core.model import Task, Value
from ..ops.program import Program


class Event(Protocol):
    """A point in a stream: everything launched there before it."""

    def done(self) -> bool:
        """Whether the stream has passed it. Never blocks."""

    def wait(self) -> None:
        """Block the calling thread, which is never the loop's, until the stream has passed it."""


class Job:
    """Work for a stream outside admission: a copy to the host, which costs no tracked bytes.

    `waiters` are called on the loop's thread; `result` or `error` is set by then.
    """

    __slots__ = ("error", "function", "result", "waiters")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function: Callable[[], Any] | None = function
        self.result: Any = None
        self.error: BaseException | None = None
        self.waiters: list[Callable[[], None]] = []

    def run(self) -> None:
        """Call the function, keep what it gave, and let go of it."""
        function, self.function = self.function, None
        assert function is not None
        try:
            self.result = function()
        except BaseException as error:  # handed to whoever waits
            self.error = error

    def notify(self) -> None:
        """Tell who waits."""
        for waiter in self.waiters:
            waiter()


class Stream(Protocol):
    """A FIFO of launches."""

    name: str

    def launch(self, task: Task, waits: Sequence[Event]) -> Event:
        """Queue a task behind the events in `waits`, which lie in other streams. The host waits for nothing."""


class Device(Protocol):
    """One place to compute.

    Attributes:
        kind: "cpu", "cuda", "sim".
        name: the kind, with a number where several are open: "cpu:1".
        inline: whether tiny rows may run on the loop's thread, its arrays being NumPy's.
        xp: its array namespace.
        granule: in multiples of how many bytes arrays are charged.
        owns_captures: whether a captured program's intermediates have buffers of their own for as long as it lives.
        dlpack: its type and number, as DLPack counts them.
        streams: compute streams, fixed at open.
        copier: the stream for host-to-device copies.
        memory: has `escapes`, the arrays that left the scheduler and are still charged.
    """

    kind: str
    name: str
    inline: bool
    xp: Any
    granule: int
    owns_captures: bool
    dlpack: tuple[int, int]

    @property
    def streams(self) -> Sequence[Any]: ...

    copier: Any
    memory: Any

    def prepare(self) -> None:
        """What opening needs that may block. Called once, before `open`, on a worker thread."""

    def open(self, completions: Completions, max_bytes: int | None) -> None:
        """Start the streams."""

    def run_here(self, task: Task) -> None:
        """Run a tiny host-to-device copy on the calling thread, the loop's. Only where `inline`."""

    def offload(self, job: Job) -> None:
        """Run a job on the copy stream."""

    def default_bytes(self) -> int | None:
        """The limit in bytes where the user gives none. Asked after `prepare`."""

    def capture(self, program: Program, inputs: int) -> Callable[[Any, Sequence[Any]], list[Any]]:
        """What runs a program on (array namespace, arrays), of which the first `inputs` change from run to run."""

    def adopt(self, source: Any) -> Any:
        """An array of this device over one of another library, by DLPack."""

    def fetch(self, array: Any) -> Any:
        """A host copy of an array of this device. May block: called on worker threads alone, unless `inline`."""

    def reclaim(self, value: Value) -> None:
        """Nobody holds `value` any more. Called on any thread, in the middle of anything: never blocks."""

    def close(self) -> None:
        """Stop the streams once they have run what they were given. Never blocks."""


_stream_threads: set[int] = set()


def enter_stream_thread() -> None:
    """Mark the calling thread as one of a stream: nothing there may wait for a tensor."""
    _stream_threads.add(threading.get_ident())


def leave_stream_thread() -> None:
    """The calling thread is about to end; its number may be given to another."""
    _stream_threads.discard(threading.get_ident())


def in_stream_thread() -> bool:
    """Whether the caller runs inside a task body."""
    return threading.get_ident() in _stream_threads
