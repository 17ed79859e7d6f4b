"""What the calls to the driver are made of: launches, and blocks of memory from the driver and back to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from . import errors
from .blocks import Block
from .clocks import merge
from .errors import CUDARuntimeError
from .fake import caller, current, gpu_works
from .machine import GPU, Queue, Work


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
    fake = current()
    with fake.lock:  # a list that is being sorted looks empty
        block = fake.space.find(address)
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


def synchronise(queue: Queue) -> None:
    """Wait, on the host, for all that is queued on a stream. The lock is held."""
    if queue.capture is not None:
        queue.capture.valid = False
        raise CUDARuntimeError(errors.CAPTURE_UNSUPPORTED)
    recording = queue.gpu.record(queue)
    current().wait_until(lambda: recording.done, queue.gpu)
    merge(current().seen, recording.clock)


def new_block(size: int) -> Block:
    """`cudaMalloc`: grows a pool, and may block."""
    fake = current()
    fake.blocks("cudaMalloc")
    gpu_works(fake.gpu())
    with fake.lock:
        if fake.space.allocated.get(fake.device(), 0) + size > fake.memory:
            raise CUDARuntimeError(errors.MEMORY_ALLOCATION)
        fake.statistics["mallocs"] += 1
        return fake.space.device(fake.device(), size)


def drop_block(block: Block) -> None:
    """`cudaFree`: gives a block back to the driver, which waits for the whole GPU first."""
    fake = current()
    fake.blocks("cudaFree")
    fake.statistics["frees"] += 1
    with fake.lock:
        gpu = fake.gpus[block.device]
        if not gpu.fault and threading.current_thread() is not gpu.thread:
            with contextlib.suppress(CUDARuntimeError):  # it failed meanwhile
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
