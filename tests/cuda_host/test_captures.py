"""Captures: what was enqueued meanwhile runs when its graph is launched, and what CUDA refuses is refused."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def x(cuda):
    import cupy

    x = cupy.zeros(1000)
    cupy.cuda.Stream.null.synchronize()
    return x


def test_a_graph_runs_when_it_is_launched_as_often_as_it_is(streams, x):
    import cupy

    stream, other = streams(), streams()
    with stream:
        x += 1  # compiles
        stream.begin_capture()
        x += 1
        cupy.multiply(x, x, out=x)
        graph = stream.end_capture()
        assert x.get(stream=stream).max() == 1
        graph.launch(stream)
        assert x.get(stream=stream).max() == 4
    graph.launch(other)
    assert x.get(stream=other).max() == 25


@pytest.mark.parametrize(
    ("what", "code", "spoilt"),
    [
        ("allocating", 900, False),
        ("freeing", 900, False),
        ("a copy from pageable memory", 900, False),
        ("waiting for the stream", 900, True),
        ("waiting for the device", 900, True),
        ("waiting for an event from outside", 905, True),
    ],
)
def test_a_capture_refuses(cuda, streams, what, code, spoilt):
    block, host, outside, stream = cuda.malloc(80), np.zeros(10), streams().record(), streams()
    calls = {
        "allocating": lambda: cuda.malloc(80),
        "freeing": lambda: cuda.free(block),
        "a copy from pageable memory": lambda: cuda.memcpyAsync(block, host.ctypes.data, 80, 1, stream.ptr),
        "waiting for the stream": lambda: cuda.streamSynchronize(stream.ptr),
        "waiting for the device": cuda.deviceSynchronize,
        "waiting for an event from outside": lambda: cuda.streamWaitEvent(stream.ptr, outside.ptr),
    }
    stream.begin_capture(cuda.streamCaptureModeThreadLocal)
    with pytest.raises(cuda.CUDARuntimeError) as caught:
        calls[what]()
    assert caught.value.status == code
    if spoilt:
        with pytest.raises(cuda.CUDARuntimeError, match="Invalidated"):
            stream.end_capture()
    else:
        stream.end_capture()
    cuda.free(block)


def test_the_null_stream_cannot_be_captured_nor_used_while_a_stream_that_waits_for_it_is(cuda):
    import cupy

    with pytest.raises(cuda.CUDARuntimeError, match="Unsupported"):
        cuda.streamBeginCapture(0)
    blocking, event = cupy.cuda.Stream(), cupy.cuda.Event()
    blocking.begin_capture()
    for call in (lambda: cuda.streamIsCapturing(0), lambda: event.record(cupy.cuda.Stream.null)):
        with pytest.raises(cuda.CUDARuntimeError, match="Implicit"):
            call()
    blocking.end_capture()
    event.record(cupy.cuda.Stream.null)
