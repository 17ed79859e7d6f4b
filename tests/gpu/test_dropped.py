"""What was awaited may be dropped at any time, on any thread, with work on it under way: its memory waits for that."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import turns, until

from .conftest import Card

pytestmark = pytest.mark.one_loop
SHAPE = (64, 64)
SIZE = 64 * 64 * 4


@pytest.fixture
async def s(card: Card) -> Any:
    """One compute stream, so that what is dropped is taken next."""
    async with asc.Scheduler("cuda", streams=1) as s:
        yield s
    card.forgive()


@pytest.fixture
def streams(card: Card) -> dict[str, Any]:
    import cupy

    return {
        "null": cupy.cuda.Stream.null,
        "blocking": card.stream(),
        "current": card.stream(non_blocking=True),
        "told": card.stream(non_blocking=True),
    }


async def made(s: asc.Scheduler) -> tuple[asc.Tensor, Any]:
    """What is put, and an awaited array of ones whose tensor is gone; its shape was computed with before."""
    x = await s.put(np.zeros(SHAPE, np.float32))
    await asyncio.to_thread(_times_ten, await (x + 1))
    gc.collect()
    await until(lambda: s.statistics().bytes_retained == SIZE)
    return x, await (x + 1)


def _times_ten(array: Any, stream: Any = nullcontext()) -> Any:  # noqa: B008
    with stream:
        return array * 10


async def written_over(s: asc.Scheduler, x: asc.Tensor) -> None:
    """Run what takes the memory that is free, if there is any."""
    for tensor in [x + 5 for _ in range(4)]:
        assert (await tensor.numpy()).max() == 5


async def here(held: list[Any]) -> None:
    held.clear()


async def in_a_thread(held: list[Any]) -> None:
    await asyncio.to_thread(held.clear)


async def by_the_collector(held: list[Any]) -> None:
    cycle = SimpleNamespace(array=held.pop())
    cycle.itself = cycle
    del cycle
    await asyncio.to_thread(gc.collect)


@pytest.mark.parametrize("drop", [here, in_a_thread, by_the_collector], ids=lambda f: f.__name__)
@pytest.mark.parametrize("which", ["null", "blocking", "told"])
async def test_work_on_it_is_waited_for(
    card: Card, s: asc.Scheduler, streams: dict[str, Any], which: str, drop: Callable[[list[Any]], Awaitable[None]]
) -> None:
    x, array = await made(s)
    stream, held = streams[which], [array]
    del array

    def use() -> Any:
        with stream:
            return held[0] * 10

    with card.busy([stream]):
        result = await asyncio.to_thread(use)
        if which == "told":
            asc.record_stream(held[0], stream)
        await drop(held)
        await written_over(s, x)
        assert s.statistics().bytes_retained == 2 * SIZE  # its bytes are charged meanwhile
    assert (await asyncio.to_thread(_on_host, result, stream)).tolist() == np.full(SHAPE, 10.0).tolist()
    await until(lambda: s.statistics().bytes_retained == SIZE)


def _on_host(array: Any, stream: Any) -> np.ndarray[Any, Any]:
    with stream:
        found: np.ndarray[Any, Any] = array.get()
        return found


async def test_a_slow_stream_keeps_what_was_used_on_it_alone(
    card: Card, s: asc.Scheduler, streams: dict[str, Any]
) -> None:
    """All waits for the null stream, and so for blocking ones. What is past that does not wait for it anew."""
    x, first = await made(s)
    second, third = await (x + 2), await (x + 3)
    with ExitStack() as told:
        told.enter_context(card.busy([streams["told"]]))
        kept = [await asyncio.to_thread(_times_ten, first, streams["told"])]
        asc.record_stream(first, streams["told"])
        del first
        await turns(20)
        del third
        await until(lambda: s.statistics().bytes_retained == 3 * SIZE)  # so the first is past the null stream, too
        with card.busy([streams["blocking"]]):
            kept.append(await asyncio.to_thread(_times_ten, second, streams["blocking"]))
            del second
            await until(s.devices[0]._janitor._queue.empty)  # type: ignore[attr-defined]
            told.close()
            await until(lambda: s.statistics().bytes_retained == 2 * SIZE)
    await until(lambda: s.statistics().bytes_retained == SIZE)
    del kept


async def test_the_stream_that_is_current_where_it_dies_is_waited_for(
    card: Card, s: asc.Scheduler, streams: dict[str, Any]
) -> None:
    x, array = await made(s)
    stream, held = streams["current"], [array]
    del array

    def use_and_drop() -> Any:
        with stream:
            return held.pop() * 10

    with card.busy([stream]):
        result = await asyncio.to_thread(use_and_drop)
        await written_over(s, x)
    assert (await asyncio.to_thread(_on_host, result, stream)).max() == 10
    await until(lambda: s.statistics().bytes_retained == SIZE)


async def test_also_if_a_function_made_it_and_its_tensor_lives_longer(
    card: Card, s: asc.Scheduler, streams: dict[str, Any]
) -> None:
    """Each who awaits it has a share of their own."""
    x, _ = await made(s)
    del _
    await until(lambda: s.statistics().bytes_retained == SIZE)
    y = await s.submit(np.add, x, 1, shape=SHAPE, dtype=np.float32)
    stream, held = streams["current"], [await y]

    def use_and_drop() -> Any:
        with stream:
            return held.pop() * 10

    with card.busy([stream]):
        result = await asyncio.to_thread(use_and_drop)
        del y
        await written_over(s, x)
    assert (await asyncio.to_thread(_on_host, result, stream)).max() == 10
    await until(lambda: s.statistics().bytes_retained == SIZE)


async def test_views_and_what_dlpack_made_of_it_count(card: Card, s: asc.Scheduler, streams: dict[str, Any]) -> None:
    """A consumer has a stream of its own, of which CuPy knows nothing."""
    import cupy

    x, array = await made(s)
    stream, held = streams["told"], [cupy.from_dlpack(array)]

    def use() -> Any:
        with stream:
            return held[0] * 10

    asc.record_stream(array[1:], stream.ptr)
    with card.busy([stream]):
        del array
        result = await asyncio.to_thread(use)
        await written_over(s, x)
        held.clear()
        await written_over(s, x)
        assert s.statistics().bytes_retained == 2 * SIZE
    assert (await asyncio.to_thread(_on_host, result, stream)).max() == 10
    await until(lambda: s.statistics().bytes_retained == SIZE)


@pytest.mark.parametrize("which", ["blocking", "current"])
async def test_a_capture_is_left_alone(s: asc.Scheduler, streams: dict[str, Any], which: str) -> None:
    """What dies meanwhile waits for its end: an event would become part of the graph, or spoil it."""
    import cupy

    x, array = await made(s)
    stream, held = streams[which], [array]
    del array
    target, done, go = [], threading.Event(), threading.Event()

    def capture() -> Any:
        target.append(cupy.empty(SHAPE, np.float32))
        with stream:
            target[0].fill(3)
            stream.begin_capture()
            held.clear()
            done.set()
            go.wait(60)
            target[0].fill(7)
            graph = stream.end_capture()
            graph.launch(stream)
            return target[0].get()

    capturing = asyncio.create_task(asyncio.to_thread(capture))
    await until(done.is_set)
    await written_over(s, x)
    assert s.statistics().bytes_retained == 2 * SIZE
    go.set()
    assert (await capturing).max() == 7
    await until(lambda: s.statistics().bytes_retained == SIZE)


async def test_what_a_callable_keeps_is_waited_for(card: Card, s: asc.Scheduler, streams: dict[str, Any]) -> None:
    """It made the array itself; what it drops again at once is taken again at once."""
    kept: list[Any] = []

    def body(a: Any) -> Any:
        places = {(a + i).data.ptr for i in range(5)}
        kept.append(a + 1)
        return len(places)

    x, _ = await made(s)
    del _
    await until(lambda: s.statistics().bytes_retained == SIZE)
    assert await s.call(body, x) == 1
    with card.busy([streams["null"]]):
        result = await asyncio.to_thread(lambda: kept[0] * 10)
        kept.clear()
        await written_over(s, x)
    assert (await asyncio.to_thread(result.get)).max() == 10


async def test_nothing_goes_first_for_want_of_what_is_on_its_way_back(card: Card) -> None:
    """What goes first may be held for good, and then the first never fits. Nor is it called a deadlock meanwhile."""
    import cupy

    large = np.zeros((3, *SHAPE), np.float32)
    async with asc.Scheduler("cuda", streams=1, max_bytes=5 * SIZE) as s:
        x, kept = await s.put(np.zeros(SHAPE, np.float32)), await s.put(np.zeros(SHAPE, np.float32))
        held = [await (x + 1)]
        with card.busy([cupy.cuda.Stream.null]):
            use = await asyncio.to_thread(_times_ten, held[0])
            await in_a_thread(held)
            first = asyncio.create_task(s.put(large))
            second = asyncio.create_task(s.put(large[0]))
            await until(lambda: s.statistics().tasks_pending == 2)
            await turns()
            assert s.statistics().tasks_pending == 2
        await first
        assert not second.done()
        del kept
        await second
        del use
    card.forgive()


async def test_work_of_the_scheduler_never_waits_for_a_users(card: Card, s: asc.Scheduler) -> None:
    """A stream may wait a little longer than it must for an event that was recorded again: never for the janitor's."""
    import cupy

    x, array = await made(s)
    context = s.devices[0].context
    before = list(context._events)
    assert before
    with card.busy([cupy.cuda.Stream.null]):
        use = await asyncio.to_thread(_times_ten, array)
        del array
        await until(lambda: s.devices[0].memory.completions.returning)
        await written_over(s, x)
        assert {id(event) for event in before} <= {id(event) for event in context._events}
    del use


