"""Batches on the device ahead of the consumer, within the scheduler's limit on bytes."""

from __future__ import annotations

import asyncio
from collections import namedtuple
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import turns, until

from .conftest import MakeTable
from .rig import drain

BLOCK = np.ones((100, 100))  # 80,000 bytes
PAIRS = [(BLOCK, BLOCK)] * 12
Pair = namedtuple("Pair", "x y")


async def test_arrays_in_containers_become_tensors(s: asc.Scheduler) -> None:
    item = {"x": np.arange(3), "pair": (np.ones(2), [np.zeros(1), "text"]), "named": Pair(np.ones(1), None), "n": 3}
    ((found,), (bare,)) = await drain(s.pipeline([item]).to_device()), await drain(s.pipeline([BLOCK]).to_device())
    assert isinstance(bare, asc.Tensor)
    assert (await found["x"].numpy()).tolist() == [0, 1, 2]
    x, (zero, text) = found["pair"]
    assert isinstance(x, asc.Tensor)
    assert isinstance(zero, asc.Tensor)
    assert (text, found["n"], found["named"].y) == ("text", 3, None)
    assert isinstance(found["named"], Pair)


async def test_tensors_of_pytorch_are_put_too_as_a_data_loader_gives_them(s: asc.Scheduler, torch: Any) -> None:
    data = torch.utils.data.TensorDataset(torch.ones(4, 3), torch.arange(4))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    batches = await drain(s.pipeline(loader).to_device())
    found = [[(t.shape, t.dtype.name) for t in batch] for batch in batches]
    assert found == [[((2, 3), "float32"), ((2,), "int64")]] * 2
    assert await asc.sum(batches[1][1]).item() == 5
    again = await drain(s.pipeline([batches[0]]).to_device())  # ours are there already
    assert again[0][0] is batches[0][0]


async def test_items_without_arrays_come_as_they_are(s: asc.Scheduler) -> None:
    assert await drain(s.pipeline(range(3)).to_device()) == [0, 1, 2]
    assert await drain(s.pipeline([(), {"name": "a"}]).to_device()) == [(), {"name": "a"}]


async def test_digits_all_the_way(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(100)).map(lambda i: (np.full(4, i, np.float32), i % 10), workers=2).batch(32)
    async with pipe.to_device().open() as items:
        total, shapes = 0.0, []
        async for x, y in items:
            shapes.append((x.shape, y.shape))
            total += await (x.sum() / 4).item()
    assert shapes == [((32, 4), (32,))] * 3 + [((4, 4), (4,))]
    assert total == sum(range(100))


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("block", [BLOCK, BLOCK[0].copy()])
async def test_depth_batches_are_ahead_and_no_more(s: asc.Scheduler, depth: int, block: np.ndarray) -> None:
    left = 20
    async with s.pipeline([block] * left).to_device(depth=depth).open() as items:
        async for _ in items:
            del _
            left -= 1
            ahead = min(left, depth) * block.nbytes
            await until(lambda ahead=ahead: s.statistics().bytes_retained >= ahead)
            await turns()
            assert s.statistics().bytes_retained == ahead
    assert (s.statistics().peak_bytes, s.statistics().bytes_retained) == (depth * block.nbytes, 0)


async def consume(s: asc.Scheduler, depth: int, *, pause: bool = False, hold: bool = False) -> int:
    """Take every pair, and add its halves."""
    count = 0
    async with s.pipeline(PAIRS).to_device(depth=depth).open() as items:
        async for x, y in items:
            if pause:
                ahead = s.statistics().tasks_completed + 2 * depth
                for _ in range(1000):  # until what can be is ahead
                    if s.statistics().tasks_completed >= ahead:
                        break
                    await asyncio.sleep(0)
            await (x + y)
            if not hold:
                del x, y
            count += 1
    return count


