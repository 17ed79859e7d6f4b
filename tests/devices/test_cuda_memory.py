"""The memory of a CUDA device: references until the last use was seen, one private pool, ledgers that match it."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cuda.pool import Heap, PrivatePool
from asyncsched.ops.op import CARD_GRANULE
from tests.fake_cupy import Fake, fake_cupy
from tests.fake_cupy.errors import CUDARuntimeError
from tests.ledger import address_of as pointer
from tests.ledger import array_of, in_use, lane_of
from tests.waiting import until

from .conftest import BLOCK, all_issued, assert_ledgers_zero, checked, ended, finished, issued, opened

pytestmark = pytest.mark.one_loop  # how the host hears of the device's work is the same on both
SIZE = BLOCK.nbytes


# -- references -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["dropped", "cancelled"])
async def test_what_another_stream_still_reads_stays(fake: Fake, way: str) -> None:
    """CuPy gives a freed block to the next allocation of the stream that made it, whoever reads it."""
    async with opened(2, max_ops=None) as s:
        x = await s.put(BLOCK)
        before = await all_issued(s)
        with fake.pause():
            made = x * 2
            other, here = x + 5, x - made  # `here` follows on the lane of `made`, and is its tail
            readers = [made + i for i in range(3)]
            lane = lane_of(other)
            await until(lambda: issued(s) == before + 6)
            if way == "cancelled":
                assert made.cancel()
            del made, here
            gc.collect()
            again = [x + i for i in range(6)]  # of the size of what was dropped
            await until(lambda: issued(s) == before + 12)
        assert lane is not None
        for i, reader in enumerate(readers):
            if way == "dropped":
                assert (await reader.numpy()).max() == 2 + i
            else:
                with pytest.raises(asc.TaskCancelled):
                    await reader
        assert [(await tensor.numpy()).max() for tensor in again] == [1 + i for i in range(6)]


async def test_a_task_lets_go_before_the_loop_hears_of_its_end(fake: Fake) -> None:
    """So that nothing waits for a loop that is busy: neither memory nor a buffer that is to be written over."""
    async with opened(2, max_ops=None) as s:
        x = await s.put(BLOCK)
        await s.barrier()
        pool = s.devices[0].memory.pool
        before, live = finished(s), in_use(pool)
        for i in range(6):
            x + i
        while finished(s) < before + 6:
            os.sched_yield()
        assert in_use(pool) == live


@pytest.mark.parametrize("state", ["pending", "launched", "done"])
async def test_cancelling_in_every_state(fake: Fake, state: str) -> None:
    async with opened(2, max_ops=2) as s:
        x = await s.put(BLOCK)
        await s.barrier()
        with fake.pause():
            chain = [x + 1]
            for _ in range(9):
                chain.append(chain[-1] + 1)
            victim = chain[{"pending": 7, "launched": 0, "done": 0}[state]]
            if state != "done":
                assert victim.cancel()
        if state == "done":
            await chain[-1]
            assert not victim.cancel()
            assert (await chain[-1].numpy()).max() == 11
        else:
            with pytest.raises(asc.TaskCancelled):
                await chain[-1]
        assert (await (x + 1).numpy()).max() == 2
        await s.barrier()
        del chain, victim, x
    assert_ledgers_zero(s)


@pytest.mark.parametrize("way", ["operator", "part"])
async def test_a_copy_out_that_nobody_waits_for_any_more_keeps_its_source(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Its waiter was the last to hold the old version, which could be written over otherwise."""
    gate, jobs = threading.Event(), []
    async with opened(1, max_ops=1) as s:
        y = (await s.put(BLOCK)) + 1
        await s.barrier()
        device, copies, place = s.devices[0], fake.statistics["copies"], pointer(y)
        offload = device.offload
        monkeypatch.setattr(device, "offload", lambda job: (jobs.append(job), offload(job)))
        with fake.hold(device._copies_out.cuda):
            waiting = asyncio.create_task(_numpy(y))
            await until(lambda: fake.statistics["copies"] > copies)
            waiting.cancel()
            await asyncio.wait([waiting])
            del waiting
            s.submit_nowait(gate.wait, 30)  # so that what follows begins when its operand has no other handle
            if way == "operator":
                y = y + 5
            else:
                y[...] = 7
            gate.set()
            await s.barrier()
            assert pointer(y) != place
        await until(lambda: jobs[0].result is not None)
        assert jobs[0].result.tobytes() == (BLOCK + 1).tobytes()
        assert (await y.numpy()).min() == 7


