"""Fakes of CuPy for the tests of the CUDA device, and what must hold after each of them."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cuda.device import CUDADevice
from tests.fake_cupy import Fake, at_rest, fake_cupy
from tests.ledger import engine_of, used
from tests.waiting import until

BLOCK = np.ones((32, 32), np.float32)


@pytest.fixture(params=[1, 2], ids=["seed 1", "seed 2"])
def fake(request: pytest.FixtureRequest) -> Iterator[Fake]:
    """A fake with one GPU, by seed."""
    yield from checked(fake_cupy(request.param))


@pytest.fixture
def three() -> Iterator[Fake]:
    """A fake with three GPUs that reach each other's memory."""
    yield from checked(fake_cupy(3, devices=3))


def checked(context: Any) -> Iterator[Fake]:
    """No race, no blocked loop, nothing on the legacy stream, and nothing left behind."""
    with context as fake:
        yield fake
        assert at_rest(fake) == []
        gc.collect()
        assert problems(fake) == []
        assert fake.statistics["waits_on_nothing"] == 0
        assert fake.ranges == {}
        assert_nothing_left_set()
        assert fake.statistics["faults"] or fake.live_bytes() == sum(block.size for block in fake.shared.values())


def problems(fake: Fake) -> list[str]:
    """What went wrong. Freeing memory of a lost device returns at once, wherever it is done."""
    return [line for line in fake.problems() if not (fake.statistics["faults"] and "cudaFree" in line)]


def assert_nothing_left_set() -> None:
    """No stream, device or allocator is current on this thread but what is so at the start."""
    import cupy

    assert cupy.cuda.get_current_stream() == cupy.cuda.Stream.null
    assert cupy.cuda.runtime.getDevice() == 0
    assert cupy.cuda.get_allocator() == cupy.get_default_memory_pool().malloc


def assert_ledgers_zero(s: asc.Scheduler) -> None:
    """Nothing is charged, pending or in flight any more, once what is on its way back has come."""
    while engine_of(s).completions.returning:  # the janitor's
        os.sched_yield()
    statistics = s.statistics()  # takes in what was posted
    assert statistics.tasks_pending == statistics.tasks_in_flight == 0
    assert used(s) == 0


class CrossingDevice(CUDADevice):
    """Short tasks, too, go from stream to stream."""

    hop = 0.0


@asynccontextmanager
async def opened(streams: int = 2, *, spin: float = 0.0, **options: Any) -> AsyncIterator[asc.Scheduler]:
    """A scheduler on the fake, with these options."""
    async with asc.Scheduler(CrossingDevice(0, streams, spin=spin), **options) as s:
        yield s


def issued(s: asc.Scheduler) -> int:
    """Tasks that the compute streams have issued."""
    return sum(stream.issued.count for stream in s.devices[0].streams)


async def all_issued(s: asc.Scheduler) -> int:
    """How many those are, once all that the streams were given count as issued: an end may be told just before."""
    await until(lambda: issued(s) == sum(stream.launched for stream in s.devices[0].streams))
    return issued(s)


def finished(s: asc.Scheduler) -> int:
    """Tasks whose end the host has seen."""
    return sum(stream.finished.count for stream in s.devices[0].streams)


def threads_of_schedulers() -> list[threading.Thread]:
    """All but the one that answers signals, for as long as the process lives."""
    names = ((thread, thread.name) for thread in threading.enumerate())
    return [thread for thread, name in names if name.startswith("asyncsched") and name != "asyncsched explains"]


async def ended() -> None:
    """Let the loop turn until the streams' threads have ended their work, and drop what is garbage."""
    await until(lambda: not threads_of_schedulers())
    gc.collect()


class Exported:
    """An array whose last kernel is on a stream of its own: whoever imports it says which stream is to wait."""

    def __init__(self, array: Any, stream: Any) -> None:
        self.array, self.stream = array, stream

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        with self.stream:
            return self.array.__dlpack__(stream=stream, **options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()