@pytest.mark.one_loop
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("pause", [False, True])
@pytest.mark.parametrize("blocks", [3, 4, 5, 6])
async def test_what_is_ahead_never_stops_the_consumer(depth: int, pause: bool, blocks: int) -> None:
    """Three blocks are one batch and the sum of its halves; in more, batches are put ahead, and may be in the way."""
    async with asc.Scheduler("cpu", max_bytes=blocks * BLOCK.nbytes) as s:
        assert await consume(s, depth, pause=pause) == len(PAIRS)
        found = s.statistics()
        assert found.peak_bytes <= blocks * BLOCK.nbytes
        assert found.bytes_retained == 0


async def test_what_is_ahead_goes_back_when_others_need_the_bytes() -> None:
    async with asc.Scheduler("cpu", max_bytes=4 * BLOCK.nbytes) as s:
        pipe = s.pipeline([np.full((100, 100), i) for i in range(9)]).to_device(depth=4)
        async with pipe.open() as items:
            first = await anext(items)
            await until(lambda: pipe.statistics().stages[-1].items >= 4)
            assert s.statistics().bytes_retained == 4 * BLOCK.nbytes
            assert await (first + first).sum().item() == 0  # needs room, which all three make
            del first
            found = [await tensor[0, 0].item() async for tensor in items]
        assert found == list(range(1, 9))


@pytest.mark.parametrize("count", [2, 3])
async def test_the_last_that_is_ahead_goes_back_too(count: int) -> None:
    async with asc.Scheduler("cpu", max_bytes=count * BLOCK.nbytes + 8) as s:
        pipe = s.pipeline([np.full((100, 100), i) for i in range(count)]).to_device(depth=3)
        async with pipe.open() as items:
            first = await anext(items)
            await until(lambda: pipe.statistics().stages[-1].items >= count)
            await turns()
            assert await (first + first).sum().item() == 0
            del first
            assert [await tensor[0, 0].item() async for tensor in items] == list(range(1, count))


async def test_what_goes_back_is_put_again_though_the_source_gives_nothing_more() -> None:
    taken = asyncio.Event()

    async def source(epoch: int) -> AsyncIterator[Any]:
        for i in range(3):
            yield np.full((100, 100), i)
        await taken.wait()

    async with asc.Scheduler("cpu", max_bytes=3 * BLOCK.nbytes) as s:
        pipe = s.pipeline(source).to_device(depth=3)
        async with pipe.open() as items:
            first = await anext(items)
            await until(lambda: pipe.statistics().stages[-1].items == 3)
            assert await (first + first).sum().item() == 0
            del first
            assert [await (await anext(items))[0, 0].item() for _ in range(2)] == [1, 2]
            taken.set()
            assert [item async for item in items] == []


async def test_a_batch_that_the_consumer_itself_keeps_out_is_a_deadlock_and_told() -> None:
    async with asc.Scheduler("cpu", max_bytes=3 * BLOCK.nbytes) as s:
        with pytest.raises(asc.MemoryDeadlockError) as caught:
            await consume(s, 2, hold=True)
        text = str(caught.value)
        assert "variable 'x'" in text
        assert "variable 'y'" in text
        assert "consume" in text
        assert any("stage 1 (to_device), at item 1" in note for note in caught.value.__notes__)
        del caught
        await s.barrier()


async def test_a_batch_that_the_reserve_of_its_consumer_keeps_out_is_told_to_it() -> None:
    """It may leave what it has reserved, and go on."""
    limit = 3 * BLOCK.nbytes
    async with asc.Scheduler("cpu", max_bytes=limit) as s, s.pipeline([BLOCK] * 3).to_device().open() as items:
        async with s.scope(reserve=limit - 1):
            with pytest.raises(asc.MemoryDeadlockError, match="reserved by scope"):
                await anext(items)
        found = [await x.sum().item() async for x in items]
        assert found == [BLOCK.size] * 3