async def _numpy(tensor: asc.Tensor) -> np.ndarray[Any, Any]:
    return await tensor.numpy()


async def test_a_buffer_is_written_over_by_its_sole_holder_alone(fake: Fake) -> None:
    async with opened(1) as s:
        x = await s.put(BLOCK)
        gate = [x + i for i in range(3)]
        await s.barrier()
        sole, shared, seen = gate.pop(), gate.pop(), gate.pop()
        places = [pointer(sole), pointer(shared), pointer(seen)]
        view = shared[1:]
        await seen  # its array has left
        with fake.pause():  # so that all of them are admitted only after the old handles went
            await _full(s, x)
            sole = sole + 1
            other = shared + 1
            seen = seen + 1
        await s.barrier()
        assert pointer(sole) == places[0]
        assert pointer(other) != places[1]
        assert pointer(seen) != places[2]
        assert (await view.numpy()).max() == 2


async def test_a_chain_is_written_over_before_the_host_sees_any_of_it(fake: Fake) -> None:
    """Whoever made a buffer comes before who writes over it, in the order of streams."""
    gate = threading.Event()
    async with opened(1, max_ops=None) as s:
        y = await s.put(BLOCK)
        await s.barrier()
        pool = s.devices[0].memory.pool
        before, live, done = issued(s), in_use(pool), finished(s)
        s.submit_nowait(gate.wait, 30)  # so that handles are gone when it is issued
        for _ in range(12):
            y = y * 2
        kept = y
        for _ in range(12):
            y = y * 2
        with fake.pause():
            gate.set()
            await until(lambda: issued(s) == before + 25)
            assert finished(s) <= done + 1
            assert in_use(pool) - live == SIZE  # of what is kept: `y` took the place of what was put
        assert (await kept.numpy()).max() == 2**12
        assert (await y.numpy()).max() == 2**24


async def _full(s: asc.Scheduler, x: asc.Tensor) -> None:
    """Take every slot, so that what follows is pending."""
    while s.statistics().tasks_in_flight < 64:
        x + 1


# -- the pool and the ledgers ---------------------------------------------------------------------------------------


async def test_arrays_are_counted_in_the_pools_granules(fake: Fake) -> None:
    async with opened(2, max_bytes=8 * CARD_GRANULE) as s:
        kept = [await s.put(np.ones(1, np.uint8)) for _ in range(7)]
        assert s.statistics().bytes_retained == 7 * CARD_GRANULE
        assert in_use(s.devices[0].memory.pool) == 7 * CARD_GRANULE
        with pytest.raises(asc.QueueFull):
            s.put_nowait(np.ones(CARD_GRANULE + 1, np.uint8))
        del kept
        with pytest.raises(asc.TaskTooLarge):
            await s.put(np.ones(8 * CARD_GRANULE + 1, np.uint8))
        assert s.statistics().peak_bytes <= 8 * CARD_GRANULE
    assert_ledgers_zero(s)


