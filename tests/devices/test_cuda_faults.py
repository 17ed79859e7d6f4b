"""A device that is lost, at any moment: everybody who waits is told, nothing hangs, others go on.

`Event.done` stays False for ever after a fault and says nothing of it, and no callback comes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cuda.context import CUDAContext
from tests.fake_cupy import Fake, fake_cupy
from tests.fake_cupy.errors import CUDARuntimeError
from tests.ledger import lane_of, value_of
from tests.waiting import until

from .conftest import (
    BLOCK,
    CrossingDevice,
    all_issued,
    assert_ledgers_zero,
    assert_nothing_left_set,
    ended,
    issued,
    opened,
    problems,
)

pytestmark = pytest.mark.one_loop  # how the host hears of the device's work is the same on both
STEPS = 130  # more than the device takes for `work` without a fault


def step(x: asc.Tensor) -> asc.Tensor:
    return (x * 32) * 2


async def work(s: asc.Scheduler) -> None:
    """Copies in and out, chains, diamonds and a graph, all awaited by somebody."""
    waiting: list[asyncio.Task[None]] = []
    try:
        await _issue(s, waiting)
    finally:
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


async def _issue(s: asc.Scheduler, waiting: list[asyncio.Task[None]]) -> None:
    x = await s.put(BLOCK)
    graph = await s.capture(step, x)
    waiting += [asyncio.create_task(_equal(t, e)) for t, e in ((graph(x), 64.0), (await s.put(BLOCK * 3), 3.0))]
    y = x
    for i in range(5):
        y = (y + 1) * 1 + (y * 0 - i)
        waiting.append(asyncio.create_task(_equal(y, _expected(i))))
    waiting.append(asyncio.create_task(_equal(await s.submit(np.negative, x, shape=x.shape, dtype=x.dtype), -1.0)))


def _expected(last: int) -> float:
    return 1.0 + sum(1 - i for i in range(last + 1))


async def _equal(tensor: asc.Tensor, expected: float) -> None:
    assert np.allclose(await tensor.numpy(), expected)


async def close(s: asc.Scheduler) -> None:
    """Close; what nobody saw is reported, and is the device's error as well."""
    try:
        await s.aclose()
    except BaseExceptionGroup as group:
        told, others = group.split(CUDARuntimeError)
        assert others is None
        for error in told.exceptions if told is not None else ():
            assert_told(error)


def assert_told(error: BaseException) -> None:
    """Whoever meets the fault is told what it means."""
    assert isinstance(error, CUDARuntimeError)
    assert error.status == 700
    assert sum("cuda:0 is unusable" in note for note in error.__notes__) == 1, error.__notes__


@pytest.mark.parametrize("seed", range(2))
async def test_a_fault_at_any_step(seed: int) -> None:
    faults = 0
    for at in range(1, STEPS, 6):
        with fake_cupy(seed * 1000 + at) as fake:
            s = asc.Scheduler(CrossingDevice(0, 2), max_ops=(2, None, 8)[at % 3])
            try:
                async with s:
                    fake.fault_at(at)
                    try:
                        await work(s)
                    except CUDARuntimeError as error:
                        assert_told(error)
                    if fake.statistics["faults"]:
                        await _later_ones_fail(s)
                    assert_nothing_left_set()
                    await close(s)
            finally:
                faults += fake.statistics["faults"]
            await ended()
            assert_ledgers_zero(s)
            assert problems(fake) == []
            assert fake.ranges == {}
    assert faults > 8


async def test_a_launch_that_fails_after_the_fault_says_what_it_means(monkeypatch) -> None:
    """Also where its stream finds nothing to report, since the fault came on another."""
    with fake_cupy() as fake:
        s = asc.Scheduler(CrossingDevice(0, 1))
        async with s:
            fake.fault_at(1)
            with pytest.raises(CUDARuntimeError) as first:
                await _put(s)
            assert_told(first.value)
            monkeypatch.setattr("tests.fake_cupy.streams._BaseStream.synchronize", lambda _: None)
            with pytest.raises(CUDARuntimeError) as later:
                await s.call(_again)
            assert_told(later.value)
            monkeypatch.undo()
            await close(s)
        await ended()


async def _later_ones_fail(s: asc.Scheduler) -> None:
    for later in (_put, lambda s: s.call(_again)):
        (error,) = await asyncio.gather(later(s), return_exceptions=True)
        assert isinstance(error, CUDARuntimeError)
        assert_told(error)


async def _put(s: asc.Scheduler) -> None:
    await (await s.put(BLOCK))


def _again() -> None:
    """A body that takes no part in the fault."""


