"""The simulated device: its seed makes the order, and its faults are failures like any other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.sim import SimDevice, SimFault
from tests.ledger import array_of, engine_of
from tests.validate import validate


async def order(seed: int, **options: Any) -> tuple[list[int], int]:
    """The order in which twenty bodies ran, and when the last had."""
    ran: list[int] = []
    device = SimDevice(seed, 3, **options)
    async with asc.Scheduler(device) as s:
        for i in range(20):
            s.submit_nowait(ran.append, i)
        await s.barrier()
    return ran, device.now


async def test_the_same_seed_gives_the_same_order() -> None:
    found = [await order(seed) for seed in range(8)]
    assert found == [await order(seed) for seed in range(8)]
    assert len({tuple(ran) for ran, _ in found}) > 4
    assert all(sorted(ran) == list(range(20)) for ran, _ in found)


async def test_a_lazy_device_takes_longer() -> None:
    assert (await order(1, laziness=0.9))[1] > 2 * (await order(1, laziness=0.0))[1]


async def test_one_stream_keeps_the_order() -> None:
    ran: list[int] = []
    async with asc.Scheduler(SimDevice(4, 1)) as s:
        for i in range(20):
            s.submit_nowait(ran.append, i)
    assert ran == list(range(20))


@pytest.mark.parametrize("seed", range(5))
async def test_streams_wait_for_their_producers(seed: int) -> None:
    async with asc.Scheduler(SimDevice(seed, 4), max_ops=5) as s:
        x = await s.put(np.arange(20_000.0))
        parts = [x * i for i in range(8)]
        while len(parts) > 1:
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
        assert (await parts[0]).tobytes() == (np.arange(20_000.0) * 28).tobytes()


@pytest.mark.parametrize("seed", range(5))
async def test_injected_faults_reach_whoever_reads(seed: int) -> None:
    device = SimDevice(seed, 2, fault_rate=0.2)
    faults = 0
    async with asc.Scheduler(device, max_ops=4, max_bytes="8 MiB") as s:
        for i in range(40):
            try:
                x = await s.put(np.full(20_000, float(i)))
                y = (x + 1) * 2
                assert (await y)[0] == 2 * (i + 1)
            except SimFault as fault:
                faults += 1
                assert "injected into" in str(fault)
            x = y = None
        await s.barrier()
        validate(engine_of(s))
        found = s.statistics()
        assert found.bytes_retained == found.bytes_in_flight == 0
    assert 0 < faults <= device.faults


async def test_every_task_faulty() -> None:
    with pytest.raises(ExceptionGroup, match="5 tasks failed") as caught:
        async with asc.Scheduler(SimDevice(1, fault_rate=1.0)) as s:
            for _ in range(5):
                s.submit_nowait(int, s.submit_nowait(int))
    assert {type(error) for error in caught.value.exceptions} == {SimFault}


async def test_what_is_freed_is_poisoned() -> None:
    async with asc.Scheduler(SimDevice(1)) as s:
        x = await s.put(np.ones(20_000))
        under = array_of(x)  # not an escape: nobody was told
        del x
        assert under.view(np.uint8)[0] == 0xA5


@pytest.mark.parametrize("seed", range(3))
async def test_cancelled_tasks_are_skipped(seed: int) -> None:
    ran: list[int] = []
    async with asc.Scheduler(SimDevice(seed, 2)) as s:
        tasks = [s.submit_nowait(ran.append, i) for i in range(10)]
        assert all(task.cancel() for task in tasks[::2])
        await s.barrier()
        assert s.statistics().tasks_cancelled == 5
    assert sorted(ran) == [1, 3, 5, 7, 9]


async def test_beside_another_device():
    """Threads of the other wait for simulated events, and simulated streams for theirs."""
    async with asc.Scheduler([SimDevice(3, laziness=0.6), "cpu"]) as s:
        sim, cpu = s.devices
        x = await s.put(np.arange(3000.0), device=sim)
        total = await s.put(np.zeros(3000), device=cpu)
        for _ in range(10):
            total = total + (x * 2).to(cpu)
            x = (total * 0 + 1).to(sim)
        assert (await total.numpy()).tolist() == (2 * np.arange(3000.0) + 18).tolist()
