"""Memory of the device, pinned memory and copies: each hazard bites, and correct use is clean."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from . import fake_cupy
from .conftest import pinned


def test_freeing_what_another_stream_still_reads_is_a_race_and_poisons_it(one, cupy, a, b):
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


def test_freeing_after_the_host_has_seen_the_last_use_is_clean(fake, cupy, a, b):
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


def test_temporaries_of_one_stream_may_go_at_launch(fake, cupy, a):
    with a:
        found = (((cupy.ones(4) + 1) * 2) - 3).get()
    assert found.tolist() == [1.0] * 4
    assert fake.problems() == []


def test_a_freed_block_is_the_next_one_of_its_stream_only(one, cupy, a, b):
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


def test_new_memory_is_poisoned(one, cupy, a):
    with a:
        assert cupy.empty(4, "uint8").get().tolist() == [0xDB] * 4
    x = cupy.ones(600, "uint8")
    view = x.numpy_view()
    one.settle()
    cupy.cuda.runtime.deviceSynchronize()
    del x
    assert set(view.tolist()) == {0xDB}


def test_a_full_device_is_out_of_memory():
    with fake_cupy(memory=4096) as fake:
        import cupy

        assert cupy.cuda.runtime.memGetInfo() == (4096, 4096)
        held = cupy.cuda.MemoryPool().malloc(3000)
        assert cupy.cuda.runtime.memGetInfo() == (1024, 4096)
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
    assert held.data.mem.size == pool.used_bytes() == 512
    assert one.statistics["default_pool"] == 1


def test_a_copy_from_pinned_memory_is_late(fake, cupy, a):
    source = pinned(cupy, np.arange(4.0))
    with a:
        x = cupy.empty(4)
        with fake.pause():
            x.set(source)
            source[0] = 9
    fake.settle()
    assert x.get(a)[0] == 9
    assert any("pinned memory changed" in race for race in fake.races)


def test_refilling_pinned_memory_the_host_has_not_seen_copied_is_a_race_though_the_copy_has_run(one, cupy, a):
    source = pinned(cupy, np.arange(4.0))
    with a:
        x = cupy.empty(4)
        x.set(source)
        one.settle()
        source[0] = 9
        x.set(source)
    assert any("before the host had seen the end" in race for race in one.races)


def test_refilling_it_after_the_event_is_clean(fake, cupy, a):
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


def test_a_copy_to_pinned_memory_is_late_and_the_target_poisoned_until_then(fake, cupy, a):
    target = pinned(cupy, np.zeros(4))
    with a:
        x = cupy.ones(4)
        with fake.pause():
            x.get(out=target, blocking=False)
            assert set(target.view(np.uint8).tolist()) == {0xDB}
        a.synchronize()
    assert target.tolist() == [1.0] * 4
    assert fake.races == []


def test_pinned_memory_freed_under_a_copy_is_a_race_and_poisoned(one, cupy, a):
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


def test_a_copy_from_ordinary_memory_blocks_but_is_right(fake, cupy, a):
    source = np.arange(4.0)
    before = fake.blocking.total()
    with a:
        x = cupy.asarray(source)
        source[:] = 9
        assert x.get().tolist() == [0, 1, 2, 3]
    assert fake.blocking.total() > before
    assert fake.races == []


def test_async_copies_by_pointer(fake, cupy, a):
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


def test_memory_outlives_its_pool(one, cupy, a):
    with a, cupy.cuda.using_allocator(cupy.cuda.MemoryPool().malloc):
        x = cupy.ones(4)
    gc.collect()
    assert x.get(a).tolist() == [1.0] * 4
    assert one.live_bytes() == 512
    del x
    assert one.live_bytes() == 0


def test_device_memory_has_no_address_in_the_process(one, cupy):
    assert cupy.empty(4).data.ptr >= 1 << 52
