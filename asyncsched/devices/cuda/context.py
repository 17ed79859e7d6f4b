"""The state that the streams and the memory of one CUDA device share. They get this, and not the device, which holds
them."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from time import perf_counter
from typing import Any, Final

from ..._blocks import contextmanager
from ..._core.failure import Failure
from ..._core.model import Task
from ..._interrupts import Lock
from .. import execution
from . import driver
from .driver import capturing
from .pool import PrivatePool
from .requirements import Missing, missing, refused

_NOT_READY = 600  # cudaErrorNotReady
_HOPPER = 9  # compute capability
_OWN_ERRORS = ("CUDARuntimeError", "CUDADriverError")
_CAPTURE_ERRORS = range(900, 910)  # cudaErrorStreamCaptureUnsupported and those after it, in driver_types.h
_KEPT: Final = 10.0  # seconds: after so long, times are still exact to a microsecond


# The errors of CUDA and its libraries where they find no memory on the device, by name and status. Some say then that
# they cannot begin (cuBLAS 1, cuSOLVER 1, cuRAND 203), or that something went wrong inside (cuFFT 5, cuSOLVER 7).
_NO_MEMORY: Final = {
    "CUDARuntimeError": (2,),
    "CUDADriverError": (2,),
    "CUBLASError": (1, 3),
    "CUSOLVERError": (1, 2, 7),
    "CuFFTError": (2, 5),
    "CURANDError": (102, 203),
}


def of_memory(error: Exception) -> bool:
    """Whether an error may say that a library, or CUDA for itself, found no memory on the device. (Not the pool's.)"""
    status = getattr(error, "status", getattr(error, "result", None))
    return status in _NO_MEMORY.get(type(error).__name__, ())


def of_capture(error: Exception) -> bool:
    """Whether an error says that a capture refuses something, or is spoiled. If not, the device itself failed."""
    return getattr(error, "status", _CAPTURE_ERRORS[0]) in _CAPTURE_ERRORS


def unusable(name: str, lacks: Sequence[Missing]) -> RuntimeError:
    """The error to raise if a device cannot be opened."""
    told = "; ".join([f"{lack.how}: {lack.cure}" for lack in lacks])
    return RuntimeError(f'{name} cannot be used: {told}. Or use Scheduler("cpu")')


class CUDAContext:
    """One CUDA device: making it the current one, its memory, its events, and whether it was lost.

    Attributes:
        name, number: "cuda:1", and the 1.
        cupy, runtime: CuPy, and its bindings of the CUDA runtime.
        pool: its memory, from `open` on.
        fault: why the device is lost. Set from then until its streams have ended.

    Raises:
        RuntimeError: if there is no such device, or CUDA lacks something. It says what is missing, and the cure.
    """

    pool: PrivatePool

    def __init__(self, name: str, number: int) -> None:
        self._primary = driver.make_context(number)
        if lacks := missing():
            raise unusable(name, lacks)
        import cupy

        # CuPy's functions import it when they first need it, in parts that import each other. Two threads that begin
        # with different parts would get it unfinished.
        import_module("cupyx")
        self.name = name
        self.number = number
        self.cupy: Any = cupy
        self.runtime: Any = cupy.cuda.runtime
        self.fault: Failure | None = None
        self._cure = f"{name} is unusable from here on: restart the process"
        self._fault_lock = Lock()
        self._events: tuple[deque[Any], deque[Any]] = deque(), deque()  # without timing, and with it
        self._base: tuple[Any, float] = None, 0.0
        self._reached: set[int] = set()  # devices from which copies came
        found = self.runtime.getDeviceCount()
        if number >= found:
            raise RuntimeError(f"{name}: CUDA finds {found} devices here: `python -m asyncsched` lists them")
        try:
            with self.current():
                self.free_at_start: int = self.free_bytes()
        except self.runtime.CUDARuntimeError as error:  # the first call that makes a context
            raise unusable(name, [refused(error)]) from error

    def open(self, max_bytes: int | None) -> None:
        """Make the pool. On the event loop's thread."""
        self.pool = PrivatePool(self.cupy, self.number, max_bytes, self.free_at_start, self.follow)

    def free_bytes(self) -> int:
        """Bytes that are free on the device, which is current. After a fault this raises.

        CuPy's own call would hold the GIL while it waits for the driver, which may load a kernel or free memory.
        """
        free = driver.free_bytes(self._primary)
        return int(self.runtime.memGetInfo()[0]) if free is None else free

    def cublas_workspace(self) -> int:
        """Bytes of workspace that a handle of cuBLAS's takes for itself, since CuPy gives it none.

        By the table in the documentation of `cublasSetWorkspace`; or by the environment, as pairs of a size in KiB and
        a count: ":4096:8".
        """
        sizes = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
        if sizes:
            return sum(int(size) * int(count) for size, count in sizes) << 10
        major = self.runtime.getDeviceProperties(self.number)["major"]
        return (32 << 20) if major >= _HOPPER else (4 << 20)

    def reach(self, other: int) -> None:
        """Before the first copy from another device: have such copies go straight across, if these two devices can.

        If they cannot, CUDA takes copies through the host. Only devices of one scheduler copy to each other, so only
        they get access, since access to a device makes a context there.
        """
        if other in self._reached:
            return
        self._reached.add(other)
        with suppress(self.runtime.CUDARuntimeError):  # access is enabled already, or cannot be
            if self.runtime.deviceCanAccessPeer(self.number, other):
                self.runtime.deviceEnablePeerAccess(other)

    # -- a thread's current device, which must be set back before an `await` ------------------------------------------

    @contextmanager
    def current(self) -> Iterator[None]:
        """Inside, this is CUDA's current device. Afterwards it is the one of before, which gets no context by that."""
        if self.runtime.getDevice() == self.number:
            yield
        elif driver.push(self._primary):
            try:
                yield
            finally:
                driver.pop()
        else:
            with self.cupy.cuda.Device(self.number):
                yield

    @contextmanager
    def here(self) -> Iterator[None]:
        """Inside, this is the current device and memory comes from the private pool. Do not `await` there."""
        with self.current(), self.cupy.cuda.using_allocator(self.pool.malloc):
            yield

    @contextmanager
    def on_own_thread(self) -> Iterator[None]:
        """`here`, on one of our threads, where the device stays the current one."""
        self.runtime.setDevice(self.number)
        with self.cupy.cuda.using_allocator(self.pool.malloc):
            yield

    def restore(self, stream: Any) -> bool:
        """After a user's function: make this device and the stream current again, and end a capture on the stream.

        Returns whether the stream captured. Work after that would only be recorded, and never launched.
        """
        runtime = self.runtime
        if runtime.getDevice() != self.number:
            runtime.setDevice(self.number)
        if self.cupy.cuda.get_current_stream() is not stream:
            stream.use()
        try:
            if not runtime.streamIsCapturing(stream.ptr):
                return False
            stream.end_capture()
        except RuntimeError as error:  # an error has spoiled the capture already
            if not of_capture(error):
                raise
            with suppress(RuntimeError):
                stream.end_capture()
        return True

    # -- events: making one takes long, so events that the host has seen are used again -------------------------------

    def take_event(self, timed: bool = False) -> Any:
        """An event, perhaps one that was given back. One that is timed takes the device longer to record."""
        try:
            return self._events[timed].pop()
        except IndexError:
            return self.new_event(timed)

    def new_event(self, timed: bool = False) -> Any:
        """A new event: blocking, so that a watcher sleeps."""
        return self.cupy.cuda.Event(block=True, disable_timing=not timed)

    def give_event(self, event: Any, timed: bool = False) -> None:
        """Take back an event that the host has seen."""
        self._events[timed].append(event)

    def seconds(self, event: Any) -> float:
        """When the device passed an event that is timed, in seconds of `perf_counter`. The host has seen that it did.

        By an event whose time on the host is known. CUDA gives the time between two events in milliseconds as a float
        of 32 bits. So that event is taken anew every `_KEPT` seconds, else the times would grow coarse.
        """
        base, at = self._base
        if base is None or perf_counter() - at > _KEPT:
            with self.current():
                base = self.cupy.cuda.Event(block=False, disable_timing=False)
                base.record(self.cupy.cuda.Stream(non_blocking=True))  # on which nothing ever waits
                base.synchronize()
                at = perf_counter()
            self._base = base, at
        return at + float(self.cupy.cuda.get_elapsed_time(base, event)) * 1e-3

    def record(self, event: Any, stream: int) -> bool:
        """Record an event on any stream, from any thread. Returns whether it did: not while the stream captures."""
        with capturing:
            try:
                if self.runtime.streamIsCapturing(stream):  # the null stream's raises if any blocking one captures
                    return False
                self.runtime.eventRecord(event.ptr, stream)
            except RuntimeError as error:
                if not of_capture(error):
                    raise
                return False
        return True

    def follow(self, stream: Any, pointer: int) -> bool:
        """Have a stream wait for all the work that another has by now. Returns whether it does: see `record`.

        Args:
            pointer: of the other stream.
        """
        event = self.new_event()  # a spare one could be recorded again while the stream still waits for it
        if not self.record(event, pointer):
            return False
        stream.wait_event(event)
        return True

    def passed(self, event: Any) -> bool:
        """Whether the device has passed an event. After a fault this raises; `Event.done` would say no for ever."""
        status = self.runtime.eventQuery(event.ptr)
        if status not in (0, _NOT_READY):
            raise self.runtime.CUDARuntimeError(status)
        return bool(status == 0)

    # -- the fault ----------------------------------------------------------------------------------------------------

    def lose(self, error: Exception, task: Task) -> None:
        """The device is lost: all unfinished tasks on it fail with this error, and so do all later ones.

        The first error counts, since errors of other streams say the same.
        """
        with self._fault_lock:
            if self.fault is None:
                error.add_note(self._cure)
                fault = Failure.of(error, task.name, task.site, frames=False)
                execution.fail(task, fault)
                self.fault = fault

    def lost(self, task: Task) -> None:
        """A task ended when the device was lost. An error of its own launch says the same, see `explain`."""
        assert self.fault is not None
        execution.void(task, self.fault.passed_to(task.name, task.site))

    def explain(self, error: BaseException) -> None:
        """If the device is lost, give an error of CUDA's the cure as a note, before anybody sees the error.

        The stream's watcher may learn of the loss later than a coroutine that awaits a failed task.
        """
        if type(error).__name__ in _OWN_ERRORS and self._cure not in getattr(error, "__notes__", ()):
            try:
                self.free_bytes()  # asks nothing of a stream, since that may capture
            except self.runtime.CUDARuntimeError:
                error.add_note(self._cure)


class Times:
    """When a task began and ended on the device; on the host, if the device is lost. For an instrument."""

    __slots__ = ("_context", "_events", "_issued")

    def __init__(self, context: CUDAContext) -> None:
        self._context = context
        self._issued = perf_counter()
        self._events: list[Any] = []  # before its work, and behind it

    def record(self, stream: Any) -> None:
        """Call it before the task puts its work on the stream, and again when that is there."""
        self._events.append(self._context.take_event(timed=True))
        self._events[-1].record(stream)

    def read(self, healthy: bool) -> tuple[float, float]:
        """When it began and ended, in seconds of `perf_counter`. Call it once."""
        if not healthy or len(self._events) < 2:  # it did not come so far
            return self._issued, max(self._issued, perf_counter())
        began, ended = [self._context.seconds(event) for event in self._events]
        for event in self._events:
            self._context.give_event(event, timed=True)
        return began, max(began, ended)
