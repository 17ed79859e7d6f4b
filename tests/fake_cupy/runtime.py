"""`cupy.cuda.runtime`: pointers and numbers in, CUDA's errors out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from . import errors
from .blocks import POISON, Block, device_of, host_bytes, is_device
from .clocks import before as over
from .clocks import merge
from .errors import CUDARuntimeError
from .fake import caller, current, gpu_works
from .machine import GPU, Queue, Work

eventDefault, eventBlockingSync, eventDisableTiming, eventInterprocess = 0, 1, 2, 4
streamDefault, streamNonBlocking, streamLegacy, streamPerThread = 0, 1, 1, 2
streamCaptureModeGlobal, streamCaptureModeThreadLocal, streamCaptureModeRelaxed = 0, 1, 2
memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice, memcpyDefault = range(5)
hostAllocDefault, hostAllocPortable = 0, 1
errorMemoryAllocation, errorPeerAccessAlreadyEnabled = 2, 704
is_hip = False


def driverGetVersion() -> int:
    return 13000


def runtimeGetVersion() -> int:
    return 12090


def getDeviceCount() -> int:
    count = len(current().gpus)
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


def deviceGetAttribute(attribute: int, device: int) -> int:
    return 0


def memGetInfo() -> tuple[int, int]:
    fake = current()
    gpu_works(fake.gpu())
    return fake.memory - fake.space.allocated.get(fake.device(), 0), fake.memory


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
    return int(device != peer)


def deviceEnablePeerAccess(peer: int) -> None:
    peers = current().gpu().peers
    if peer in peers:
        raise CUDARuntimeError(errors.PEER_ALREADY_ENABLED)
    peers.add(peer)


def deviceDisablePeerAccess(peer: int) -> None:
    current().gpu().peers.discard(peer)


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
        queue = fake.queue(stream)
        _not_capturing(queue)
        recording = queue.gpu.record(queue)
        fake.wait_until(lambda: recording.done, queue.gpu)
        merge(fake.seen, recording.clock)


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


def _not_capturing(queue: Queue) -> None:
    if queue.capture is not None:
        queue.capture.valid = False
        raise CUDARuntimeError(errors.CAPTURE_UNSUPPORTED)


# Events.


def eventCreate() -> int:
    return eventCreateWithFlags(eventDefault)


def eventCreateWithFlags(flags: int) -> int:
    fake = current()
    gpu_works(fake.gpu())
    with fake.lock:
        pointer = 0x2000 + 16 * fake.next_number()
        fake.events[pointer] = None
        fake.event_gpus[pointer] = fake.gpu()
        fake.statistics["events"] += 1
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
        fake.events[event] = queue.gpu.record(queue)
        fake.statistics["records"] += 1


def eventQuery(event: int) -> int:
    """A number, never an exception. An event that was never recorded is done."""
    fake = current()
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
        if recording.capture is not None:
            return errors.CAPTURE_UNSUPPORTED
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
        if recording.capture is not None:
            recording.capture.valid = False
            raise CUDARuntimeError(errors.CAPTURE_UNSUPPORTED)
        fake.wait_until(lambda: recording.done, gpu)
        merge(fake.seen, recording.clock)


def eventElapsedTime(start: int, end: int) -> float:
    return 0.0


def _recording(event: int) -> Any:
    events = current().events
    if event not in events:
        raise CUDARuntimeError(errors.INVALID_HANDLE)
    return events[event]


# Memory.


def new_block(size: int) -> Block:
    """`cudaMalloc`: grows a pool, and may block."""
    fake = current()
    fake.blocks("cudaMalloc")
    gpu_works(fake.gpu())
    with fake.lock:
        for capture in fake.captures:
            here = capture.thread == threading.get_ident()
            if capture.mode == streamCaptureModeGlobal or (capture.mode == streamCaptureModeThreadLocal and here):
                capture.valid = False
                raise CUDARuntimeError(errors.CAPTURE_UNSUPPORTED)
        if fake.space.allocated.get(fake.device(), 0) + size > fake.memory:
            raise CUDARuntimeError(errors.MEMORY_ALLOCATION)
        fake.statistics["mallocs"] += 1
        return fake.space.device(fake.device(), size)


def drop_block(block: Block) -> None:
    """`cudaFree`: gives a block back to the driver, which waits for the whole GPU first."""
    fake = current()
    fake.blocks("cudaFree")
    with fake.lock:
        gpu = fake.gpus[block.device]
        if not gpu.fault and threading.current_thread() is not gpu.thread:
            fake.wait_until(gpu.idle, gpu)
        fake.space.release(block)


def new_pinned(size: int) -> Block:
    """`cudaHostAlloc`: memory of the host that copies can reach asynchronously."""
    fake = current()
    fake.blocks("cudaHostAlloc")
    gpu_works(fake.gpu())
    with fake.lock:
        fake.statistics["host_allocs"] += 1
        return fake.space.pinned(size)


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    fake = current()
    fake.blocks("memcpy")
    memcpyAsync(dst, src, size, kind, 0)
    streamSynchronize(0)


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    """From or to pinned memory it is asynchronous; from or to other host memory it blocks."""
    _copy(dst, src, size, stream)


def memcpyPeerAsync(dst: int, dstDevice: int, src: int, srcDevice: int, size: int, stream: int) -> None:
    if device_of(dst) != dstDevice or device_of(src) != srcDevice:
        raise CUDARuntimeError(errors.INVALID_VALUE)
    _copy(dst, src, size, stream)


def memset(ptr: int, value: int, size: int) -> None:
    memsetAsync(ptr, value, size, 0)


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    launch(stream, "memset", lambda target: target.fill(value), [], [(ptr, size)])


def _copy(dst: int, src: int, size: int, stream: int) -> None:
    fake = current()
    fake.statistics["copies"] += 1
    with fake.lock:
        pageable_source = not is_device(src) and fake.space.find(src) is None
        pageable_target = not is_device(dst) and fake.space.find(dst) is None
    if pageable_source:
        fake.blocks("copy from pageable memory")
        content = host_bytes(src, size).copy()
        launch(stream, "copy from host", lambda target: np.copyto(target, content), [], [(dst, size)])
        return
    if pageable_target:
        fake.blocks("copy to pageable memory")
        target = host_bytes(dst, size)
        launch(stream, "copy to host", lambda source: np.copyto(target, source), [(src, size)], [])
        streamSynchronize(stream)
        return
    _copy_pinned(dst, src, size, stream)


def _copy_pinned(dst: int, src: int, size: int, stream: int) -> None:
    """The bytes are moved when the GPU comes to it. Until then nobody may write to the source or read the target."""
    fake = current()
    before: Any = None
    with fake.lock:
        gpu_works(fake.queue(stream).gpu)
        if not is_device(dst):
            block_at(dst, size).slice(dst, size).fill(POISON)  # seen by whoever reads it too early
        if not is_device(src) and fake.queue(stream).capture is None:
            before = block_at(src, size).slice(src, size).copy()
            _sources_unchanged(block_at(src, size))

    def run(source: Any, target: Any) -> None:
        if before is not None and not np.array_equal(before, source):
            fake.race(f"pinned memory changed before the copy from it, launched on stream {stream:#x}, had run")
        np.copyto(target, source)

    launch(stream, "copy", run, [(src, size)], [(dst, size)])
    if before is not None:
        block = block_at(src, size)
        block.sources.append((block.accesses[-1], before))


def _sources_unchanged(block: Block) -> None:
    """What earlier copies read, and the host has not seen complete, must be as it was when they were launched."""
    fake = current()
    block.sources = [(access, before) for access, before in block.sources if not over(access, fake.seen)]
    for access, before in block.sources:
        if not np.array_equal(before, block.slice(access.low, access.high - access.low)):
            fake.race(f"pinned memory was written to before the host had seen the end of {access}")


def launch(
    stream: int, what: str, run: Callable[..., None], reads: list[tuple[int, int]], writes: list[tuple[int, int]]
) -> None:
    """Queue `run(*sources, *targets)`, with each as an array of bytes."""
    fake = current()
    with fake.lock:
        queue = fake.queue(stream)
        gpu_works(queue.gpu)
        touches, views = [], []
        for address, size in (*reads, *writes):
            block = block_at(address, size)
            views.append(block.slice(address, size))
            touches.append((block, address, address + size, len(touches) >= len(reads)))
        enqueue(queue, Work(what, lambda: run(*views), touches))


def block_at(address: int, size: int) -> Block:
    """The live block that holds so many bytes from an address on."""
    block = current().space.find(address)
    if block is None or address + size > block.address + block.size:
        raise CUDARuntimeError(errors.ILLEGAL_ADDRESS)
    return block


def enqueue(queue: Queue, work: Work) -> None:
    """Launch on a stream; the legacy default stream is reported. The lock is held."""
    fake = current()
    fake.statistics["launches"] += 1
    if queue.pointer == 0:
        fake.default_stream_launches.append(f"{work.what} at {caller()}")
    gpu: GPU = queue.gpu
    gpu.launch(queue, work)
