"""Copies between the host and a CUDA device: pinned, in a few slots, no slot refilled too early."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cuda import staging
from tests.fake_cupy import Fake
from tests.waiting import until

from .conftest import assert_ledgers_zero, opened

pytestmark = pytest.mark.one_loop  # how the host hears of the device's work is the same on both
SLOT = 4096


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots so small that every array takes several; pageable memory is not to be touched by a copy."""
    monkeypatch.setattr(staging, "SLOT_BYTES", SLOT)
    monkeypatch.setattr("tests.fake_cupy.copies.host_bytes", _pageable)


def _pageable(*_: Any) -> None:
    raise AssertionError("a copy from or to pageable memory blocks its caller")


def layouts(array: Any) -> dict[str, Any]:
    return {
        "c": array,
        "fortran": np.asfortranarray(array),
        "reversed": array[::-1, ::-1],
        "gaps": array[::2, 1:],
        "turned": array.T,
        "broadcast": np.broadcast_to(array[:1], array.shape),
        "one number": array[0, 0],
        "empty": array[:0],
    }


async def test_the_source_may_change_as_soon_as_put_returns(fake: Fake) -> None:
    """A slot is filled again only after the host saw the event of its last transfer."""
    async with opened(1) as s:
        array = np.zeros(7 * staging.SLOTS * SLOT // 3, np.uint8)
        tensors = []
        for i in range(6):
            array.fill(i)
            tensors.append(await s.put(array))
        for i, tensor in enumerate(tensors):
            host = await tensor.numpy()
            assert host.min() == host.max() == i
    assert fake.races == []


@pytest.mark.parametrize("layout", ["c", "fortran", "gaps", "swapped"])
async def test_a_pinned_source_is_taken_as_it_is(fake: Fake, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """It is held until the device has read it, also where nobody waits for that."""
    import cupy

    monkeypatch.setattr(staging, "LEAST_PINNED", SLOT)
    memory = await asyncio.to_thread(cupy.cuda.alloc_pinned_memory, 8 * 64 * 64)
    array = np.frombuffer(memory, np.float64, 64 * 64).reshape(64, 64)
    array[:] = np.arange(64 * 64).reshape(64, 64)
    source = {"c": array, "fortran": array.T, "gaps": array[:, ::2], "swapped": array.view(">f8")}[layout]
    expected, copies = source.copy(), fake.statistics["copies"]
    async with opened(1) as s:
        with fake.pause():
            x = s.put_nowait(source)
            del source, array, memory
            gc.collect()
            assert not x.done()
        assert (await x.numpy()).tobytes() == expected.astype(float).tobytes()
        own = -(-expected.nbytes // SLOT)
        assert fake.statistics["copies"] - copies == own + (1 if layout in ("c", "fortran") else own)
    del x
    assert fake.races == []


async def test_few_slots_serve_many_copies(fake: Fake) -> None:
    async with opened(2) as s:
        arrays = [np.full(5 * SLOT + i, i, np.uint8) for i in range(12)]
        tensors = await asyncio.gather(*[s.put(array) for array in arrays])
        hosts = await asyncio.gather(*[tensor.numpy() for tensor in tensors])
        for host, array in zip(hosts, arrays, strict=True):
            assert host.tobytes() == array.tobytes()
    assert fake.statistics["host_allocs"] <= 2 * staging.SLOTS
    del tensors
    assert_ledgers_zero(s)


async def test_of_two_copies_out_at_once_one_waits(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the close each has a thread of its own, and the slots are the same."""
    async with opened(1) as s:
        arrays = [np.full(staging.SLOTS * SLOT, i, np.uint8) for i in (1, 2)]
        tensors = [await s.put(array) for array in arrays]
    staging_out, before = s.devices[0].memory._down, fake.statistics["copies"]
    door = Door(staging_out._lock)
    monkeypatch.setattr(staging_out, "_lock", door)
    with fake.pause():
        waiting = [asyncio.create_task(tensor.numpy()) for tensor in tensors]
        await until(lambda: fake.statistics["copies"] >= before + (1 if len(door.seen) == 2 else 2) * staging.SLOTS)
        assert fake.statistics["copies"] == before + staging.SLOTS
    for host, array in zip(await asyncio.gather(*waiting), arrays, strict=True):
        assert host.tobytes() == array.tobytes()
    del tensors
    await until(lambda: fake.live_bytes() == 0)  # a thread holds its argument a little longer than its result


class Door:
    """A lock, with a list of who came to it."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.seen: list[int] = []

    def __enter__(self) -> None:
        self.seen.append(threading.get_ident())
        self.lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self.lock.release()


async def test_a_finaliser_may_read_in_the_middle_of_a_copy_out(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(1) as s:
        arrays = [np.arange(9 * SLOT, dtype=np.uint8) + i for i in (1, 2)]
        tensors = [await s.put(array) for array in arrays]
        await s.barrier()
    read, found = staging._read, list[Any]()

    def reads(*part: Any) -> None:
        if not found:  # where the collector may run
            found.append(None)
            found.append(np.asarray(tensors[1]))
        read(*part)

    monkeypatch.setattr(staging, "_read", reads)
    assert (await asyncio.to_thread(np.asarray, tensors[0])).tobytes() == arrays[0].tobytes()
    assert found[1].tobytes() == arrays[1].tobytes()
    assert fake.races == []
    tensors.clear()
    await until(lambda: fake.live_bytes() == 0)


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"])
async def test_every_dtype_and_layout_comes_back(fake: Fake, dtype: str) -> None:
    async with opened(1) as s:
        for name, array in layouts(np.arange(60 * 50).reshape(60, 50).astype(dtype)).items():
            x = await s.put(array)
            assert (await x.numpy()).tobytes() == np.asarray(array).tobytes(), name
            assert (await x.numpy()).dtype == np.dtype(dtype)


@pytest.mark.parametrize("dtype", ["u2", "f8", "c16"])
async def test_bytes_are_swapped_on_the_way_up(fake: Fake, dtype: str) -> None:
    async with opened(1) as s:
        for name, array in layouts(np.arange(60 * 50).reshape(60, 50).astype(dtype)).items():
            x = await s.put(np.asarray(array).astype(np.dtype(dtype).newbyteorder()))
            host = await x.numpy()
            assert host.dtype == x.dtype == np.dtype(dtype), name
            assert host.tobytes() == np.asarray(array).tobytes(), name


async def test_views_of_the_device_come_back(fake: Fake) -> None:
    async with opened(1) as s:
        array = np.arange(60 * 50.0).reshape(60, 50)
        x = await s.put(array)
        shown = [x[::-1, ::-1], x[::2, 1:], x.mT, asc.broadcast_to(x[:1], (60, 50)), x[0, 0], x[:0]]
        for view, expected in zip(shown, list(layouts(array).values())[2:], strict=True):
            assert (await view.numpy()).tobytes() == np.asarray(expected).tobytes()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
async def test_a_copy_out_that_fails_leaves_nothing_to_the_collector(fake: Fake, device: str) -> None:
    def fail(array: Any) -> None:
        raise OSError

    async with asc.Scheduler(device) as s:
        x = await s.put(np.ones((200, 200)))
        s.devices[0].fetch = fail  # type: ignore[method-assign]
        gc.collect()
        gc.disable()
        try:
            with suppress(OSError):
                await x.numpy()
            del x
            await s.barrier()
            assert s.statistics().bytes_retained == 0
        finally:
            gc.enable()


async def test_what_comes_out_is_ones_own(fake: Fake) -> None:
    async with opened(1) as s:
        x = await s.put(np.arange(3 * SLOT, dtype=np.uint8))
        first = await x.numpy()
        first.fill(9)
        assert (await x.numpy()).tobytes() == np.arange(3 * SLOT, dtype=np.uint8).tobytes()


async def test_many_come_out_by_one_gather(fake: Fake) -> None:
    async with opened(2) as s:
        x = await s.put(np.arange(3 * SLOT, dtype=np.float64))
        losses = [(x * n).sum().item() for n in range(20)]
        *numbers, host = await asc.gather(*losses, (x + 1).numpy())
        assert numbers == [float(np.sum(np.arange(3.0 * SLOT) * n)) for n in range(20)]
        assert host.tobytes() == np.arange(1.0, 3 * SLOT + 1).tobytes()
