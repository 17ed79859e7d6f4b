"""Whoever holds a value is counted among its holders: each kind is left out once, and the oracle must find it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
import asyncsched.array_api as xp
from asyncsched._core.model import Lease, Task, Value
from asyncsched.array_api.array import kept
from tests.oracle import watching
from tests.waiting import held, settled, until

BLOCK = np.ones((200, 200))  # from the pool


class Silent(Lease):
    """A lease that does not count."""

    __slots__ = ()

    def __init__(self, value: Value) -> None:
        self._value, self._entry = value, None


async def overwritten(s: asc.Scheduler, holds: Callable[[asc.Tensor], Any]) -> None:
    """An operation that could write over a value, which somebody else holds."""
    x = await settled(await s.put(BLOCK))
    gate = threading.Event()
    running = s.submit_nowait(held, gate)
    holder = holds(x)
    for _ in range(3):  # whoever is to wait does
        await asyncio.sleep(0)
    y = x + 1
    del x
    gate.set()
    await running
    await settled(y)
    if isinstance(holder, Awaitable):
        await holder


async def by_an_await(s: asc.Scheduler) -> None:
    x = await settled(await s.put(BLOCK))
    gate = threading.Event()
    running = s.submit_nowait(held, gate)
    y = x * 2
    waiting = y.__await__()
    next(waiting)  # it waits, and does not go on before the end
    y[0] = 5  # the handle goes on to another version
    gate.set()
    await running
    assert (await y)[:2, 0].tolist() == [5, 2]
    waiting.close()


async def by_the_tape(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    x.requires_grad = True
    y = asc.exp(x)  # whose derivative reads it
    await settled(y)
    gate = threading.Event()
    running = s.submit_nowait(held, gate)
    loss = (y + 1).sum()
    del y
    gate.set()
    await running
    await settled(loss)


async def by_a_copy_out(s: asc.Scheduler) -> None:
    gate, device = threading.Event(), s.devices[0]
    fetch = device.fetch
    device.fetch = lambda array: (gate.wait(), fetch(array))[1]  # type: ignore[method-assign]
    x = await settled(await s.put(BLOCK))
    copied = asyncio.ensure_future(x.numpy())
    for _ in range(3):
        await asyncio.sleep(0)
    y = x + 1
    del x
    await settled(y)
    gate.set()
    assert np.array_equal(await copied, BLOCK)


async def by_a_captured_step(s: asc.Scheduler) -> None:
    x, constants = await s.put(BLOCK), [await settled(await s.put(BLOCK))]
    graph = await s.capture(lambda x: x + constants[0], x)
    gate = threading.Event()
    running = s.submit_nowait(held, gate)
    y = constants.pop() + 1
    gate.set()
    await running
    await settled(y)
    await graph(x)


async def by_another_task(s: asc.Scheduler) -> None:
    x = await settled(await s.put(BLOCK))
    gate = threading.Event()
    running = s.submit_nowait(held, gate)
    waiting = s.submit_nowait(lambda _: None, running)
    y, z = x + 1, x * 2
    del x
    gate.set()
    await waiting
    await settled(y)
    await settled(z)


async def array_api(s: asc.Scheduler) -> None:
    def work() -> None:
        with xp.using("cpu", streams=1):
            x = xp.asarray(BLOCK)
            background = kept.get()
            gate = threading.Event()
            background.issue(background.scheduler.submit_nowait, held, gate)
            y = x + 1
            gate.set()
            assert float(xp.sum(y)) == 2 * BLOCK.size
            assert float(x[1, 0]) == 1.0

    await asyncio.to_thread(work)


def forgetting_reads(task: Task) -> None:
    assert task.value is not None
    task.value.task = task


# The program, and what is put in whose place.
KINDS: dict[str, tuple[Callable[[asc.Scheduler], Awaitable[None]], dict[str, Any]]] = {
    "a handle": (lambda s: overwritten(s, lambda x: x.detach()), {"tensors.tensor.enter": lambda holders: None}),
    "an await": (by_an_await, {"tensors.tensor.enter": lambda holders: None}),  # it shares the handle's entry
    "gather": (lambda s: overwritten(s, lambda x: asc.gather(x)), {"tensors.handles.Lease": Silent}),
    "a host copy to come": (lambda s: overwritten(s, lambda x: x.numpy()), {"tensors.awaitables.Lease": Silent}),
    "a view": (lambda s: overwritten(s, lambda x: x[1:]), {"_core.model.Lease": Silent}),
    "the tape": (by_the_tape, {"autograd.tape.Lease": Silent}),
    "a copy out": (by_a_copy_out, {"tensors.handles.Lease": Silent, "tensors.awaitables.Lease": Silent}),
    "a captured step": (by_a_captured_step, {"tensors.capture.Lease": Silent}),
    "another task's read": (
        by_another_task,
        {"_core.model.Task.__post_init__": forgetting_reads, "_core.model.take_out": lambda holders: None},
    ),
    "an array of the namespace": (array_api, {"array_api.places.Lease": Silent}),
}


@pytest.mark.one_loop
@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_holder_counts_and_is_missed_if_it_does_not(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, without = KINDS[kind]
    with watching(monkeypatch) as oracle:
        async with asc.Scheduler("cpu", streams=1) as s:
            await program(s)
    assert not oracle.wrong
    with watching(monkeypatch) as oracle, monkeypatch.context() as patch:
        for name, stand_in in without.items():
            patch.setattr(f"asyncsched.{name}", stand_in)
        with suppress(AssertionError):  # of wrong values, which are no wonder
            async with asc.Scheduler("cpu", streams=1) as s:
                await program(s)
    assert oracle.wrong


async def test_the_bytes_of_a_chain_are_those_that_it_takes(s: asc.Scheduler) -> None:
    """What will be written over takes no bytes, and that is known before it runs."""
    x, gate = await settled(await s.put(BLOCK)), threading.Event()
    running = s.submit_nowait(held, gate)
    for _ in range(40):
        x = x * 0.99 + 0.01
    peak = s.statistics().peak_bytes
    gate.set()
    await running
    await settled(x)
    assert peak <= 5 * BLOCK.nbytes
    assert s.statistics().bytes_retained == BLOCK.nbytes


async def test_a_step_that_can_only_be_in_place_needs_no_room() -> None:
    async with asc.Scheduler("cpu", streams=1, max_bytes=2 * BLOCK.nbytes) as s:
        other, x = await s.put(BLOCK), await s.put(BLOCK)
        for _ in range(20):
            x = x * 0.5 + 1.0
        assert await x[0, 0].item() == pytest.approx(2.0)
        assert s.statistics().peak_bytes <= 2 * BLOCK.nbytes + 8
        del other


async def test_a_pending_task_goes_when_the_last_other_holder_ends() -> None:
    """Nothing else would wake the loop: no bytes come free by that."""
    async with asc.Scheduler("cpu", streams=1, max_bytes=2 * BLOCK.nbytes) as s:
        other, x = await s.put(BLOCK), await settled(await s.put(BLOCK))
        loop = asyncio.get_running_loop()
        again = [x, x.detach()]
        y = x + 1
        del x
        assert repr(y).endswith("pending: add)")
        loop.call_soon(again.pop)
        loop.call_soon(again.pop)
        await until(y.done)
        assert (await y)[0, 0] == 2
        del other


async def test_who_fails_before_it_is_submitted_holds_nothing(s: asc.Scheduler) -> None:
    """So what follows may write over it, without which it would not fit."""
    x = await settled(await s.put(BLOCK))
    async with asc.Scheduler("cpu", streams=1, max_bytes=2 * BLOCK.nbytes + 8) as tight:
        other, y = await tight.put(BLOCK), await settled(await tight.put(BLOCK))
        with pytest.raises(asc.TaskTooLarge):
            asc.concat([y, y])
        with pytest.raises(ValueError, match="different schedulers"):
            y + x
        y = y * 2
        assert await y[0, 0].item() == 2
        del other