async def test_what_is_free_in_one_size_serves_every_other(fake: Fake) -> None:
    """On any stream. Else the device would hold as much for each of them as there ever was."""
    limit = 8 * SIZE
    async with opened(3, max_bytes=limit) as s:
        for i in range(24):
            x = await s.put(np.full(SIZE // 4 * (1 + i % 4) // 2, i, np.float32))
            y, z = x + 1, x * 2
            assert (await (y + z).numpy()).max() == 3 * i + 1
            del x, y, z
            assert s.devices[0].memory.pool.reserved() <= limit
        assert s.statistics().peak_bytes <= limit


class _Hands:
    """Takes blocks of the pool on streams, writes to them, and drops them; with what that costs in calls."""

    def __init__(self, fake: Fake, s: asc.Scheduler) -> None:
        self._fake, self._device = fake, s.devices[0]
        self.pool, self.streams = self._device.memory.pool, [stream.cuda for stream in self._device.streams]

    async def take(self, stream: Any, *sizes: int) -> tuple[int, int, list[int]]:
        """Take blocks and drop them. Returns how many went to the device, how many came from it, and where they are."""
        before = [self._fake.statistics[name] for name in ("frees", "mallocs")]

        def held() -> list[int]:
            with self._device.context.here(), stream:
                arrays = [self._device.xp.empty(size, np.uint8) for size in sizes]
                for array in arrays:
                    array.fill(1)
                return [array.data.ptr for array in arrays]

        places = await asyncio.to_thread(held)
        frees, mallocs = [self._fake.statistics[name] for name in ("frees", "mallocs")]
        return frees - before[0], mallocs - before[1], places


async def test_at_the_limit_a_free_block_changes_hands(fake: Fake) -> None:
    """Without a call that waits for the device; who takes it comes after who had it."""
    async with opened(2, max_bytes=4 * SIZE) as s:
        hands = _Hands(fake, s)
        first, second = hands.streams
        waits = fake.statistics["waits"]
        with fake.hold(first):
            _, _, places = await hands.take(first, SIZE, SIZE, SIZE, SIZE)
            frees, mallocs, taken = await hands.take(second, SIZE, SIZE - CARD_GRANULE)
        assert (frees, mallocs) == (0, 0)
        assert set(taken) < set(places)
        assert fake.statistics["waits"] == waits + 2
        assert (await hands.take(first, SIZE, SIZE))[:2] == (0, 0)
        assert fake.statistics["waits"] == waits + 2  # its own still
        assert hands.pool.reserved() == 4 * SIZE


async def test_the_rest_of_a_block_that_changes_hands_keeps_who_had_it_meanwhile(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes a part waits for the work of others until then, and for nothing that comes before it says so."""
    async with opened(2, max_bytes=4 * SIZE) as s:
        hands = _Hands(fake, s)
        pool, (first, second) = hands.pool, hands.streams
        await hands.take(first, 4 * SIZE)
        follow, held = pool._follow, [first]

        def followed(stream: Any, pointer: int) -> bool:
            done = follow(stream, pointer)
            while held:  # the first one uses the rest once more, and another search empties its bins
                with held.pop():
                    s.devices[0].xp.empty(3 * SIZE, np.uint8).fill(2)
                in_use(pool)
            return done

        monkeypatch.setattr(pool, "_follow", followed)
        with fake.hold(first):
            await hands.take(second, SIZE)
            assert (await hands.take(second, 3 * SIZE))[:2] == (0, 0)


async def test_no_more_goes_back_to_the_device_than_it_takes(fake: Fake) -> None:
    async with opened(2, max_bytes=6 * SIZE) as s:
        hands = _Hands(fake, s)
        first, second = hands.streams
        await hands.take(first, 2 * SIZE, 3 * SIZE)
        assert (await hands.take(second, 4 * SIZE))[:2] == (1, 1)
        assert hands.pool.reserved() == 6 * SIZE
        assert (await hands.take(second, 6 * SIZE))[:2] == (2, 1)
        assert hands.pool.reserved() == 6 * SIZE
        assert (await hands.take(first, SIZE, 2 * SIZE, 2 * SIZE, SIZE))[:2] == (0, 0)  # cut out of it
        assert (await hands.take(second, 6 * SIZE))[:2] == (0, 0)  # and joined again


async def test_below_the_limit_no_stream_waits_for_anothers_blocks(fake: Fake) -> None:
    async with opened(2, max_bytes=4 * SIZE) as s:
        hands = _Hands(fake, s)
        _, _, mine = await hands.take(hands.streams[0], SIZE, SIZE)
        _, _, others = await hands.take(hands.streams[1], SIZE, SIZE)
        assert not {*mine} & {*others}


async def test_an_issuer_takes_memory_while_another_thread_gives_some_back(fake: Fake) -> None:
    """Which waits for the device, and would keep whoever allocates waiting, if a lock were held for it."""
    import cupy

    async with opened(1) as s:
        x = await s.put(BLOCK)
        for _ in range(3):
            await asc.exp(x)
        hands = _Hands(fake, s)
        await hands.take(hands.streams[0], 8 << 20)
        side = cupy.cuda.Stream(non_blocking=True)
        await until(lambda: s.statistics().bytes_retained == SIZE)
        with fake.hold(side):
            await hands.take(side, SIZE)
            frees = fake.statistics["frees"]
            giving = asyncio.create_task(asyncio.to_thread(hands.pool.free))
            await until(lambda: fake.statistics["frees"] > frees)
            before = await all_issued(s)
            y = asc.exp(x)
            await until(lambda: issued(s) == before + 1)
            assert not giving.done()
        await giving
        assert (await y.numpy()).tolist() == np.exp(BLOCK).tolist()


@pytest.mark.parametrize("which", ["the one that had it", "the one that takes it"])
async def test_no_block_changes_hands_in_a_capture(fake: Fake, which: str) -> None:
    """The event between the two would be part of the graph."""
    async with opened(2, max_bytes=4 * SIZE) as s:
        hands = _Hands(fake, s)
        first, second = hands.streams
        await hands.take(first, SIZE, SIZE, SIZE, SIZE)
        captures = first if "had" in which else second
        captures.begin_capture()
        assert (await hands.take(second, SIZE))[:2] == (1, 1)
        captures.end_capture()
        assert (await hands.take(second, SIZE, SIZE))[:2] == (0, 0)


async def test_at_the_limit_memory_circulates(fake: Fake) -> None:
    """In the steady state, with several shapes on several streams, hardly anything goes through the device."""
    async with opened(2, max_bytes=24 * SIZE) as s:
        sources = [await s.put(np.ones((32, 32 + 4 * i), np.float32)) for i in range(4)]

        async def step() -> None:
            sums = [((x + k) * 2 - x).sum() for x in sources for k in range(4)]
            for total in sums:
                await total

        for _ in range(4):
            await step()
        before = fake.statistics.copy()
        for _ in range(10):
            await step()
        calls = [fake.statistics[name] - before[name] for name in ("launches", "mallocs", "frees")]
        assert calls[1] + calls[2] <= calls[0] * 5 // 100, calls
        assert s.statistics().peak_bytes > 20 * SIZE  # the limit binds


async def test_the_last_array_frees_nothing_where_it_is_dropped(fake: Fake) -> None:
    """It outlives its scheduler, and its pool with it."""
    async with opened(1) as s:
        x = await s.put(BLOCK)
        tensor, array = x + 1, await (x + 2)
        await s.barrier()
        del x
    pool = s.devices[0].memory.pool
    await until(lambda: in_use(pool) == 2 * SIZE)
    del tensor
    await until(lambda: in_use(pool) == SIZE)
    del array
    await until(lambda: pool.reserved() == 0)
    await ended()
    assert fake.loop_blocks == []


async def test_a_body_that_takes_far_more_than_it_said_fails_alone(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    async with opened(1, max_bytes=4 * SIZE) as s:
        monkeypatch.setattr(s.devices[0].memory.pool, "_most", 8 * SIZE)
        x = await s.put(BLOCK)
        with pytest.raises(MemoryError, match="allocating") as caught:
            await s.call(lambda: [cupy.zeros(SIZE, np.uint8) for _ in range(9)], nbytes=SIZE)
        assert any("lower max_bytes" in note for note in caught.value.__notes__)
        assert (await (x + 1).numpy()).max() == 2


async def test_at_the_limit_the_loop_frees_nothing(fake: Fake) -> None:
    limit = 6 * SIZE
    async with opened(2, max_bytes=limit) as s:
        for n in (32, 16, 8, 24, 32, 16, 8, 24):
            x = await s.put(BLOCK[:n])
            for _ in range(3):
                x = x + 1
            assert (await (x * x).numpy()).max() == 16
        assert fake.loop_blocks == []


async def test_a_finaliser_may_take_memory_while_memory_is_looked_for(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cupy

    take, made = Heap.take, list[Any]()

    def takes(*args: Any, **options: Any) -> Any:
        if not made:  # where the collector may run
            made.append(None)
            made.append(cupy.full(CARD_GRANULE, 1, np.uint8))
        return take(*args, **options)

    async with opened(1) as s:
        x = await s.put(np.ones(CARD_GRANULE, np.uint8))
        monkeypatch.setattr(Heap, "take", takes)
        y = await s.submit(lambda: cupy.full(CARD_GRANULE, 2, np.uint8), shape=(CARD_GRANULE,), dtype=np.uint8)
        assert [set(found.tolist()) for found in (await x.numpy(), await y.numpy())] == [{1}, {2}]
        assert made[1].data.ptr != pointer(y)
        made.clear()
    assert fake.races == []


async def test_a_replay_without_a_graph_of_its_own_is_charged_what_it_makes_on_the_way(fake: Fake) -> None:
    def step(cache: asc.Tensor, row: asc.Tensor) -> asc.Tensor:
        cache[0] = asc.cumulative_sum(asc.cumulative_sum(row, axis=0), axis=0)
        return cache

    async with opened(1) as s:
        cache, row = await s.put(np.zeros((2, *BLOCK.shape))), await s.put(BLOCK)
        replay = await s.capture(step, cache, row, donate=0)
        await s.barrier()
        with fake.pause():
            cache = replay(cache, row)
            charged = s.statistics().bytes_in_flight
        assert np.array_equal((await cache.numpy())[0], BLOCK.cumsum(0).cumsum(0))
    assert charged == (2 + 2 + 2) * SIZE  # the old version and the new one, and two rows on the way


async def test_nothing_comes_from_the_default_pool(fake: Fake) -> None:
    before = fake.statistics["default_pool"]
    async with opened(2) as s:
        x = await s.put(BLOCK)
        for _ in range(3):
            y = asc.nn.functional.softmax(x.mT @ x + 1)
            await y.numpy()
        await s.submit(lambda a: a * 2, y)
        await s.barrier()
        await s.capture(lambda a: a * a, x)
    assert fake.statistics["default_pool"] == before


@pytest.fixture
def crowded() -> Iterator[Fake]:
    """A GPU with room for eight blocks beside another program's memory."""
    for fake in checked(fake_cupy(memory=1 << 20)):
        import cupy

        theirs = cupy.cuda.Memory((1 << 20) - 8 * SIZE)
        yield fake
        del theirs


@pytest.mark.parametrize(("config", "each"), [("", 32 << 20), (":4096:2:16:8", 8320 << 10), (":0:0", 0)])
async def test_the_default_limit_is_a_share_of_the_free_memory(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, config: str, each: int
) -> None:
    """Less what cuBLAS takes for each stream's handle."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    async with opened(3) as s:
        assert s.statistics().max_bytes == int(0.8 * (fake.memory - 3 * each))


@pytest.mark.usefixtures("crowded")
async def test_a_full_device_fails_one_task_and_names_the_cure() -> None:
    async with opened(2, max_bytes=1 << 20) as s:
        x = await s.put(BLOCK)
        y = asc.concat([x] * 16)
        with pytest.raises(MemoryError, match="allocating") as caught:
            await y
        assert any("lower max_bytes" in note for note in caught.value.__notes__)
        assert (await (x + 1).numpy()).max() == 2
        del y, x, caught
    assert_ledgers_zero(s)


async def test_an_array_that_left_is_charged_and_kept_until_it_is_gone(fake: Fake) -> None:
    async with opened(1) as s:
        x = await s.put(BLOCK)
        array = await (x + 1)
        kept = array[3:]
        del array, x
        await s.barrier()
        assert s.statistics().bytes_retained == SIZE
        again = [await s.put(BLOCK * 7) for _ in range(3)]
        assert (await again[0].numpy()).max() == 7
        assert (await s.call(lambda a: a.max().item(), kept)) == 2
        del kept, again
        await until(lambda: s.statistics().bytes_retained == 0)  # once the device has passed what it is used for


async def test_views_are_free_and_hold_what_they_show(fake: Fake) -> None:
    async with opened(2) as s:
        x = await s.put(np.arange(12.0).reshape(3, 4))
        views = [x[1:], x.mT, x[:, ::-1], asc.broadcast_to(x[:1], (5, 4)), asc.reshape(x, (2, 6))]
        await s.barrier()
        assert s.statistics().bytes_retained == CARD_GRANULE
        del x
        expected = np.arange(12.0).reshape(3, 4)
        shown = [expected[1:], expected.T, expected[:, ::-1], np.broadcast_to(expected[:1], (5, 4))]
        for view, array in zip(views, [*shown, expected.reshape(2, 6)], strict=True):
            assert (await view.numpy()).tobytes() == array.tobytes()
        assert s.statistics().bytes_retained == CARD_GRANULE
        del views, view
    assert_ledgers_zero(s)


async def test_closing_gives_the_pool_back_to_the_device(fake: Fake) -> None:
    async with opened(2) as s:
        device = s.devices[0]
        x = await s.put(BLOCK)
        await (x + 1).numpy()
        del x
        await s.barrier()
        assert device.memory.pool.reserved()
    await ended()
    assert device.memory.pool.reserved() == 0


async def test_what_goes_back_to_the_pool_is_poisoned_in_the_order_of_its_stream(fake: Fake) -> None:
    """So that whoever reads it later is caught by value; and by the clocks, if another stream may still read it."""
    async with opened(1) as s:
        x = await s.put(BLOCK)
        await (x + 1)
        with fake.pause():
            y = x + 2
            z = y * 3
            await until(lambda: issued(s) == 3)
            seen = array_of(y).numpy_view()
            y = None  # type: ignore[assignment]
        assert (await z.numpy()).max() == 9
        await s.barrier()
        await until(lambda: (seen.view(np.uint8) == 0xDB).all())
    assert fake.races == []


# -- spare arrays ---------------------------------------------------------------------------------------------------


async def test_what_nobody_holds_is_the_next_result_of_its_form(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """To make an array takes about as long as to launch a kernel."""
    asked, malloc = list[int](), PrivatePool.malloc

    def counted(self: PrivatePool, nbytes: int) -> Any:
        asked.append(nbytes)
        return malloc(self, nbytes)

    monkeypatch.setattr(PrivatePool, "malloc", counted)
    async with opened(1) as s:
        x = await s.put(BLOCK)
        y = x + 1
        await s.barrier()
        place = pointer(y)
        asked.clear()
        del y
        for i in range(5):
            z = x + i
            await s.barrier()
            assert pointer(z) == place
            del z
        assert asked == []
        kept = await (x + 1)  # it has left, and is nobody's next result
        assert [(await (x + i).numpy()).max() for i in range(3)] == [1, 2, 3]
        assert kept.numpy_view().max() == 2


async def test_a_result_that_is_dropped_after_the_close_goes_back_too(fake: Fake) -> None:
    async with opened(1) as s:
        x = await s.put(BLOCK)
        y, _ = x + 1, x + 2
        await s.barrier()
        pool = s.devices[0].memory.pool
    del x, _
    gc.collect()
    assert pool.reserved()
    del y
    await until(lambda: pool.reserved() == 0)


async def test_the_spares_of_a_lost_device_keep_no_pool(fake: Fake) -> None:
    async with opened(1) as s:
        x = await s.put(BLOCK)
        _ = x + 1
        await s.barrier()
        pool = weakref.ref(s.devices[0].memory.pool)
        del _
        fake.fail()
        with pytest.raises(CUDARuntimeError):
            await (x + 2)
        del x
    del s
    await ended()
    await until(lambda: gc.collect() >= 0 and pool() is None)
