"""Faults, what blocks the loop, several devices, and what is shared behind the scenes."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from . import Fake, fake_cupy
from .conftest import streams


def test_after_a_fault_every_call_fails_and_no_event_completes(fake, cupy, a):
    runtime = cupy.cuda.runtime
    fake.fault_at(2)
    event = cupy.cuda.Event()
    with a:
        x = cupy.ones(4)
        y = x + 1
        event.record()
    with pytest.raises(runtime.CUDARuntimeError) as caught:
        event.synchronize()
    assert caught.value.status == 700
    assert runtime.eventQuery(event.ptr) == 700
    assert not event.done
    assert not a.done
    calls = [
        a.synchronize,
        a.record,
        lambda: a.wait_event(event),
        lambda: y + 1,
        cupy.cuda.Event,
        runtime.memGetInfo,
        lambda: cupy.cuda.MemoryPool().malloc(1),
        lambda: cupy.cuda.alloc_pinned_memory(1 << 20),
        y.get,
    ]
    for call in calls:
        with a, pytest.raises(runtime.CUDARuntimeError, match="an illegal memory access was encountered"):
            call()
    fake.settle()
    assert fake.statistics["faults"] == 1


def test_faults_come_at_random():
    faults = 0
    for seed in range(20):
        with fake_cupy(seed, fault_rate=0.1) as fake:
            import cupy

            (a,) = streams(cupy, 1)
            try:
                with a:
                    for _ in range(5):
                        cupy.ones(4)
                fake.settle()
            except cupy.cuda.runtime.CUDARuntimeError:
                pass
            faults += fake.statistics["faults"]
    assert 0 < faults < 20


def test_a_fault_wakes_whoever_waits(one, cupy, a):
    errors = []
    with one.pause():
        with a:
            cupy.ones(4)
        event = a.record()

        def wait():
            try:
                event.synchronize()
            except cupy.cuda.runtime.CUDARuntimeError as error:
                errors.append(error.status)

        thread = threading.Thread(target=wait)
        thread.start()
        one.fault_at(1)
    thread.join()
    assert errors == [700]


def test_what_blocks_the_loop_is_reported(one, cupy, blockbuster, a):
    blockbuster.deactivate()  # it would end the first of them
    x = cupy.ones(4)

    async def naive():
        with a:
            x.sum().item()
            cupy.empty(1 << 16)
            x.set(np.ones(4))
            a.record().synchronize()

    asyncio.run(naive())
    found = " ".join(one.loop_blocks)
    for what in ("compiling ('sum'", "cudaMalloc", "copy to pageable", "copy from pageable", "eventSynchronize"):
        assert what in found
    assert all("test_hazards.py" in line and "in naive" in line for line in one.loop_blocks)


def test_launching_what_is_compiled_in_memory_at_hand_does_not_block(one, cupy, a):
    with a:
        x = cupy.ones(4)
        x + 1

    async def launch():
        with a:
            event = (x + 1) is not None and a.record()
            cupy.cuda.runtime.eventQuery(event.ptr)

    asyncio.run(launch())
    assert one.loop_blocks == []


def test_without_a_loop_nothing_is_reported(one, cupy, a):
    with a:
        cupy.ones(4).sum().item()
    assert one.blocking
    assert one.loop_blocks == []


def test_each_function_compiles_once_for_each_set_of_dtypes(one, cupy):
    x, y = cupy.ones(4), cupy.ones((2, 2))
    before = one.statistics["compiles"]
    for operand in (x, y, x, x.astype("float32")):
        cupy.exp(operand)
    assert one.statistics["compiles"] == before + 3  # twice `exp`, and `astype`


@pytest.fixture
def two() -> Iterator[Fake]:
    with fake_cupy(devices=2) as fake:
        yield fake


def test_memory_and_streams_belong_to_a_device(two, cupy):
    with cupy.cuda.Device(1):
        a = cupy.cuda.Stream(non_blocking=True)
        with a:
            x = cupy.ones(4)
    assert x.device.id == 1
    assert x.__dlpack_device__() == (2, 1)
    with pytest.raises(RuntimeError, match="does not match with the current device"), a:
        pass
    assert cupy.cuda.runtime.getDevice() == 0


def test_another_devices_memory_needs_peer_access(two, cupy, a):
    with cupy.cuda.Device(1):
        x = cupy.ones(4)
        cupy.cuda.Device(1).synchronize()
    with a, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x + 1
    assert "Peer access" in str(caught[0].message)
    assert any("different from the current device" in race for race in two.races)


def test_with_peer_access_it_needs_an_event(two, cupy):
    runtime = cupy.cuda.runtime
    assert runtime.deviceCanAccessPeer(0, 1)
    runtime.deviceEnablePeerAccess(1)
    with pytest.raises(runtime.CUDARuntimeError, match="AlreadyEnabled"):
        runtime.deviceEnablePeerAccess(1)
    (a,) = streams(cupy, 1)
    with cupy.cuda.Device(1):
        (b,) = streams(cupy, 1)
        with b:
            x = cupy.ones(4)
            event = b.record()
    a.wait_event(event)
    with a:
        y = cupy.empty(4)
        runtime.memcpyPeerAsync(y.data.ptr, 0, x.data.ptr, 1, 32, a.ptr)
        assert (y + x).get().tolist() == [2.0] * 4
    assert two.problems() == []


def test_no_device():
    with fake_cupy(devices=0):
        import cupy

        assert not cupy.cuda.is_available()
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorNoDevice"):
            cupy.cuda.Stream(non_blocking=True)


@pytest.mark.parametrize("call", [lambda cupy: cupy.fft.fft(cupy.ones(4)), lambda cupy: cupy.random.rand(4)])
def test_plans_and_generators_must_be_used_one_at_a_time(one, cupy, call, a, b):
    with a:
        call(cupy)
        event = a.record()
    assert one.races == []
    with b:
        call(cupy)
    assert one.races
    one.races.clear()
    cupy.cuda.runtime.deviceSynchronize()
    a.wait_event(event)
    with a:
        call(cupy)
    assert one.races == []


def test_it_goes_without_a_trace():
    import sys

    with fake_cupy():
        import cupy

        assert cupy.__version__ == "14.0.0"
    assert not {"cupy", "cupy.cuda", "cupyx"} & set(sys.modules)
    assert not [
        thread.name for thread in threading.enumerate() if thread.name.startswith("fake GPU") and thread.is_alive()
    ]


def test_a_query_while_a_thread_compiles_stops_the_loop(one, cupy, a):
    event = a.record()
    one.settle()
    one.busy += 1  # as a thread inside the compiler does

    async def naive():
        return event.done

    assert asyncio.run(naive())
    assert "eventQuery while the driver was busy" in one.loop_blocks[0]


def test_two_threads_that_meet_a_new_kernel_both_compile_it(one, cupy, monkeypatch):
    x = cupy.ones(4)
    inside, go_on = threading.Event(), threading.Event()

    def wait_once():
        if threading.current_thread() is other:
            inside.set()
            go_on.wait()

    monkeypatch.setattr("os.sched_yield", wait_once)
    other = threading.Thread(target=lambda: cupy.exp(x))
    other.start()
    inside.wait()
    cupy.exp(x)
    go_on.set()
    other.join()
    assert len(one.duplicate_compiles) == 1


def test_a_fault_reaches_the_device_that_waits_for_it(two, cupy):
    (a,) = streams(cupy, 1)
    with two.pause():
        with a:
            cupy.ones(4)
        event = a.record()
        with cupy.cuda.Device(1):
            (b,) = streams(cupy, 1)
            b.wait_event(event)
        two.fault_at(1, device=0)
    two.settle()
    assert [gpu.fault for gpu in two.gpus] == [700, 700]


def test_a_thread_that_does_not_end_is_named(monkeypatch):
    monkeypatch.setattr("tests.fake_cupy.modules._PATIENCE", 0)
    go_on = threading.Event()
    earlier, thread = (threading.Thread(target=go_on.wait, name=f"asyncsched {name}") for name in ("early", "stuck"))
    earlier.start()
    with pytest.raises(RuntimeError, match=r"\['asyncsched stuck'\]"), fake_cupy():
        thread.start()
    go_on.set()
    earlier.join()
    thread.join()