CALLS: dict[str, Callable[[asc.Scheduler, asc.Tensor], Awaitable[Any]]] = {
    "await": lambda s, x: x + 1,
    "gather": lambda s, x: asc.gather(x + 1, x * 2),
    "numpy": lambda s, x: x.numpy(),
    "item": lambda s, x: x.sum().item(),
    "put": lambda s, x: s.put(BLOCK),
    "call": lambda s, x: s.call(np.negative, x),
    "capture": lambda s, x: s.capture(step, x),
    "barrier": lambda s, x: _barrier(s, x),
}


async def _barrier(s: asc.Scheduler, x: asc.Tensor) -> None:
    x + 1
    try:
        await s.barrier()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("moment", ["waiting", "before"])
async def test_whoever_waits_is_told(fake: Fake, call: str, moment: str) -> None:
    async with opened(2) as s:
        x = await s.put(BLOCK)
        await asc.gather(x + 1, x * 2, x.sum())
        await s.barrier()
        if moment == "before":
            fake.fail()
            waiting = asyncio.create_task(_awaited(CALLS[call](s, x)))
        else:
            with fake.pause():
                waiting = asyncio.create_task(_awaited(CALLS[call](s, x)))
                for _ in range(50):
                    await asyncio.sleep(0)
                assert not waiting.done()
                fake.fault_at(1)
        with pytest.raises(CUDARuntimeError, match="illegal memory access"):
            await waiting
        with pytest.raises(CUDARuntimeError):
            await (x + 1)
        await close(s)
        del x, waiting
    await ended()
    assert_ledgers_zero(s)


async def test_every_unfinished_task_of_every_stream_fails(fake: Fake) -> None:
    async with opened(3, max_ops=None) as s:
        x = await s.put(BLOCK)
        await (x + 1)
        before = await all_issued(s)
        with fake.pause():
            tensors = [x + i for i in range(12)]
            joined = tensors[0] + tensors[1]
            await until(lambda: issued(s) == before + 13)
            cancelled = tensors.pop()
            assert cancelled.cancel()
            fake.fault_at(1)
        for tensor in (*tensors, joined):
            with pytest.raises(CUDARuntimeError):
                await tensor
        with pytest.raises(asc.TaskCancelled):
            await cancelled
        del x, tensors, joined, cancelled, tensor
    await ended()
    assert_ledgers_zero(s)


async def test_after_a_fault_no_body_runs_and_all_get_one_error(fake: Fake) -> None:
    ran: list[int] = []
    async with opened(2) as s:
        x = await s.put(BLOCK)
        fake.fail()
        with pytest.raises(CUDARuntimeError):
            await (x + 1)
        errors = await asyncio.gather(
            _awaited(x * 2), _awaited(x.sum()), s.call(ran.append, 1), s.call(ran.append, 2), return_exceptions=True
        )
        assert len({repr(error) for error in errors}) == 1
        assert isinstance(errors[0], CUDARuntimeError)
        assert ran == []
        await close(s)


