"""Each hazard bites where it is met naively, and correct use is clean."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from . import Fake, fake_cupy

SEEDS = range(10)


@pytest.fixture(params=SEEDS)
def fake(request: pytest.FixtureRequest) -> Iterator[Fake]:
    with fake_cupy(request.param) as fake:
        yield fake


@pytest.fixture
def one() -> Iterator[Fake]:
    with fake_cupy() as fake:
        yield fake


@pytest.fixture
def cupy(request: pytest.FixtureRequest) -> Any:
    """After `fake` or `one`."""
    import cupy

    return cupy


def streams(cupy: Any, count: int = 2) -> list[Any]:
    return [cupy.cuda.Stream(non_blocking=True) for _ in range(count)]


def pinned(cupy: Any, content: Any) -> Any:
    memory = cupy.cuda.alloc_pinned_memory(content.nbytes)
    array = np.frombuffer(memory, content.dtype, content.size).reshape(content.shape)
    array[...] = content
    return array


# Streams and events.


def test_a_program_on_two_streams_ordered_by_an_event_is_clean(fake, cupy):
    a, b = streams(cupy)
    with a:
        x = cupy.arange(12.0).reshape(3, 4)
        y = (x @ x.T + 1)[1:]
        event = a.record()
    b.wait_event(event)
    with b:
        z = y.sum(axis=0, keepdims=True) * 2
        found = z.get()
    expected = np.arange(12.0).reshape(3, 4)
    assert np.array_equal(found, (expected @ expected.T + 1)[1:].sum(axis=0, keepdims=True) * 2)
    del x, y, z
    fake.settle()
    assert fake.problems() == []
    assert fake.live_bytes() == 0


def test_a_read_on_another_stream_without_a_wait_is_a_race_even_if_it_came_out_right(fake, cupy):
    a, b = streams(cupy)
    with a:
        x = cupy.ones(4)
    fake.settle()
    with b:
        y = x + 1
    assert y.shape == (4,)
    assert any("'add' (reads" in race and "'ones' (writes" in race for race in fake.races)


def test_a_race_names_the_seed():
    with fake_cupy(seed=77) as fake:
        fake.race("one")
        assert fake.problems() == ["race: one (fake CuPy, seed 77)"]


def test_what_the_host_has_seen_needs_no_event(fake, cupy):
    a, b = streams(cupy)
    with a:
        x = cupy.ones(4)
    a.synchronize()
    with b:
        found = (x + 1).get()
    assert found.tolist() == [2.0] * 4
    assert fake.races == []


def test_two_reads_do_not_race_and_a_write_after_a_read_does(one, cupy):
    a, b = streams(cupy)
    with a:
        x = cupy.ones(4)
    a.synchronize()
    with a:
        y = x + 1
    with b:
        z = x + 2
    assert one.races == []
    with b:
        x[0] = 5
    assert any("'setitem' (writes" in race and "'add' (reads" in race for race in one.races)
    assert y.shape == z.shape


def test_disjoint_parts_of_a_block_do_not_race(one, cupy):
    a, b = streams(cupy)
    with a:
        x = cupy.zeros(8)
    a.synchronize()
    for stream, part in ((a, x[:4]), (b, x[4:])):
        with stream:
            part += 1
    assert one.races == []


def test_waiting_on_an_event_never_recorded_does_nothing(one, cupy):
    a, b = streams(cupy)
    event = cupy.cuda.Event()
    with a:
        x = cupy.ones(4)
    b.wait_event(event)
    with b:
        x + 1
    assert one.statistics["waits_on_nothing"] == 1
    assert one.races


def test_a_wait_is_for_the_recording_at_the_time_of_the_call(one, cupy):
    a, b = streams(cupy)
    event = cupy.cuda.Event()
    event.record(a)
    b.wait_event(event)
    with a:
        x = cupy.ones(4)
    event.record(a)
    with b:
        x + 1
    assert one.races
    one.races.clear()
    b.wait_event(event)
    with b:
        x + 1
    assert one.races == []


def test_an_event_lies_until_it_is_recorded(one, cupy):
    (a,) = streams(cupy, 1)
    event = cupy.cuda.Event(block=True, disable_timing=True)
    query = cupy.cuda.runtime.eventQuery
    assert event.done
    assert query(event.ptr) == 0
    with one.pause():
        with a:
            cupy.ones(4)
        event.record(a)
        assert not event.done
        assert query(event.ptr) == 600
        assert not a.done
    event.synchronize()
    assert event.done


def test_the_pointer_of_a_destroyed_stream_is_the_next_ones(one, cupy):
    first = cupy.cuda.Stream(non_blocking=True)
    pointer = first.ptr
    del first
    second = cupy.cuda.Stream(non_blocking=True)
    assert second.ptr == pointer


def test_a_reused_pointer_is_another_stream_to_the_clocks(one, cupy):
    first = cupy.cuda.Stream(non_blocking=True)
    with first:
        x = cupy.ones(4)
    del first
    second = cupy.cuda.Stream(non_blocking=True)
    with second:
        x + 1
    assert one.races


def test_the_default_stream_and_blocking_streams_are_reported(one, cupy):
    cupy.ones(4)
    assert "test_fake.py" in one.default_stream_launches[0]
    cupy.cuda.Stream()
    assert "test_fake.py" in one.blocking_streams[0]


def test_blocking_streams_are_serialised_with_the_default_stream(one, cupy):
    blocking = cupy.cuda.Stream()
    with blocking:
        x = cupy.ones(4)
    y = x + 1
    with blocking:
        found = (y + 1).get()
    assert found.tolist() == [3.0] * 4
    assert one.races == []


def test_the_current_stream_belongs_to_a_thread(one, cupy):
    (a,) = streams(cupy, 1)
    seen = []
    with a:
        thread = threading.Thread(target=lambda: seen.append(cupy.cuda.get_current_stream()))
        thread.start()
        thread.join()
        assert cupy.cuda.get_current_stream() is a
    assert seen == [cupy.cuda.Stream.null]
    assert cupy.cuda.get_current_stream() == cupy.cuda.Stream.null


def test_callbacks_are_reported(one, cupy):
    (a,) = streams(cupy, 1)
    called = []
    a.launch_host_func(called.append, 3)
    one.settle()
    assert called == [3]
    assert one.host_callbacks


# Memory.


def test_freeing_what_another_stream_still_reads_is_a_race_and_poisons_it(one, cupy):
    a, b = streams(cupy)
    with a:
        x = cupy.ones(4)
        event = a.record()
    one.settle()
    b.wait_event(event)
    with one.pause(), b:
        y = x + 1
        del x
    assert y.get(b).tolist() != [2.0] * 4
    assert any("freed" in race for race in one.races)


def test_freeing_after_the_host_has_seen_the_last_use_is_clean(fake, cupy):
    a, b = streams(cupy)
    with a:
        x = cupy.ones(4)
        event = a.record()
    b.wait_event(event)
    with b:
        y = x + 1
        last = b.record()
    last.synchronize()
    del x
    assert y.get(b).tolist() == [2.0] * 4
    assert fake.problems() == []


def test_temporaries_of_one_stream_may_go_at_launch(fake, cupy):
    (a,) = streams(cupy, 1)
    with a:
        found = (((cupy.ones(4) + 1) * 2) - 3).get()
    assert found.tolist() == [1.0] * 4
    assert fake.problems() == []


def test_a_freed_block_is_the_next_one_of_its_stream_only(one, cupy):
    a, b = streams(cupy)
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        with a:
            x = cupy.empty(100)
            pointer = x.data.ptr
            del x
        with b:
            assert cupy.empty(100).data.ptr != pointer
        with a:
            x = cupy.empty(100)
        assert x.data.ptr == pointer
    assert pool.used_bytes() == 1024
    assert pool.total_bytes() == 2048
    assert pool.free_bytes() == 1024
    pool.free_all_blocks()
    assert pool.total_bytes() == 1024


def test_new_memory_is_poisoned(one, cupy):
    (a,) = streams(cupy, 1)
    with a:
        assert cupy.empty(4, "uint8").get().tolist() == [0xDB] * 4
    x = cupy.ones(600, "uint8")
    view = x.numpy_view()
    one.settle()
    cupy.cuda.runtime.deviceSynchronize()
    del x
    assert set(view.tolist()) == {0xDB}


def test_a_pool_at_its_limit_is_out_of_memory(one, cupy):
    pool = cupy.cuda.MemoryPool()
    pool.set_limit(size=1024)
    assert pool.get_limit() == 1024
    held = pool.malloc(1)
    with pytest.raises(
        cupy.cuda.memory.OutOfMemoryError, match=r"allocating 1,024 bytes \(allocated so far: 512 bytes"
    ):
        pool.malloc(1024)
    del held
    assert pool.malloc(1024).mem.size == 1024  # the free block went back to the device first


def test_a_full_device_is_out_of_memory():
    with fake_cupy(memory=4096) as fake:
        import cupy

        assert cupy.cuda.runtime.memGetInfo() == (4096, 4096)
        held = cupy.cuda.MemoryPool().malloc(3000)
        assert cupy.cuda.Device().mem_info == (1024, 4096)
        assert fake.live_bytes() == 3072
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.cuda.MemoryPool().malloc(2000)
        del held


def test_the_allocator_belongs_to_a_thread(one, cupy):
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        held = cupy.empty(4)
        thread = threading.Thread(target=lambda: cupy.empty(4))
        thread.start()
        thread.join()
        with pytest.raises(ValueError, match="Can't change the global allocator"):
            cupy.cuda.set_allocator()
    assert held.data.mem.size == pool.used_bytes() == 512
    assert one.statistics["default_pool"] == 1


# Copies.


def test_a_copy_from_pinned_memory_is_late(fake, cupy):
    (a,) = streams(cupy, 1)
    source = pinned(cupy, np.arange(4.0))
    with a:
        x = cupy.empty(4)
        with fake.pause():
            x.set(source)
            source[0] = 9
    fake.settle()
    assert x.get(a)[0] == 9
    assert any("pinned memory changed" in race for race in fake.races)


def test_refilling_pinned_memory_the_host_has_not_seen_copied_is_a_race_though_the_copy_has_run(one, cupy):
    (a,) = streams(cupy, 1)
    source = pinned(cupy, np.arange(4.0))
    with a:
        x = cupy.empty(4)
        x.set(source)
        one.settle()
        source[0] = 9
        x.set(source)
    assert any("before the host had seen the end" in race for race in one.races)


def test_refilling_it_after_the_event_is_clean(fake, cupy):
    (a,) = streams(cupy, 1)
    source = pinned(cupy, np.arange(4.0))
    with a:
        x = cupy.empty(4)
        for i in range(5):
            source[0] = i
            x.set(source)
            event = a.record()
            event.synchronize()
    assert x.get(a)[0] == 4
    assert fake.races == []


def test_a_copy_to_pinned_memory_is_late_and_the_target_poisoned_until_then(fake, cupy):
    (a,) = streams(cupy, 1)
    target = pinned(cupy, np.zeros(4))
    with a:
        x = cupy.ones(4)
        with fake.pause():
            x.get(out=target, blocking=False)
            assert set(target.view(np.uint8).tolist()) == {0xDB}
        a.synchronize()
    assert target.tolist() == [1.0] * 4
    assert fake.races == []


def test_pinned_memory_freed_under_a_copy_is_a_race_and_poisoned(one, cupy):
    (a,) = streams(cupy, 1)
    source = pinned(cupy, np.arange(4.0))
    with a:
        x = cupy.empty(4)
        with one.pause():
            x.set(source)
            del source
    assert set(x.get(a).view(np.uint8).tolist()) == {0xDB}
    assert any("freed" in race for race in one.races)


def test_the_pinned_pool_hands_the_same_bytes_out_again(one, cupy):
    pool = cupy.cuda.PinnedMemoryPool()
    first = pool.malloc(700)
    assert first.size() == 1024
    pointer = first.ptr
    del first
    assert pool.n_free_blocks() == 1
    again = pool.malloc(1000)
    assert again.ptr == pointer
    assert isinstance(again, cupy.cuda.PinnedMemoryPointer)
    assert one.pinned_bytes() == 1024


def test_a_copy_from_ordinary_memory_blocks_but_is_right(fake, cupy):
    (a,) = streams(cupy, 1)
    source = np.arange(4.0)
    before = fake.statistics["blocking_calls"]
    with a:
        x = cupy.asarray(source)
        source[:] = 9
        assert x.get().tolist() == [0, 1, 2, 3]
    assert fake.statistics["blocking_calls"] > before
    assert fake.races == []


def test_async_copies_by_pointer(fake, cupy):
    (a,) = streams(cupy, 1)
    runtime = cupy.cuda.runtime
    source, target = pinned(cupy, np.arange(4.0)), pinned(cupy, np.zeros(4))
    x = cupy.ndarray((4,), float, cupy.cuda.alloc(32))
    runtime.memcpyAsync(x.data.ptr, source.ctypes.data, 32, runtime.memcpyHostToDevice, a.ptr)
    runtime.memcpyAsync(target.ctypes.data, x.data.ptr, 32, runtime.memcpyDeviceToHost, a.ptr)
    runtime.streamSynchronize(a.ptr)
    assert target.tolist() == [0, 1, 2, 3]
    assert fake.problems() == []


def test_a_wild_pointer_is_an_illegal_address(one, cupy):
    runtime = cupy.cuda.runtime
    x = cupy.empty(4)
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorIllegalAddress"):
        runtime.memcpyAsync(x.data.ptr, x.data.ptr + (1 << 30), 32, runtime.memcpyDeviceToDevice, 0)


# Faults.


def test_after_a_fault_every_call_fails_and_no_event_completes(fake, cupy):
    (a,) = streams(cupy, 1)
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


def test_a_fault_wakes_whoever_waits(one, cupy):
    (a,) = streams(cupy, 1)
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


# The event loop.


def test_what_blocks_the_loop_is_reported(one, cupy, blockbuster):
    blockbuster.deactivate()  # it would end the first of them
    (a,) = streams(cupy, 1)
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
    assert all("test_fake.py" in line and "in naive" in line for line in one.loop_blocks)


def test_launching_what_is_compiled_in_memory_at_hand_does_not_block(one, cupy):
    (a,) = streams(cupy, 1)
    with a:
        x = cupy.ones(4)
        x + 1

    async def launch():
        with a:
            event = (x + 1) is not None and a.record()
            cupy.cuda.runtime.eventQuery(event.ptr)

    asyncio.run(launch())
    assert one.loop_blocks == []


def test_without_a_loop_nothing_is_reported(one, cupy):
    (a,) = streams(cupy, 1)
    with a:
        cupy.ones(4).sum().item()
    assert one.statistics["blocking_calls"]
    assert one.loop_blocks == []


def test_each_function_compiles_once_for_each_set_of_dtypes(one, cupy):
    x, y = cupy.ones(4), cupy.ones((2, 2))
    before = one.statistics["compiles"]
    for operand in (x, y, x, x.astype("float32")):
        cupy.exp(operand)
    assert one.statistics["compiles"] == before + 3  # twice `exp`, and `astype`


# Graphs.


def captured(cupy: Any, stream: Any, work: Any) -> Any:
    with stream:
        stream.begin_capture()
        work()
        return stream.end_capture()


def test_a_graph_runs_when_it_is_launched_and_not_before(fake, cupy):
    (a,) = streams(cupy, 1)
    with a:
        x = cupy.zeros(4)
        x += 1
    graph = captured(cupy, a, lambda: x.__iadd__(1))
    assert x.get(a).tolist() == [1.0] * 4
    for _ in range(3):
        graph.launch(a)
    assert x.get(a).tolist() == [4.0] * 4
    assert fake.races == []


def test_a_graph_on_another_stream_needs_a_wait(one, cupy):
    a, b = streams(cupy)
    with a:
        x = cupy.zeros(4)
    graph = captured(cupy, a, lambda: x.__iadd__(1))
    graph.launch(b)
    assert one.races


def test_synchronising_during_capture_spoils_it(one, cupy):
    (a,) = streams(cupy, 1)
    error = cupy.cuda.runtime.CUDARuntimeError
    with a:
        x = cupy.zeros(4)
        a.begin_capture()
        assert a.is_capturing()
        x += 1
        with pytest.raises(error, match="cudaErrorStreamCaptureUnsupported"):
            a.synchronize()
        with pytest.raises(error, match="cudaErrorStreamCaptureInvalidated"):
            a.end_capture()
    assert not a.is_capturing()


def test_the_pool_cannot_grow_during_a_strict_capture(one, cupy):
    (a,) = streams(cupy, 1)
    with a:
        a.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorStreamCaptureUnsupported"):
            cupy.empty(4)


def test_a_graph_keeps_no_memory_alive(one, cupy):
    (a,) = streams(cupy, 1)
    with a:
        x = cupy.zeros(4)
    held = [x]
    del x
    graph = captured(cupy, a, lambda: held[0].__iadd__(1))
    a.synchronize()
    held.clear()
    graph.launch(a)
    assert any("no longer as it was captured" in race for race in one.races)


def test_another_stream_joins_a_capture_by_an_event(one, cupy):
    a, b = streams(cupy)
    with a:
        x = cupy.zeros(4)
        a.begin_capture()
        x += 1
        b.wait_event(a.record())
        with b:
            x += 2
        a.wait_event(b.record())
        graph = a.end_capture()
        graph.launch()
        assert x.get().tolist() == [3.0] * 4
    assert one.races == []


# Several devices.


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


def test_another_devices_memory_needs_peer_access(two, cupy):
    with cupy.cuda.Device(1):
        x = cupy.ones(4)
        cupy.cuda.Device(1).synchronize()
    (a,) = streams(cupy, 1)
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


# What is shared behind the scenes.


@pytest.mark.parametrize("call", [lambda cupy: cupy.fft.fft(cupy.ones(4)), lambda cupy: cupy.random.rand(4)])
def test_plans_and_generators_must_be_used_one_at_a_time(one, cupy, call):
    a, b = streams(cupy)
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


# Arrays.


def test_an_ndarray_of_numpy_is_refused(one, cupy):
    x = cupy.ones(4)
    for call in (lambda: x + np.ones(4), lambda: cupy.add(np.ones(4), x), lambda: np.ones(4) + x):
        with pytest.raises(TypeError, match="Unsupported type"):
            call()
    with pytest.raises(TypeError, match="Implicit conversion to a NumPy array is not allowed"):
        np.asarray(x)


def test_only_what_cupy_has(one, cupy):
    with pytest.raises(AttributeError, match="'vecdot'"):
        cupy.vecdot  # noqa: B018
    with pytest.raises(TypeError, match="'mode'"):
        cupy.take(cupy.ones(4), cupy.zeros(1, int), mode="wrap")
    with pytest.raises(TypeError, match="'where'"):
        cupy.exp(cupy.ones(4), where=cupy.ones(4, bool))
    with pytest.raises(AttributeError, match="writeable"):
        cupy.ones(4).flags.writeable  # noqa: B018
    assert isinstance(cupy.exp, cupy.ufunc)
    assert not isinstance(cupy.matmul, cupy.ufunc)


def test_views_share_memory_and_collapse_to_the_owner(one, cupy):
    x = cupy.arange(12).reshape(3, 4)
    owner = x.base
    assert owner.flags.owndata
    for view in (x[1:], x.T[::-1], x[0, 0], x.reshape(-1), cupy.broadcast_to(x, (2, 3, 4)), cupy.flip(x)):
        assert view.base is owner
        assert not view.flags.owndata
    assert x[2, 1].data.ptr == x.data.ptr + 9 * 8
    x[1:][0, 0] = 99
    assert int(x[1, 0]) == 99


def test_the_owner_can_be_watched(one, cupy):
    x = cupy.arange(12)
    gone = []
    watch = weakref.ref(x, gone.append)
    view = x[2:]
    del x
    assert watch() is view.base
    del view
    gc.collect()
    assert gone


def test_shapes_that_depend_on_data_are_waited_for(fake, cupy):
    (a,) = streams(cupy, 1)
    with a:
        x = cupy.arange(6) % 3
        assert x[x > 0].get().tolist() == [1, 2, 1, 2]
        assert [part.tolist() for part in cupy.nonzero(x)] == [[1, 2, 4, 5]]
        x[x > 1] = 7
        assert x.tolist() == [0, 1, 7, 0, 1, 7]
    assert fake.problems() == []


CALLS = [
    lambda xp, x, y: x + y * 2 - 1,
    lambda xp, x, y: xp.where(x > 1, x, y),
    lambda xp, x, y: xp.concatenate([x, y], axis=1),
    lambda xp, x, y: xp.stack([x, y.T.copy().T]),
    lambda xp, x, y: x.T @ y,
    lambda xp, x, y: xp.var(x, axis=0, ddof=1, keepdims=True),
    lambda xp, x, y: xp.cumsum(x, axis=1, dtype="float32"),
    lambda xp, x, y: xp.argsort(-x, axis=0, kind="stable"),
    lambda xp, x, y: xp.sort(xp.flip(y, 1), axis=1),
    lambda xp, x, y: x[xp.asarray([2, 0])],
    lambda xp, x, y: xp.take(x, xp.asarray([1, 1]), axis=1),
    lambda xp, x, y: xp.take_along_axis(x, xp.argsort(y, axis=1), 1),
    lambda xp, x, y: xp.searchsorted(xp.sort(x.ravel()), y),
    lambda xp, x, y: xp.add(x, y, out=xp.empty_like(x)),
    lambda xp, x, y: xp.clip(x, 1.0, y),
    lambda xp, x, y: xp.repeat(xp.tile(x, (1, 2)), 2, axis=0),
    lambda xp, x, y: xp.einsum("ij,ij->i", x, y),
    lambda xp, x, y: xp.tril(xp.roll(x, 1)),
    lambda xp, x, y: divmod(x, y + 1)[1],
    lambda xp, x, y: (x + 1j * y).imag,
    lambda xp, x, y: 2.0 ** -abs(x),
    lambda xp, x, y: xp.full_like(x, 3, dtype="int16"),
    lambda xp, x, y: xp.linspace(0, 1, num=5, dtype="float32"),
    lambda xp, x, y: x.astype("int8").view("uint8"),
]


@pytest.mark.parametrize("call", CALLS)
def test_functions_give_numpys_bytes_and_layout(one, cupy, call):
    (a,) = streams(cupy, 1)
    x, y = np.arange(12.0).reshape(3, 4) / 5, np.asfortranarray(np.arange(12.0)[::-1].reshape(3, 4))
    with a:
        device_x, device_y = cupy.asarray(x), cupy.asarray(y)
        result = call(cupy, device_x, device_y)
        found = result.get()
    expected = call(np, x, y)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert result.strides == expected.strides
    assert found.tobytes() == expected.tobytes()
    assert one.problems() == []


def test_dlpack_orders_the_consumers_stream(one, cupy):
    a, b = streams(cupy)
    with a:
        x = cupy.ones(4)

    class Export:
        """As from a library whose current stream is `a`."""

        __dlpack_device__ = x.__dlpack_device__

        def __dlpack__(self, *, stream: int) -> Any:
            with a:
                return x.__dlpack__(stream=stream)

    with b:
        assert (cupy.from_dlpack(Export()) + 1).get().tolist() == [2.0] * 4
    assert one.problems() == []
    with b, pytest.raises(TypeError, match="CPU arrays"):
        cupy.from_dlpack(np.ones(4))


def test_an_error_in_a_kernel_is_kept_for_the_test(one, cupy):
    x = cupy.arange(4)
    x[cupy.asarray([9])]
    one.settle()
    assert "IndexError" in one.kernel_errors[0]


def test_it_goes_without_a_trace():
    import sys

    with fake_cupy():
        import cupy

        assert cupy.__version__ == "14.0.0"
    assert not {"cupy", "cupy.cuda", "cupyx"} & set(sys.modules)
    assert not [
        thread.name for thread in threading.enumerate() if thread.name.startswith("fake GPU") and thread.is_alive()
    ]
