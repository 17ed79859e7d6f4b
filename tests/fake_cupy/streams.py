"""`cupy.cuda.stream`, `device` and `graph`: streams, events, devices and what is current on each thread."""

from __future__ import annotations

from typing import Any

from . import errors, runtime
from .errors import CUDARuntimeError
from .fake import current, gpu_works
from .machine import Capture, Queue, Work


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

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.ptr = 0
        if interprocess and not disable_timing:
            raise ValueError("Timing must be disabled for interprocess events")
        self._fake = current()
        self.ptr = runtime.eventCreateWithFlags(block | disable_timing << 1 | interprocess << 2)

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

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

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

    @property
    def is_non_blocking(self) -> bool:
        return not current().queue(self.ptr).blocking

    def synchronize(self) -> None:
        runtime.streamSynchronize(self.ptr)

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        runtime.eventRecord(event.ptr, self.ptr)
        return event

    def wait_event(self, event: Event) -> None:
        runtime.streamWaitEvent(self.ptr, event.ptr)

    def launch_host_func(self, callback: Any, arg: Any) -> None:
        """Reported; after a fault it is never called."""
        fake = current()
        with fake.lock:
            fake.host_callbacks.append(repr(callback))
            runtime.enqueue(fake.queue(self.ptr), Work("host callback", lambda: callback(arg)))

    def add_callback(self, callback: Any, arg: Any) -> None:
        self.launch_host_func(lambda given: callback(self, 0, given), arg)

    def begin_capture(self, mode: int | None = None) -> None:
        fake = current()
        if self.ptr in (0, 1):
            raise RuntimeError("cannot capture on the default (legacy) stream")
        with fake.lock:
            queue = fake.queue(self.ptr)
            gpu_works(queue.gpu)
            queue.capture = Capture(queue, runtime.streamCaptureModeRelaxed if mode is None else mode)
            fake.captures.append(queue.capture)

    def end_capture(self) -> Graph:
        fake = current()
        with fake.lock:
            capture = fake.queue(self.ptr).capture
            if capture is None:
                raise CUDARuntimeError(errors.INVALID_VALUE)
            fake.captures.remove(capture)
            for queue in capture.streams:
                queue.capture = None
            if not capture.valid:
                raise CUDARuntimeError(errors.CAPTURE_INVALIDATED)
            return Graph._of(capture.work)

    def is_capturing(self) -> bool:
        return current().queue(self.ptr).capture is not None


class Stream(_BaseStream):
    """A CUDA stream. Destroyed with its last reference, and then its pointer is the next stream's."""

    null: Any
    ptds: Any

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        self._fake = None
        if null or ptds:
            super().__init__(2 if ptds else 0, -1)
            return
        fake = current()
        super().__init__(runtime.streamCreateWithFlags(int(non_blocking)), fake.device())
        self._fake = fake

    def __del__(self) -> None:
        if self._fake is not None and not self._fake.stopped:
            runtime.streamDestroy(self.ptr)


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)


class ExternalStream(_BaseStream):
    """A stream that somebody else destroys."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        super().__init__(ptr, device_id)


class Graph:
    """Captured work. It keeps no memory alive: a block given to another since the capture is a race."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "currently this class cannot be initiated by the user and must be created via stream capture"
        )

    @classmethod
    def _of(cls, work: list[Work]) -> Graph:
        graph = cls.__new__(cls)
        graph._work = [(step, [(t[0], t[0].used, t[0].handed_out) for t in step.touches]) for step in work]
        return graph

    def launch(self, stream: Any = None) -> None:
        fake = current()
        with fake.lock:
            queue: Queue = fake.queue((stream or get_current_stream()).ptr)
            gpu_works(queue.gpu)
            for step, blocks in self._work:
                for block, used, handed_out in blocks:
                    if not block.live or (used, handed_out) != (block.used, block.handed_out):
                        fake.race(f"a graph with {step.what!r} uses a block that is no longer as it was captured")
                runtime.enqueue(queue, Work(step.what, step.run, step.touches, replayed=True))

    def upload(self, stream: Any = None) -> None:
        """Nothing to do ahead of a launch."""


class Device:
    """A GPU by number; the current one by default."""

    def __init__(self, device: Any = None) -> None:
        self._fake = current()
        self.id = runtime.getDevice() if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __enter__(self) -> Device:
        local = self._fake.local
        local.__dict__.setdefault("devices", []).append(self._fake.device())
        runtime.setDevice(self.id)
        return self

    def __exit__(self, *exception: object) -> None:
        self._fake.local.device = self._fake.local.devices.pop()

    def use(self) -> None:
        runtime.setDevice(self.id)

    def synchronize(self) -> None:
        with self:
            runtime.deviceSynchronize()

    @property
    def mem_info(self) -> tuple[int, int]:
        with self:
            return runtime.memGetInfo()

    @property
    def compute_capability(self) -> str:
        return "90"

    @property
    def pci_bus_id(self) -> str:
        return f"0000:0{self.id}:00.0"

    @property
    def attributes(self) -> dict[str, int]:
        return {"MultiProcessorCount": 2, "AsyncEngineCount": 2, "ConcurrentKernels": 1}


def get_device_id() -> int:
    return runtime.getDevice()
