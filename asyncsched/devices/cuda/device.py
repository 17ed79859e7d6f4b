"""CUDA through CuPy: compute streams, a stream for copies in, one for copies out, and a private memory pool."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..._core.completions import Completions
from ..._core.failure import Failure
from ..._core.model import Task, Value
from ...ops.program import Program
from .. import execution as body
from ..contract import Job
from .graph import CUDAGraph
from .memory import GRANULE, CUDAMemory
from .stream import CUDAStream

SHARE_OF_FREE = 0.8  # of the memory free at the start, where no max_bytes is given
_INSTALL = 'pip install "asyncsched[cuda12]" (or "asyncsched[cuda13]" for CUDA 13)'


def usable() -> bool:
    """Whether CuPy is installed and finds a device. Makes no noise."""
    try:
        import cupy
    except ImportError:
        return False
    return bool(cupy.cuda.is_available())


class CUDADevice:
    """One CUDA device.

    Args:
        number: which, as CUDA counts them.
        streams: how many compute streams.
        inline_launch: enqueue a view, or a row that is a single ufunc and ran before with operands of this form, from
            the event loop's thread, instead of handing it to the stream's issuing thread.
        spin: seconds to ask again and again whether a task is done before sleeping until it is. Shorter waits for a
            busier processor.
        nvtx: mark every task, from when it is issued until the host sees its end, as an NVTX range of its name.
    """

    kind = "cuda"
    inline = False
    granule = GRANULE
    owns_captures = True

    def __init__(
        self, number: int = 0, streams: int = 2, *, inline_launch: bool = False, spin: float = 0.0, nvtx: bool = False
    ) -> None:
        self.name = f"cuda:{number}"
        self.dlpack = (2, number)
        self.number = number
        self.inline_launch = inline_launch
        self.spin = spin
        self.fault: Failure | None = None
        self._error: Exception | None = None  # the one that `fault` raises
        self.streams: list[CUDAStream] = []
        self._count = streams
        self._nvtx = nvtx
        self._events: deque[Any] = deque()
        self._open = 0  # streams whose threads have not ended
        self._litter: list[list[Any]] = []  # what may block the thread on which it goes
        self._graphs: weakref.WeakSet[CUDAGraph] = weakref.WeakSet()
        self._poisoning = threading.Lock()
        self._free = 0

    # -- opening and closing ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Load CuPy, make the context and the streams.

        Raises:
            RuntimeError: if there is no such device, or no CuPy.
        """
        try:
            import cupy
        except ImportError as error:
            raise RuntimeError(f'CuPy is not installed: {_INSTALL}, or use Scheduler("cpu")') from error
        self.cupy: Any = cupy
        self.xp: Any = cupy
        self.runtime: Any = cupy.cuda.runtime
        self.errors: tuple[type[Exception], ...] = (cupy.cuda.runtime.CUDARuntimeError,)
        found = self.runtime.getDeviceCount() if cupy.cuda.is_available() else 0
        if self.number >= found:
            raise RuntimeError(f"{self.name}: CUDA finds {found} devices here: `python -m asyncsched` lists them")
        with self.current():
            self._free = self.runtime.memGetInfo()[0]
            self._reach_peers(found)
            self.streams = [CUDAStream(self, f"{self.name} stream {i}") for i in range(self._count)]
            self.copier = CUDAStream(self, f"{self.name} copies in")
            self._down = CUDAStream(self, f"{self.name} copies out")

    def default_bytes(self) -> int | None:
        """The limit where none is given: a share of what was free when the device was prepared."""
        return int(self._free * SHARE_OF_FREE)

    def open(self, completions: Completions, max_bytes: int | None) -> None:
        self.memory = CUDAMemory(self, completions, max_bytes)
        self._open = 2 + self._count
        for stream in self._all_streams():
            stream.open()

    def close(self) -> None:
        for stream in self._all_streams() if self.streams else ():
            stream.close()
        self.streams = []
        if self._error is not None:
            # Who was told last is in there, with all it holds.
            self._error.__traceback__ = self._error.__context__ = None

    def stream_closed(self) -> None:
        """A stream's last thread is about to end. The last of all returns the memory."""
        with self._poisoning:
            self._open -= 1
            last = not self._open
        if last and self.fault is None:
            for graph in list(self._graphs):
                graph.let_go()
            self._clear_litter()
            self.memory.trim()

    def _all_streams(self) -> list[CUDAStream]:
        return [*self.streams, self.copier, self._down]

    def _reach_peers(self, found: int) -> None:
        for other in range(found):
            if other != self.number and self.runtime.deviceCanAccessPeer(self.number, other):
                try:
                    self.runtime.deviceEnablePeerAccess(other)
                except self.errors as error:
                    if "AlreadyEnabled" not in str(error):
                        raise

    # -- the contract -------------------------------------------------------------------------------------------

    def run_here(self, task: Task) -> None:
        raise AssertionError("nothing runs on the loop's thread of a CUDA device")

    def offload(self, job: Job) -> None:
        self._down.offload(job)

    def reclaim(self, value: Value) -> None:
        self.memory.reclaim(value)

    def fetch(self, array: Any) -> np.ndarray[Any, Any]:
        """A host copy. Blocks the calling thread, which is never the loop's."""
        with self.here(), self._down.cuda:
            return self.memory.fetch(array, self._down.cuda)

    def capture(self, program: Program, inputs: int) -> Callable[[Any, Sequence[Any]], list[Any]]:
        graph = CUDAGraph(self, program, inputs)
        self._graphs.add(graph)
        return graph.run

    def adopt(self, source: Any) -> Any:
        """An array of this device over another library's, by DLPack; copies in wait for that library's stream."""
        kind, number = source.__dlpack_device__()
        if number != self.number:
            raise ValueError(
                f"the array is on cuda:{number}: `put` it there with device=, or move it to {self.name} first"
            )
        with self.here():
            return self.cupy.from_dlpack(_Ordered(source, self.copier.cuda.ptr, (kind, number)))

    def dispose(self, held: list[Any]) -> None:
        """Empty a list of what may block its thread when it goes. On any thread, in the middle of anything."""
        if self._open:
            self._litter.append(held)
            self._down.offload(Job(self._clear_litter))

    def _clear_litter(self) -> None:
        """The lists themselves are emptied: whoever handed one over may still hold it."""
        while self._litter:
            self._litter.pop().clear()

    # -- for the streams ----------------------------------------------------------------------------------------

    def current(self) -> Any:
        """A context in which this is CUDA's current device."""
        return self.cupy.cuda.Device(self.number)

    @contextmanager
    def here(self) -> Iterator[None]:
        """A context in which this is the current device and memory comes from the private pool. No `await` inside."""
        with self.current(), self.cupy.cuda.using_allocator(self.memory.malloc):
            yield

    def take_event(self) -> Any:
        """An event from the pool: blocking, so that a watcher sleeps, and without timing, which costs."""
        try:
            return self._events.pop()
        except IndexError:
            return self.cupy.cuda.Event(block=True, disable_timing=True)

    def give_event(self, event: Any) -> None:
        """The host has seen the event."""
        if event is not None:
            self._events.append(event)

    def passed(self, event: Any) -> bool:
        """Whether the device has passed an event. Unlike `Event.done`, it raises after a fault."""
        status = self.runtime.eventQuery(event.ptr)
        if status == 0:
            return True
        if status == _NOT_READY:
            return False
        raise self.runtime.CUDARuntimeError(status)

    def poison(self, error: Exception, task: Task) -> None:
        """The device is lost: everything unfinished on it fails with this error, and all that comes later."""
        with self._poisoning:
            if self.fault is None:
                error.add_note(f"{self.name} is unusable from here on: restart the process")
                # Of frames that still run, and would hold their task for ever.
                error.__traceback__ = error.__context__ = None
                fault = Failure.of(error, task.name, task.site)
                body.fail(task, fault)
                self.fault, self._error = fault, error

    def start_range(self, name: str) -> Any:
        """Begin an NVTX range, if those are switched on."""
        return self.cupy.cuda.nvtx.RangeStart(name, None) if self._nvtx else None

    def end_range(self, span: Any) -> None:
        """End one."""
        if span is not None:
            self.cupy.cuda.nvtx.RangeEnd(span)

    def __repr__(self) -> str:
        return self.name


_NOT_READY = 600  # cudaErrorNotReady


class _Ordered:
    """An array whose export is ordered before `stream`, wherever it is imported."""

    def __init__(self, source: Any, stream: int, device: tuple[int, int]) -> None:
        self._source = source
        self._stream = stream
        self._device = device

    def __dlpack__(self, **_: Any) -> Any:
        return self._source.__dlpack__(stream=self._stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device
