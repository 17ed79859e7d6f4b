"""Streams and events: what comes before what, and what does not."""

from __future__ import annotations

import numpy as np
import pytest


def test_a_stream_keeps_its_order_though_it_sleeps_at_random(streams):
    import cupy

    with streams() as stream:
        x = cupy.zeros(1000, np.int64)
        for i in range(300):
            x = x * 3 + i if i % 2 else x - i
        expected = np.zeros(1000, np.int64)
        for i in range(300):
            expected = expected * 3 + i if i % 2 else expected - i
        assert (x.get(stream=stream) == expected).all()


def test_another_stream_waits_for_nobody_unless_it_is_told_to(gate, streams):
    import cupy

    first, second = streams(), streams()
    with first:
        x = cupy.zeros(4)
    first.synchronize()
    gate.shut(first)
    with first:
        x += 1
    with second:
        assert x.get(stream=second).max() == 0
    second.wait_event(first.record())
    with second:
        y = x * 2
    assert not second.done
    gate.open()
    assert y.get(stream=second).max() == 2


def test_an_event_that_was_never_recorded_is_waited_for_by_nobody(streams):
    import cupy

    stream, event = streams(), cupy.cuda.Event()
    stream.wait_event(event)
    stream.synchronize()
    assert event.done


def test_a_wait_is_for_the_recording_at_the_time_of_the_call(gate, streams):
    import cupy

    first, second, event = streams(), streams(), cupy.cuda.Event()
    event.record(first)
    second.wait_event(event)
    gate.shut(first)
    event.record(first)
    second.synchronize()
    assert not event.done


@pytest.mark.parametrize("blocking", [True, False])
def test_the_null_stream_waits_for_streams_that_block_and_they_for_it(gate, blocking):
    import cupy

    stream = cupy.cuda.Stream(non_blocking=not blocking)
    gate.shut(stream)
    x = cupy.zeros(4)  # on the null stream
    with stream:
        y = x + 1
    null = cupy.cuda.Stream.null
    done = null.record()
    if not blocking:
        null.synchronize()
    assert done.done == (not blocking)
    gate.open()
    null.synchronize()
    stream.synchronize()
    assert (cupy.cuda.runtime.streamGetFlags(stream.ptr) == 0) == blocking
    assert y.shape == (4,)


def test_a_stream_belongs_to_its_device(cuda, streams):
    import cupy

    stream = streams()
    event = cupy.cuda.Event()
    with cupy.cuda.Device(1), pytest.raises(cuda.CUDARuntimeError, match="InvalidResourceHandle"):
        cupy.cuda.Event().record(stream)
    event.record(stream)


def test_what_is_copied_from_pinned_memory_is_read_late_and_from_other_memory_at_once(cuda, gate, streams):
    import cupy

    stream, target = streams(), cupy.zeros((2, 8), np.uint8)
    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(8), np.uint8, 8)
    ordinary = np.ones(8, np.uint8)
    pinned[:] = 1
    cupy.cuda.Stream.null.synchronize()
    gate.shut(stream)
    for row, source in zip(target, (pinned, ordinary), strict=True):
        cuda.memcpyAsync(row.data.ptr, source.ctypes.data, 8, cuda.memcpyHostToDevice, stream.ptr)
        source[:] = 2
    gate.open()
    assert target.get(stream=stream)[:, 0].tolist() == [2, 1]


def test_a_kernels_threads_meet_at_barriers_and_exchange_what_they_hold():
    import cupy

    code = """
    extern "C" __global__ void total(const int* x, int* out) {
        __shared__ int sums[8];
        int v = x[blockIdx.x * blockDim.x + threadIdx.x];
        for (int by = 16; by; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
        __syncthreads();
        if (threadIdx.x == 0) { v = 0; for (int i = 0; i < 8; i++) v += sums[i]; out[blockIdx.x] = v; }
    }"""
    x = cupy.arange(3 * 256, dtype=np.int32)
    out = cupy.zeros(3, np.int32)
    cupy.RawKernel(code, "total")((3,), (256,), (x, out))
    assert out.tolist() == np.arange(3 * 256).reshape(3, 256).sum(axis=1).tolist()
