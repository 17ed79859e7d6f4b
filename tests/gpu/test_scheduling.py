"""What a card may not do to the promises: launching ahead, order across streams, bounds, cancellation, a free loop."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest

import asyncsched as asc
from tests.devices.conftest import CrossingDevice, all_issued, finished, issued
from tests.waiting import until

from .cases import values

pytestmark = pytest.mark.one_loop


async def warmed_up(s: asc.Scheduler, shape: tuple[int, ...] = (64, 64)) -> asc.Tensor:
    """A tensor of ones; all that the tests here compile and allocate was so once, which may wait for the device."""
    x = await s.put(np.ones(shape, np.float32))
    chain = [x]
    for _ in range(120):
        chain.append(chain[-1] + 1)
    await (chain[-1] + (x * 2) * (x * 3)).sum()
    await s.barrier()
    return x


async def test_a_chain_is_issued_with_no_host_round_trip(card):
    async with asc.Scheduler(CrossingDevice(0, 2), max_ops=None) as s:
        x = await warmed_up(s)
        before, done = await all_issued(s), finished(s)
        with card.held(s):
            y = x
            for _ in range(100):
                y = y + 1
            await until(lambda: issued(s) == before + 100)
            assert finished(s) == done
            assert not y.done()
        assert (await y.numpy()).max() == 101


@pytest.mark.parametrize("streams", [1, 2, 4])
async def test_diamonds_across_streams(card, streams):
    async with asc.Scheduler(CrossingDevice(0, streams)) as s:
        array = values(200, 200, dtype="f8")
        x = await s.put(array)
        expected = array
        for _ in range(card.pick(200, 20)):
            left, right = x * 0.5, x + 0.25
            x = left + right * 0.5
            expected = expected * 0.5 + (expected + 0.25) * 0.5
        assert np.allclose(await x.numpy(), expected, rtol=1e-12)


async def test_the_pool_stays_under_the_limit(card):
    limit, block = 16 << 20, 1 << 20
    most = limit + 3 * block  # what each stream's threads are about to let go of is no longer tracked
    async with asc.Scheduler("cuda", streams=3, max_bytes=limit, max_ops=None) as s:
        x = await s.put(np.ones(block // 4, np.float32))
        memory = s.devices[0].memory
        kept = []
        for i in range(200):
            kept = [*kept[-2:], (x + i) * 2 + x[: block // 4]]
            if i % 20 == 0:
                await kept[-1]
                assert memory.pool.reserved() <= most
        assert await kept[-1].max().item() == 401
        await s.barrier()
        assert memory.pool.reserved() <= most
        assert s.statistics().peak_bytes <= limit


async def test_a_loop_without_end_needs_no_more_memory_than_its_limit(card):
    """Unbounded, all of its results would be alive at once."""
    count, each = card.pick(2000, 100), 4 << 20
    async with asc.Scheduler("cuda", max_bytes=8 * each) as s:
        total = await s.put(np.zeros((), np.float32))
        for i in range(count):
            batch = await s.put(np.full(each // 4, i % 7, np.float32))
            total = total + batch.mean()
        assert await total.item() == sum(i % 7 for i in range(count))
        assert s.devices[0].memory.pool.reserved() <= 10 * each


async def test_the_loop_turns_while_an_await_waits(card):
    async with asc.Scheduler("cuda", max_ops=4) as s:
        x = await warmed_up(s)
        turns = 0
        with card.held(s):
            waiting = [asyncio.create_task(_numpy(x * i)) for i in range(20)]
            for _ in range(1000):
                await asyncio.sleep(0)
                turns += not any(task.done() for task in waiting)
        assert turns == 1000
        assert [int(array[0, 0]) for array in await asyncio.gather(*waiting)] == list(range(20))


async def _numpy(tensor: asc.Tensor) -> np.ndarray:
    return await tensor.numpy()


async def test_cancelling(card):
    async with asc.Scheduler("cuda", max_ops=2) as s:
        x = await warmed_up(s)
        with card.held(s):
            first = x + 1
            late = [first * i for i in range(30)]
            reader = late[20] + 1
            assert late[20].cancel()
            with pytest.raises(asc.TaskCancelled):
                await reader
            given_up = asyncio.create_task(_numpy(late[5]))
            await asyncio.sleep(0)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
        assert (await late[5].numpy()).max() == 10
        assert (await late[29].numpy()).max() == 58
        await s.barrier()
        assert s.statistics().tasks_cancelled == 2


async def test_leaving_by_an_exception_waits_for_what_runs(card):
    s = asc.Scheduler("cuda", max_ops=4)
    with pytest.raises(KeyError):
        async with s:
            x = await warmed_up(s)
            with card.held(s):
                for _ in range(50):
                    x = x + 1
            raise KeyError
    assert s.statistics().tasks_in_flight == 0


async def test_a_failing_callable_fails_its_dependents_alone(s):
    x = await warmed_up(s)
    bad = await s.submit(_fail, x, shape=(64, 64), dtype="float32")
    with pytest.raises(ZeroDivisionError):
        await (bad + 1)
    assert (await (x + 1).numpy()).max() == 2


def _fail(array: object) -> object:
    raise ZeroDivisionError


async def test_schedulers_one_after_the_other(card):
    for _ in range(3):
        async with asc.Scheduler("cuda", max_bytes="32 MiB") as s:
            x = await warmed_up(s)
            kept = x + 1
        assert (await kept.numpy()).max() == 2  # finished tensors stay readable
        del kept, x
        # What a closed scheduler leaves goes when the collector runs, which frees device memory: not on the loop.
        await asyncio.to_thread(gc.collect)


async def test_what_is_planned_as_contiguous_is(card, monkeypatch):
    """CuPy's argsort along another axis than the last gives a view of its result with the axes exchanged."""
    import cupy

    if card.fake is not None:

        def argsort(x, axis, kind):
            rows = cupy.ascontiguousarray(cupy.argwhere(x == x)[:, :1].reshape(x.shape[::-1]))
            return cupy.swapaxes(rows, 0, 1)

        monkeypatch.setattr(cupy, "argsort", argsort)
    async with asc.Scheduler("cuda", max_bytes="1 MiB") as s:
        x = await s.put(values(30, 40))
        order = asc.argsort(x, axis=0)
        assert (await order).flags.c_contiguous
        assert (await order.reshape(-1)).shape == (1200,)
        del order
        await s.barrier()
        expected = x.nbytes + 512 - x.nbytes % 512
        await until(lambda: s.statistics().bytes_retained == expected)


async def test_a_captured_step_gives_what_its_operations_give(s):
    x, w = await s.put(values(32, 32)), await s.put(values(32, 32, seed=1))

    def step(x: asc.Tensor, w: asc.Tensor) -> list[asc.Tensor]:
        h = asc.tanh(x @ w)
        return [h * 2, h.sum()]

    graph = await s.capture(step, x, w)
    for seed in range(5):
        x = await s.put(values(32, 32, seed=seed))
        captured, plain = graph(x, w), step(x, w)
        for ours, theirs in zip(captured, plain, strict=True):
            assert np.allclose(await ours.numpy(), await theirs.numpy(), rtol=1e-5)
