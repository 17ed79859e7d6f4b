"""Profilers are told which task runs: ITT on the CPU, NVTX on CUDA; and instruments are told the device's own times."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cuda.device import CUDADevice
from asyncsched.observe import Recording
from tests.fake_cupy import fake_cupy
from tests.fake_cupy.fake import Fake
from tests.waiting import until

BLOCK = np.ones(1 << 14)


@pytest.fixture
def fake() -> Any:
    with fake_cupy() as found:
        yield found


class ITT(ModuleType):
    """What `ittapi` offers, which writes down what it is told."""

    def __init__(self) -> None:
        super().__init__("ittapi")
        self.told: list[tuple[Any, ...]] = []

    def domain(self, name: str) -> str:
        return name

    def string_handle(self, name: str) -> str:
        return name

    def task_begin(self, domain: str, name: str) -> None:
        self.told.append(("begin", domain, name, threading.get_ident()))

    def task_end(self, domain: str) -> None:
        self.told.append(("end", domain, threading.get_ident()))


async def test_a_task_of_the_cpu_is_an_itt_task_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    itt = ITT()
    monkeypatch.setitem(sys.modules, "ittapi", itt)
    async with asc.Scheduler("cpu", instruments=[asc.observe.Marks()]) as s:
        await s.call(max, 1, 2)
    (begin, *name, thread), (end, domain, same) = itt.told
    assert (begin, name, end, domain) == ("begin", ["asyncsched", "max"], "end", "asyncsched")
    assert thread == same != threading.get_ident()


async def test_the_real_ittapi_takes_it() -> None:
    pytest.importorskip("ittapi")
    async with asc.Scheduler("cpu", instruments=[asc.observe.Marks()]) as s:
        assert [await s.call(max, 1, i) for i in (2, 3)] == [2, 3]


async def test_without_ittapi_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ittapi", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"asyncsched\[vtune\]"):
        asc.Scheduler("cpu", instruments=[asc.observe.Marks()])


async def test_each_task_of_cuda_is_a_range_from_its_issue_to_its_end(fake: Fake) -> None:
    """Start and end, not push and pop: it begins on one thread and ends on another, and ranges overlap."""
    device = CUDADevice(0, 2)
    async with asc.Scheduler(device, max_ops=None, instruments=[asc.observe.Marks()]) as s:
        x = await s.put(BLOCK)
        with fake.pause():
            tensors = [x + i for i in range(10)]
            await until(lambda: len(fake.ranges) == 10)
            assert set(fake.ranges.values()) == {"add"}
        await asc.gather(*tensors)
        await s.barrier()
        del tensors, x
    assert fake.ranges == {}
    assert fake.statistics["ranges"] >= 11


async def test_a_trace_has_the_times_of_the_card(fake: Fake, tmp_path: Path) -> None:
    began = perf_counter()
    trace = asc.Trace(tmp_path / "run.json")
    async with asc.Scheduler(CUDADevice(0, 2), instruments=[trace]) as s:
        x = await s.put(BLOCK)
        with fake.pause():
            y = x + 1
            await until(lambda: all(stream.issued.count == stream.launched for stream in s.devices[0].streams))
            resumed = perf_counter()
        await y
        await s.barrier()
        del x, y
    await asyncio.to_thread(trace.close)
    found = await asyncio.to_thread(Recording.read, tmp_path / "run.json")
    put, add = found.tasks
    assert (put.name, add.name, put.device) == ("put", "add", "cuda:0")
    for task in (put, add):
        assert task.launched is not None
        assert task.began is not None
        assert task.ended is not None
        assert task.launched <= task.began <= task.ended <= task.done
    assert add.ended is not None
    assert add.ended > resumed - found.metadata["perf_counter"] > 0  # not when it was issued
    assert found.metadata["perf_counter"] - began < 60


async def test_without_an_instrument_no_event_notes_its_time(fake: Fake) -> None:
    async with asc.Scheduler(CUDADevice(0, 2)) as s:
        x = await s.put(BLOCK)
        await (x + 1)
        del x
    assert not fake.timed
