"""Users' functions and arrays on streams of their own: what a function is given, and what it leaves behind."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import turns, until

from .conftest import NONE, Card

pytestmark = pytest.mark.one_loop
ONES = np.ones((64, 64), np.float32)


@pytest.fixture
async def s(card: Card) -> AsyncIterator[asc.Scheduler]:
    """One compute stream: what a function leaves behind meets the next task."""
    async with asc.Scheduler("cuda", streams=1) as s:
        yield s
    card.forgive()


async def goes_on(s: asc.Scheduler, x: asc.Tensor) -> None:
    """Rows, functions and puts do what they did before."""
    assert (await (x + 4).numpy()).max() == 5
    stream = s.devices[0].streams[0].cuda  # type: ignore[attr-defined]
    assert await s.call(_where) == (0, stream)
    assert (await (await s.put(ONES * 3)).numpy()).max() == 3


def _where() -> tuple[int, Any]:
    import cupy

    return cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream()


@pytest.mark.usefixtures("peers")
@pytest.mark.parametrize("how", ["use", "__enter__"])
async def test_a_device_that_a_function_left_current(s: asc.Scheduler, how: str) -> None:
    import cupy

    x = await s.put(ONES)
    await s.call(lambda _: getattr(cupy.cuda.Device(1), how)(), x)
    await goes_on(s, x)


@pytest.mark.usefixtures("peers")
async def test_what_a_function_made_on_another_device(s: asc.Scheduler) -> None:
    """It is no tensor of this one; without a shape it is what it is, also for the next function."""
    import cupy

    def there() -> Any:
        with cupy.cuda.Device(1):
            return cupy.ones(4, np.float32)

    with pytest.raises(ValueError, match="returned an array of <CUDA Device 1>: copy it over"):
        await (await s.submit(there, shape=4, dtype=np.float32))
    made = await s.submit(there)
    assert await s.call(lambda a: a.device.id, made) == 1
    assert (await made).device.id == 1


@pytest.mark.parametrize("how", ["use", "__enter__"])
async def test_a_stream_that_a_function_left_current(card: Card, s: asc.Scheduler, how: str) -> None:
    """What it returned becomes an array on the task's own stream."""
    stream = card.stream(non_blocking=True)

    def body(_: Any) -> Any:
        getattr(stream, how)()
        return ONES * 7

    x = await s.put(ONES)
    y = await s.submit(body, x, shape=ONES.shape, dtype=ONES.dtype)
    assert (await (y + 1).numpy()).min() == 8
    await goes_on(s, x)


class Mine(Exception):
    """A function's own."""


def begin() -> None:
    import cupy

    cupy.cuda.get_current_stream().begin_capture()


def begin_and_raise() -> None:
    begin()
    raise Mine


def begin_and_spoil() -> None:
    import cupy

    begin()
    try:
        cupy.cuda.get_current_stream().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        return


@pytest.mark.parametrize(
    ("body", "error"), [(begin, RuntimeError), (begin_and_raise, Mine), (begin_and_spoil, RuntimeError)]
)
async def test_a_capture_that_a_function_left_open(
    s: asc.Scheduler, body: Callable[[], None], error: type[Exception]
) -> None:
    x = await s.put(ONES)
    with pytest.raises(error, match="end it there" if error is RuntimeError else None):
        await s.call(body)
    await goes_on(s, x)


async def _within(stream: Any, begin: Callable[[], Awaitable[Any]]) -> Any:
    with stream:
        return await begin()


def _mine(stream: Any) -> Any:
    """An array of the user's, with the kernels compiled that it is used with."""
    import cupy

    with stream:
        array = cupy.zeros(ONES.shape, np.float32)
        array += 0
        stream.synchronize()
    return array


def _add_one(array: Any, stream: Any) -> None:
    with stream:
        array += 1


def _times_ten(array: Any) -> Any:
    return (array if not isinstance(array, list) else array[0]["a"]) * 10


@pytest.mark.parametrize("which", ["null", "blocking", "non-blocking"])
@pytest.mark.parametrize("how", ["submit", "call", "in a list", "put"])
async def test_work_on_an_array_of_the_users_is_waited_for(card: Card, s: asc.Scheduler, which: str, how: str) -> None:
    """On the stream that is current where it is given, whatever others make current meanwhile."""
    import cupy

    stream = cupy.cuda.Stream.null if which == "null" else card.stream(non_blocking=which == "non-blocking")
    other, device = card.stream(non_blocking=True), s.devices[0]
    streams = [*device.streams, device.copier]  # type: ignore[attr-defined]
    array = await asyncio.to_thread(_mine, stream)
    begin: dict[str, Callable[[], Awaitable[Any]]] = {
        "submit": lambda: s.submit(_times_ten, array),
        "call": lambda: s.call(_times_ten, array),
        "in a list": lambda: s.submit(_times_ten, [{"a": array}]),
        "put": lambda: s.put(array),
    }
    with card.busy([stream]):
        await asyncio.to_thread(_add_one, array, stream)
        given = asyncio.create_task(_within(stream, begin[how]))
        await _within(other, lambda: asyncio.sleep(0))
        await turns()
        await until(lambda: all(each.issued.count == each.launched for each in streams))
    found = await given
    if how != "call":
        found = await found
    assert (await asyncio.to_thread(_on_host, [found])).max() == (1 if how == "put" else 10)


def _on_host(held: list[Any]) -> Any:
    return held.pop().get()


async def test_what_a_function_waits_for_holds_up_no_other(card: Card, s: asc.Scheduler) -> None:
    """What was awaited is there: it is taken as it is."""
    import cupy

    x = await s.put(ONES)
    ready = await (x + 1)
    with card.busy([cupy.cuda.Stream.null]):
        assert (await (await s.submit(_times_ten, ready, shape=ONES.shape, dtype=ONES.dtype)).numpy()).max() == 20


async def test_streams_that_are_made_anew_for_each_call_leave_nothing(card: Card) -> None:
    """What one of them had is taken by the next; else each call would keep its stream and its memory for good."""
    import cupy

    streams: list[weakref.ref[Any]] = []

    def body(array: Any) -> float:
        here, own = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True)
        streams.append(weakref.ref(own))
        with own:
            own.wait_event(here.record())
            made = array * 2
            here.wait_event(own.record())
        return float(made.sum())

    async with asc.Scheduler("cuda", streams=1, max_bytes=None) as s:
        x = await s.put(np.ones(500_000, np.float32))
        pool, reserved = s.devices[0].context.pool, []  # type: ignore[attr-defined]
        for _ in range(12):
            assert await s.call(body, x) == 1_000_000
            reserved.append(pool.reserved())
        await until(lambda: sum(stream() is not None for stream in streams) <= 2)
        assert reserved[2] == reserved[-1]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:ExternalStream is deprecated")
async def test_memory_of_a_stream_that_is_gone_is_used_again(has_card: bool) -> None:
    """Somebody else made it, and destroyed it."""
    if not has_card:
        pytest.skip(NONE)
    import cupy

    runtime, gone = cupy.cuda.runtime, []

    def body(array: Any) -> float:
        if gone:
            runtime.streamDestroy(gone.pop())
        gone.append(runtime.streamCreateWithFlags(1))
        with cupy.cuda.ExternalStream(gone[0]) as stream:
            total = float((array * 2).sum())
            stream.synchronize()
        return total

    async with asc.Scheduler("cuda", streams=1) as s:
        x = await s.put(np.ones(5000, np.float32))
        for _ in range(4):
            assert await s.call(body, x) == 10_000
    runtime.streamDestroy(gone.pop())
