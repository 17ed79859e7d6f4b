"""Small operations share an event: how many, what has one of its own, and who waits for what has none yet."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices import execution
from asyncsched.devices.cuda import stream
from tests.fake_cupy import Fake
from tests.fake_cupy.errors import CUDARuntimeError
from tests.ledger import lane_of
from tests.waiting import until

from .conftest import BLOCK, all_issued, assert_ledgers_zero, ended, finished, issued, opened

pytestmark = pytest.mark.one_loop  # how the host hears of the device's work is the same on both
LARGE = np.ones(1 << 21, np.float32)


Step = Callable[[asc.Tensor], asc.Tensor]


def chain(x: asc.Tensor, count: int, step: Step = lambda x: x + 1) -> list[asc.Tensor]:
    found = [step(x)]
    while len(found) < count:
        found.append(step(found[-1]))
    return found


async def records(fake: Fake, array: np.ndarray, count: int = 40, step: Step = lambda x: x + 1) -> int:
    """How many events are recorded for so many operations that are issued one right after the other."""
    gate = threading.Event()
    async with opened(1, max_ops=None) as s:
        x = await s.put(array)
        await chain(x, 4, step)[-1]  # compiled
        await s.barrier()
        held = s.submit_nowait(gate.wait, 60)
        await until(lambda: lane_of(held) is not None)
        before = fake.statistics["records"]
        tensors = chain(x, count, step)
        gate.set()
        assert (await tensors[-1].numpy()).max() == count + 1
        await s.barrier()
        return fake.statistics["records"] - before


async def test_small_operations_share_events(fake: Fake) -> None:
    assert await records(fake, BLOCK) <= ceil(40 / stream.BURST) + 3  # of the function, and of the copy out


async def test_so_do_those_on_transposed_operands(fake: Fake) -> None:
    assert await records(fake, BLOCK, 20, lambda x: x.mT + 1) < 10  # of 40 operations


async def test_what_takes_a_while_has_an_event_of_its_own(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BURST_SECONDS", 1e-5)
    assert await records(fake, LARGE, count=6) >= 6


async def test_ends_are_told_before_anything_that_may_block(fake: Fake) -> None:
    """A function that follows is not begun before those are on their way."""
    first, second = threading.Event(), threading.Event()
    async with opened(1, max_ops=None) as s:
        x = await s.put(BLOCK)
        await chain(x, 3)[-1]
        await s.barrier()
        s.submit_nowait(first.wait, 60)
        tensors = chain(x, stream.BURST - 3)
        s.submit_nowait(second.wait, 60)
        first.set()
        await asc.gather(*tensors)
        second.set()
        assert (await tensors[-1].numpy()).max() == stream.BURST - 2


async def test_a_reader_on_another_stream_waits_for_what_has_no_event_yet(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, middle, run = threading.Event(), threading.Event(), execution.run

    def held(task: Any, memory: Any) -> None:
        run(task, memory)
        if task.name == "sqrt":
            assert middle.wait(60)

    def source(array: Any) -> Any:
        assert first.wait(60)
        return array * 3

    async with opened(2, max_ops=None) as s:
        x = await s.put(BLOCK)
        await asc.sqrt(x + 1)
        await (x * 5)
        await s.barrier()
        monkeypatch.setattr(execution, "run", held)
        before = await all_issued(s), finished(s)
        y = s.submit_nowait(source, x, shape=x.shape, dtype=x.dtype) + 1
        root = asc.sqrt(y)
        reader = y * 5
        assert lane_of(reader) is not lane_of(root)
        with fake.pause():
            first.set()
            await until(lambda: issued(s) == before[0] + 3)  # the source, y, and the reader; the root is in the middle
            assert finished(s) == before[1]
        middle.set()
        assert (await reader.numpy()).max() == 20
        assert (await root.numpy()).max() == 2


async def test_cancelled_ones_in_a_burst_end_as_such(fake: Fake) -> None:
    gate = threading.Event()
    async with opened(1, max_ops=None) as s:
        x = await s.put(BLOCK)
        await chain(x, 3)[-1]
        await s.barrier()
        s.submit_nowait(gate.wait, 60)
        tensors = [x + i for i in range(12)]
        assert tensors[3].cancel()
        gate.set()
        found = await asyncio.gather(*[tensor.numpy() for tensor in tensors], return_exceptions=True)
        assert [type(one) for one in found].count(asc.TaskCancelled) == 1
        assert all(found[i].max() == 1 + i for i in range(12) if i != 3)  # type: ignore[union-attr]


async def test_an_event_that_cannot_be_made_fails_one_task_and_no_other(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything lost: the watcher waits for the stream in its place."""
    gate, calls = threading.Event(), itertools.count(1)
    async with opened(1, max_ops=None) as s:
        x = await s.put(BLOCK)
        await chain(x, 3)[-1]
        await s.barrier()
        context = s.devices[0].context  # type: ignore[attr-defined]
        take = context.take_event

        def full() -> Any:
            if next(calls) == 2:  # after the function's
                raise CUDARuntimeError(2)
            return take()

        s.submit_nowait(gate.wait, 60)
        tensors = [x + i for i in range(stream.BURST)]
        monkeypatch.setattr(context, "take_event", full)
        gate.set()
        with pytest.raises(CUDARuntimeError):
            await tensors.pop()
        assert [(await tensor.numpy()).max() for tensor in tensors] == [*range(1, stream.BURST)]
        assert (await (x + 1).numpy()).max() == 2
        del tensors, x
    await ended()
    assert_ledgers_zero(s)