async def test_the_memory_comes_back(s: asc.Scheduler) -> None:
    """Also where nothing works on it, and the tensor outlives the array."""
    x = await s.put(np.zeros(SHAPE, np.float32))
    y = x + 1
    for _ in range(3):
        assert (await y).shape == SHAPE
    del y
    await until(lambda: s.statistics().bytes_retained == SIZE)
    place = (await (x + 2)).data.ptr
    await until(lambda: s.statistics().bytes_retained == SIZE)
    assert (await (x + 3)).data.ptr == place


async def test_what_record_stream_refuses(s: asc.Scheduler, streams: dict[str, Any]) -> None:
    x, array = await made(s)
    stream = streams["told"]
    with pytest.raises(TypeError, match="a = await t"):
        asc.record_stream(x, stream)
    with pytest.raises(TypeError, match=r"numpy\.ndarray"):
        asc.record_stream(np.zeros(3), stream)
    with pytest.raises(TypeError, match="a stream is"):
        asc.record_stream(array, "null")
    with pytest.raises(ValueError, match="-1 is no pointer"):
        asc.record_stream(array, -1)
    with pytest.raises(ValueError, match="of cuda:1 and the array of cuda:0"):
        asc.record_stream(array, SimpleNamespace(cuda_stream=5, device_index=1))


async def test_a_busy_stream_keeps_only_what_was_used_on_it(
    card: Card, s: asc.Scheduler, streams: dict[str, Any]
) -> None:
    """Memory that other streams, or none, have used comes back: of the same burst, and of later ones."""
    x, slow = await made(s)
    slow_one, other = streams["told"], streams["current"]

    def use(array: Any, stream: Any) -> Any:
        with stream:
            return array * 10

    with card.busy([slow_one]):
        result = await asyncio.to_thread(use, slow, slow_one)
        quick = await (x + 2)
        asc.record_stream(slow, slow_one)
        asc.record_stream(quick, other)
        held = [slow, quick]
        del slow, quick
        held.clear()
        await until(lambda: s.statistics().bytes_retained == 2 * SIZE)
        for _ in range(3):
            later = await (x + 3)
            asc.record_stream(later, other)
            del later
            await until(lambda: s.statistics().bytes_retained == 2 * SIZE)
        await written_over(s, x)
        assert s.statistics().bytes_retained == 2 * SIZE
    assert (await asyncio.to_thread(_on_host, result, slow_one)).max() == 10
    await until(lambda: s.statistics().bytes_retained == SIZE)
