"""Memory and faults: what reads too late or too far fails the device, and it stays so."""

from __future__ import annotations

import threading

import numpy as np
import pytest

ILLEGAL_ADDRESS = "IllegalAddress"


@pytest.fixture
def block(cuda):
    """4 KiB of the device, as bytes; not the pool's."""
    import cupy

    memory = cupy.cuda.Memory(4096)
    return cupy.ndarray(4096, np.uint8, cupy.cuda.MemoryPointer(memory, 0))


def test_what_was_never_written_is_no_number(block):
    assert np.isnan(block.view(np.float32).get()).all()


def test_a_read_after_the_free_is_a_fault(cuda, streams):
    import cupy

    start, stream = cuda.malloc(4096), streams()
    held = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(start, 4096, None), 0)
    x = cupy.ndarray(4096, np.uint8, held)
    with stream:
        y = x + 1
    stream.synchronize()
    cuda.free(start)
    with stream:
        y = x + 1
    with pytest.raises(cuda.CUDARuntimeError, match=ILLEGAL_ADDRESS):
        stream.synchronize()
    del y


def test_what_is_freed_in_the_order_of_a_stream_is_there_for_what_came_before(cuda, gate, streams):
    import cupy

    stream, other = streams(), streams()
    start = cuda.mallocAsync(4096, stream.ptr)
    x = cupy.ndarray(4096, np.uint8, cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(start, 4096, None), 0))
    gate.shut(stream)
    with stream:
        x.fill(1)
        y = x + 1
        cuda.freeAsync(start, stream.ptr)
    gate.open()
    assert y.get(stream=stream).max() == 2
    with other:  # which nobody ordered before the free
        x + 1
    with pytest.raises(cuda.CUDARuntimeError, match=ILLEGAL_ADDRESS):
        other.synchronize()


def test_a_write_past_the_end_is_a_fault(cuda, block):
    import cupy

    kernel = cupy.RawKernel('extern "C" __global__ void far(char* p) { p[1ll << 40] = 1; }', "far")
    kernel((1,), (1,), (block,))
    with pytest.raises(cuda.CUDARuntimeError, match=ILLEGAL_ADDRESS):
        cupy.cuda.Stream.null.synchronize()


def test_a_fault_stays_and_is_the_devices_own(cuda, runtime, streams):
    import cupy

    stream, event = streams(), cupy.cuda.Event()
    with cupy.cuda.Device(1), cupy.cuda.Stream(non_blocking=True) as there:
        x = cupy.zeros(3)
    runtime.fail(0)
    for call in (
        lambda: cuda.malloc(8),
        lambda: event.record(stream),
        lambda: cuda.memGetInfo(),
        stream.synchronize,
        stream.synchronize,
    ):
        with pytest.raises(cuda.CUDARuntimeError, match=ILLEGAL_ADDRESS):
            call()
    assert cuda.eventQuery(event.ptr) == 700
    with cupy.cuda.Device(1), there:
        assert (x + 1).get(stream=there).tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["device", "pinned"])
def test_freeing_waits_for_the_device(cuda, gate, streams, kind):
    stream = streams()
    start = cuda.malloc(4096) if kind == "device" else cuda.hostAlloc(4096, 0)
    gate.shut(stream)
    freeing = threading.Thread(target=cuda.free if kind == "device" else cuda.freeHost, args=(start,))
    freeing.start()
    freeing.join(0.1)
    assert freeing.is_alive()
    gate.open()
    freeing.join()


def test_a_device_has_so_much_memory_and_no_more(cuda):
    free, total = cuda.memGetInfo()
    assert free <= total
    start = cuda.malloc(free // 2)
    with pytest.raises(cuda.CUDARuntimeError, match="MemoryAllocation"):
        cuda.malloc(free - free // 2 + 4096)
    cuda.free(start)
    assert cuda.memGetInfo() == (free, total)