async def test_a_batch_that_never_fits_is_told() -> None:
    async with asc.Scheduler("cpu", max_bytes=BLOCK.nbytes) as s:
        with pytest.raises(asc.TaskTooLarge, match=r"needs 160,000 bytes .* the limit is 80,000"):
            await consume(s, 2)


async def test_what_cannot_be_put_is_told(s: asc.Scheduler) -> None:
    with pytest.raises(TypeError) as caught:
        await drain(s.pipeline([np.array(["text"])]).to_device())
    assert "stage 1 (to_device), at item 0" in caught.value.__notes__[-1]
    with pytest.raises(ValueError, match="not among"):
        await drain(s.pipeline([BLOCK]).to_device(device="cpu:7"))


async def test_two_pipelines_share_a_limit() -> None:
    async def both(s: asc.Scheduler) -> Any:
        return await asyncio.gather(consume(s, 2), consume(s, 2, pause=True))

    async with asc.Scheduler("cpu", max_bytes=6 * BLOCK.nbytes) as s:
        assert await both(s) == [12, 12]


async def test_a_scope_around_the_pipeline_counts_its_puts(s: asc.Scheduler) -> None:
    async with s.scope(reserve=4 * BLOCK.nbytes):
        assert await consume(s, 1) == 12
    assert s.statistics().peak_bytes == 4 * BLOCK.nbytes


async def test_training_steps_in_a_window_take_from_a_pipeline() -> None:
    async with asc.Scheduler("cpu", max_bytes=8 * BLOCK.nbytes) as s:
        window, total = s.window(2), await s.put(np.zeros(()))
        async with s.pipeline(PAIRS).to_device().open() as items:
            async for x, y in items:
                async with window:
                    total = total + (x * y).sum()
                del x, y
        assert await total.item() == len(PAIRS) * BLOCK.size


async def test_batches_that_a_pipeline_would_put_when_the_scheduler_has_closed() -> None:
    async with asc.Scheduler("cpu") as s:
        items = s.pipeline([np.ones(3)] * 9).to_device().open()
        await items.__aenter__()
        await anext(items)
    try:
        with pytest.raises(asc.SchedulerClosed, match="closed"):
            async for _ in items:
                pass
    finally:
        await items.__aexit__(None, None, None)


async def test_tables_and_their_columns_are_put_as_put_does(s: asc.Scheduler, frame: MakeTable) -> None:
    made = frame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]})
    ((whole, column, number),) = await drain(s.pipeline([(made, made["a"], np.float64(7))]).to_device())
    assert (await whole.numpy()).tolist() == [[1, 4], [2, 5], [3, 6]]
    assert (await column.numpy()).tolist() == [1, 2, 3]
    assert type(number) is np.float64


async def test_a_table_with_text_is_refused_as_by_put(s: asc.Scheduler, frame: MakeTable) -> None:
    with pytest.raises(TypeError, match="put.*(numbers|dtype object is not supported).*DataFrame"):
        await drain(s.pipeline([frame({"a": [1], "b": ["x"]})]).to_device())


async def test_a_table_takes_part_in_the_limit_by_its_array(frame: MakeTable) -> None:
    async with asc.Scheduler("cpu", max_bytes=100_000) as s:
        tables = [frame({"a": np.full(10_000, float(i))}) for i in range(5)]
        async with s.pipeline(tables).to_device(depth=3).open() as items:
            found = []
            async for one in items:
                found.append(await one.sum().item())
                del one
        assert found == [0, 10_000, 20_000, 30_000, 40_000]
        assert s.statistics().peak_bytes <= 100_000


class Picture:
    """An object that NumPy takes for an array, as Pillow's images are."""

    def __init__(self) -> None:
        self._pixels = np.arange(4.0)

    @property
    def __array_interface__(self) -> Any:
        return self._pixels.__array_interface__


async def test_whatever_numpy_takes_for_an_array_is_put(s: asc.Scheduler) -> None:
    (found,) = await drain(s.pipeline([Picture()]).to_device())
    assert isinstance(found, asc.Tensor)
    assert found.shape == (4,)
