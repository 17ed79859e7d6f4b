"""`cupy.cuda.runtime`: pointers and numbers in, CUDA's errors out."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from . import errors
from .blocks import is_device
from .clocks import merge
from .copies import memcpyAsync, memcpyPeerAsync
from .errors import CUDARuntimeError
from .fake import caller, current, gpu_works
from .launching import synchronise

__all__ = ["CUDARuntimeError", "memcpyAsync", "memcpyPeerAsync"]

streamNonBlocking = 1
memoryTypeUnregistered, memoryTypeHost, memoryTypeDevice = 0, 1, 2
memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3


def driverGetVersion() -> int:
    return 13000


def runtimeGetVersion() -> int:
    return 12090


def getDeviceCount() -> int:
    count = len(current().gpus)
    if current().process != os.getpid():
        raise CUDARuntimeError(errors.INITIALIZATION)
    if not count:
        raise CUDARuntimeError(errors.NO_DEVICE)
    return count


def getDevice() -> int:
    return current().device()


def setDevice(device: int) -> None:
    if not 0 <= device < getDeviceCount():
        raise CUDARuntimeError(errors.INVALID_DEVICE)
    current().local.device = device


def getDeviceProperties(device: int) -> dict[str, Any]:
    return {
        "name": b"Fake GPU",
        "totalGlobalMem": current().memory,
        "major": 9,
        "minor": 0,
        "multiProcessorCount": 2,
        "asyncEngineCount": 2,
    }


def deviceGetPCIBusId(device: int) -> str:
    return f"0000:{device:02x}:00.0"


def memGetInfo() -> tuple[int, int]:
    fake = current()
    gpu_works(fake.gpu())
    return fake.memory - fake.space.allocated.get(fake.device(), 0), fake.memory


def pointerGetAttributes(ptr: int) -> SimpleNamespace:
    fake = current()
    with fake.lock:
        found = fake.space.find(ptr)
    host = memoryTypeUnregistered if found is None else memoryTypeHost
    return SimpleNamespace(type=memoryTypeDevice if is_device(ptr) else host)


def deviceSynchronize() -> None:
    fake = current()
    fake.blocks("deviceSynchronize")
    with fake.lock:
        gpu = fake.gpu()
        if any(queue.capture for queue in gpu.queues):
            raise CUDARuntimeError(errors.CAPTURE_UNSUPPORTED)
        fake.wait_until(gpu.idle, gpu)
        for queue in gpu.queues:
            merge(fake.seen, queue.clock)


def deviceCanAccessPeer(device: int, peer: int) -> int:
    return int(device != peer and not current().apart)


def deviceEnablePeerAccess(peer: int) -> None:
    peers = current().gpu().peers
    if peer in peers:
        raise CUDARuntimeError(errors.PEER_ALREADY_ENABLED)
    peers.add(peer)


# Streams. A destroyed stream's pointer is the next one's.


def streamCreateWithFlags(flags: int) -> int:
    fake = current()
    gpu_works(fake.gpu())
    with fake.lock:
        if not flags & streamNonBlocking:
            fake.blocking_streams.append(caller())
        pointer = fake.free_pointers.pop() if fake.free_pointers else 0x1000 + 16 * fake.next_number()
        fake.gpu().add_queue(pointer, not flags & streamNonBlocking)
        fake.statistics["streams"] += 1
        return pointer


def streamDestroy(stream: int) -> None:
    fake = current()
    with fake.lock:
        queue = fake.queue(stream)
        del queue.gpu.by_pointer[stream]
        fake.free_pointers.append(stream)


def streamQuery(stream: int) -> int:
    fake = current()
    fake.queries("streamQuery")
    with fake.lock:
        queue = fake.queue(stream)
        if queue.gpu.fault:
            return queue.gpu.fault
        if queue.capture is not None:
            queue.capture.valid = False
            return errors.CAPTURE_UNSUPPORTED
        if queue.work:
            return errors.NOT_READY
        merge(fake.seen, queue.clock)
        return errors.SUCCESS


def streamSynchronize(stream: int) -> None:
    fake = current()
    fake.blocks("streamSynchronize")
    with fake.lock:
        synchronise(fake.queue(stream))


def streamIsCapturing(stream: int) -> bool:
    """On the null stream an error while a blocking stream captures."""
    fake = current()
    with fake.lock:
        queue = fake.queue(stream)
        gpu_works(queue.gpu)
        if queue is queue.gpu.null and any(other.blocking and other.capture for other in queue.gpu.queues):
            raise CUDARuntimeError(errors.CAPTURE_IMPLICIT)
        return queue.capture is not None


def streamWaitEvent(stream: int, event: int, flags: int = 0) -> None:
    fake = current()
    with fake.lock:
        queue = fake.queue(stream)
        gpu_works(queue.gpu)
        recording = _recording(event)
        if recording is None:
            fake.statistics["waits_on_nothing"] += 1
            return
        fake.statistics["waits"] += 1
        queue.gpu.wait(queue, recording)


# Events.


def eventCreateWithFlags(flags: int) -> int:
    fake = current()
    gpu_works(fake.gpu())
    with fake.lock:
        pointer = 0x2000 + 16 * fake.next_number()
        fake.events[pointer] = None
        fake.event_gpus[pointer] = fake.gpu()
        fake.statistics["events"] += 1
        fake.statistics[f"events with flags {flags}"] += 1
        if not flags & 2:  # cudaEventDisableTiming
            fake.timed.add(pointer)
        return pointer


def eventDestroy(event: int) -> None:
    fake = current()
    with fake.lock:
        fake.events.pop(event, None)


def eventRecord(event: int, stream: int) -> None:
    fake = current()
    with fake.lock:
        queue = fake.queue(stream)
        gpu_works(queue.gpu)
        _recording(event)
        if fake.event_gpus[event] is not queue.gpu:
            raise CUDARuntimeError(errors.INVALID_HANDLE)
        fake.events[event] = queue.gpu.record(queue, ordered=True)
        fake.statistics["records"] += 1


def eventQuery(event: int) -> int:
    """A number, never an exception. An event that was never recorded is done."""
    fake = current()
    fake.queries("eventQuery")
    with fake.lock:
        if event not in fake.events:
            return errors.INVALID_HANDLE
        recording = _recording(event)
        gpu = fake.event_gpus[event]
        if gpu.fault:
            return gpu.fault
        if recording is None:
            fake.statistics["queries_of_nothing"] += 1
            return errors.SUCCESS
        if not recording.done:
            return errors.NOT_READY
        merge(fake.seen, recording.clock)
        return errors.SUCCESS


def eventSynchronize(event: int) -> None:
    fake = current()
    fake.blocks("eventSynchronize")
    with fake.lock:
        recording = _recording(event)
        gpu = fake.event_gpus[event]
        gpu_works(gpu)
        if recording is None:
            return
        fake.wait_until(lambda: recording.done, gpu)
        merge(fake.seen, recording.clock)


def eventElapsedTime(start: int, end: int) -> float:
    """In milliseconds, between two events that note their times and have passed; negative the other way round."""
    fake = current()
    with fake.lock:
        if not (start in fake.timed and end in fake.timed):
            raise CUDARuntimeError(errors.INVALID_HANDLE)
        first, last = _recording(start), _recording(end)
        gpu_works(fake.event_gpus[end])
        if first is None or last is None:
            raise CUDARuntimeError(errors.INVALID_HANDLE)
        if not (first.done and last.done):
            raise CUDARuntimeError(errors.NOT_READY)
        return float(last.at - first.at) * 1e3


def _recording(event: int) -> Any:
    events = current().events
    if event not in events:
        raise CUDARuntimeError(errors.INVALID_HANDLE)
    return events[event]