async def test_what_a_fault_kept_from_being_made_is_not_read(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task asks whether the device is lost after it waited for its producers: it may be lost meanwhile."""
    gate, decided, read = threading.Event(), threading.Event(), []
    async with opened(2) as s:
        x = await s.put(BLOCK)
        await s.barrier()
        # The reader is told nothing of its producer.
        monkeypatch.setattr(CUDAContext, "lost", _after(decided, CUDAContext.lost))
        first, second = s.devices[0].streams
        made = s.submit_nowait(_after(gate, np.positive), x, shape=x.shape, dtype=x.dtype) + 1
        tail = made * 2  # so that the reader goes to the other stream
        reader = s.submit_nowait(read.append, made)
        assert [lane_of(t).stream for t in (made, tail, reader)] == [first, first, second]
        await until(lambda: first.issued.waiters)  # the reader waits for its producer
        fake.fail()
        gate.set()
        await until(lambda: second.issued.count == second.launched)
        decided.set()
        with pytest.raises(CUDARuntimeError):
            await reader
        assert read == []
        await close(s)


def _after(gate: threading.Event, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, held up until the gate opens."""

    def held(*args: Any) -> Any:
        assert gate.wait(60)
        return function(*args)

    return held


async def test_a_fault_when_an_event_is_made(fake: Fake) -> None:
    """More events are needed than the pool has, and the device is gone by then."""
    async with opened(1, max_ops=None) as s:
        x = await s.put(BLOCK)
        before = await all_issued(s)
        with fake.pause():
            first = [x + i for i in range(5)]
            await until(lambda: issued(s) == before + 5)
        fake.fail()
        for tensor in (*first, x + 1):
            try:
                assert (await tensor).shape == x.shape
            except CUDARuntimeError as error:
                assert error.status == 700
        with pytest.raises(CUDARuntimeError):
            await (x + 1)
        await close(s)


async def test_without_an_event_one_task_fails_alone(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is full, not lost: what was issued is waited for, and others go on."""
    async with asc.Scheduler(CrossingDevice(0, 1)) as s:
        x = await s.put(BLOCK)
        assert (await (x + 1).numpy()).max() == 2
        with monkeypatch.context() as patch:
            patch.setattr(s.devices[0].context, "take_event", _full)
            y = x + 1
            with pytest.raises(CUDARuntimeError, match="cudaErrorMemoryAllocation") as caught:
                await y
            assert not any("unusable" in note for note in caught.value.__notes__)
            with pytest.raises(CUDARuntimeError, match="cudaErrorMemoryAllocation"):
                await (y + 1)
        for i in range(3):
            assert (await (x + i).numpy()).max() == i + 1


def _full() -> None:
    raise CUDARuntimeError(2)


async def test_a_reader_that_could_not_wait_does_not_settle_what_it_reads(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether an index was wrong is known when the device has passed the operation, and the reader ends before."""
    async with opened(2, max_ops=None) as s:
        x, good, bad = await s.put(BLOCK), await s.put(np.arange(32)), await s.put(np.arange(32) + 1)
        await (asc.take(x, good, axis=0) * 2 + x)
        await s.barrier()
        one, other = s.devices[0].streams

        def fails(event: Any) -> None:
            raise CUDARuntimeError(2)

        monkeypatch.setattr(other.cuda, "wait_event", fails)
        with fake.hold(one.cuda):
            y = asc.take(x, bad, axis=0)
            tail, reader = y * 2, y * 3
            assert [lane_of(t).stream for t in (y, tail, reader)] == [one, one, other]
            await all_issued(s)
            await until(lambda: value_of(y).deferred_errors[0].settled or one.finished.waiters)
        with pytest.raises(CUDARuntimeError):
            await reader
        for tensor in (y, tail):
            with pytest.raises(IndexError, match="index 32 is out of bounds"):
                await tensor


async def test_the_error_of_a_lost_device_holds_nobody(fake: Fake) -> None:
    """It lives as long as the device, and so would the frames that it came by, with those who wait for their tasks."""
    async with opened(1) as s:
        x = await s.put(BLOCK)
        await s.barrier()
        s.devices[0].context._events[
            False
        ].clear()  # so that the fault is met where one is made, after the pool had none
        fake.fail()
        for _ in range(2):  # the first has an error of its own besides
            with pytest.raises(CUDARuntimeError):
                await _put_beside(s, x)
        await close(s)
        del x
    await ended()
    assert_ledgers_zero(s)


async def _put_beside(s: asc.Scheduler, held: asc.Tensor) -> None:
    """While this frame is there, so is what it was given."""
    await s.put(BLOCK)


async def test_the_other_devices_go_on(three: Fake) -> None:
    async with asc.Scheduler(["cuda:0", "cuda:1", "cpu"]) as s:
        tensors = {device.name: await s.put(BLOCK, device=device) for device in s.devices}
        await s.barrier()
        three.fail(1)
        with pytest.raises(CUDARuntimeError):
            await (tensors["cuda:1"] + 1)
        for name, tensor in tensors.items():
            if name != "cuda:1":
                assert (await (tensor + 1).numpy()).max() == 2
        assert (await (tensors["cuda:0"].to("cpu:2") + 1).numpy()).max() == 2
        await close(s)
        del tensors, tensor
    await ended()
    assert_ledgers_zero(s)


async def test_a_fault_while_the_scheduler_is_left_by_an_exception(fake: Fake) -> None:
    with pytest.raises(KeyError):
        async with opened(2) as s:
            x = await s.put(BLOCK)
            with fake.pause():
                for _ in range(20):
                    x = x + 1
                fake.fault_at(1)
            raise KeyError
    del x
    await ended()
    assert_ledgers_zero(s)


async def test_a_fault_during_a_spin(fake: Fake) -> None:
    """`Event.done` would stay False for as long as the spin may last."""
    async with opened(1, spin=600.0) as s:
        x = await s.put(BLOCK)
        await (x + 1)
        before = await all_issued(s)
        with fake.pause():
            y = x + 1
            await until(lambda: issued(s) == before + 1)
            fake.fault_at(1)
        with pytest.raises(CUDARuntimeError):
            await y
        await close(s)
