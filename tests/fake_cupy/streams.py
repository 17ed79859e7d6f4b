"""`cupy.cuda.stream`: streams, events, and which stream is current on each thread."""

from __future__ import annotations

from typing import Any

from . import errors, runtime
from .errors import CUDARuntimeError
from .fake import current, gpu_works
from .graphs import Graph
from .machine import Capture


class _Current:
    """What is current on one thread, for each device."""

    def __init__(self, devices: int) -> None:
        self.streams: list[Any] = [Stream.null] * devices
        self.stacks: list[list[Any]] = [[Stream.null] for _ in range(devices)]
        self.entered: list[int] = []


def _current() -> _Current:
    fake = current()
    if not hasattr(fake.local, "streams"):
        fake.local.streams = _Current(len(fake.gpus))
    found: _Current = fake.local.streams
    return found


def get_current_stream(device_id: int = -1) -> Any:
    """The stream that is current on this thread."""
    return _current().streams[runtime.getDevice() if device_id == -1 else device_id]


class Event:
    """A CUDA event. Before it is recorded it counts as done."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.ptr = 0
        self._fake = current()
        self.ptr = runtime.eventCreateWithFlags(block | disable_timing << 1)

    def __del__(self) -> None:
        if self.ptr and not self._fake.stopped:
            runtime.eventDestroy(self.ptr)

    @property
    def done(self) -> bool:
        """False for ever after a fault."""
        return runtime.eventQuery(self.ptr) == 0

    def record(self, stream: Any = None) -> None:
        runtime.eventRecord(self.ptr, (stream or get_current_stream()).ptr)

    def synchronize(self) -> None:
        runtime.eventSynchronize(self.ptr)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    return runtime.eventElapsedTime(start_event.ptr, end_event.ptr)


class _BaseStream:
    """What all streams can do."""

    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr = ptr
        self.device_id = device_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BaseStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"

    def __enter__(self) -> Any:
        device, this = self._device(), _current()
        this.stacks[device].append(self)
        this.entered.append(device)
        this.streams[device] = self
        return self

    def __exit__(self, *exception: object) -> None:
        this = _current()
        device = this.entered.pop()
        this.stacks[device].pop()
        this.streams[device] = this.stacks[device][-1]

    def use(self) -> Any:
        _current().streams[self._device()] = self
        return self

    def _device(self) -> int:
        device = runtime.getDevice()
        if self.device_id not in (-1, device):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id})"
                f" does not match with the current device ({device})"
            )
        return device

    @property
    def done(self) -> bool:
        return runtime.streamQuery(self.ptr) == 0

    def synchronize(self) -> None:
        runtime.streamSynchronize(self.ptr)

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        runtime.eventRecord(event.ptr, self.ptr)
        return event

    def wait_event(self, event: Event) -> None:
        runtime.streamWaitEvent(self.ptr, event.ptr)

    def begin_capture(self) -> None:
        """Of the relaxed kind: others may allocate meanwhile."""
        fake = current()
        if self.ptr in (0, 1):
            raise RuntimeError("cannot capture on the default (legacy) stream")
        with fake.lock:
            queue = fake.queue(self.ptr)
            gpu_works(queue.gpu)
            queue.capture = Capture()

    def end_capture(self) -> Graph:
        fake = current()
        with fake.lock:
            queue = fake.queue(self.ptr)
            capture, queue.capture = queue.capture, None
            if capture is None:
                raise CUDARuntimeError(errors.INVALID_VALUE)
            if not capture.valid:
                raise CUDARuntimeError(errors.CAPTURE_INVALIDATED)
            return Graph(capture.work)

    def is_capturing(self) -> bool:
        return current().queue(self.ptr).capture is not None


class Stream(_BaseStream):
    """A CUDA stream. Destroyed with its last reference, and then its pointer is the next stream's."""

    null: Any

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self._fake = None
        if null:
            super().__init__(0, -1)
            return
        fake = current()
        super().__init__(runtime.streamCreateWithFlags(int(non_blocking)), fake.device())
        self._fake = fake

    def __del__(self) -> None:
        if self._fake is not None and not self._fake.stopped:
            runtime.streamDestroy(self.ptr)


Stream.null = Stream(null=True)


class ExternalStream(_BaseStream):
    """A stream that somebody else destroys."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        super().__init__(ptr, device_id)
