"""Workers with cards, which are the fake CuPy's. With the real one the same programs run in `tests/cuda_host`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.cluster import work
from asyncsched.cluster.device import DaskDevice
from tests.fake_cupy import fake_cupy

from . import on_cards
from .on_cards import A, here
from .test_kills import KILLS, SWEEP, killed, mapped, trained

pytestmark = [pytest.mark.one_loop, pytest.mark.timeout(120 + 60 * KILLS)]


@pytest.fixture
async def d(mortals: str, blockbuster: Any) -> AsyncIterator[asc.Scheduler]:
    """A scheduler on the cards. Afterwards nothing went wrong there."""
    async with asc.Scheduler(DaskDevice(mortals, workers=2, gpu=True)) as s:
        yield s
        found = await s.devices[0].connection.client.run(
            wrong, workers=list(s.devices[0].connection._addresses.values())[:2]
        )
    assert list(found.values()) == [[], []]


def wrong() -> list[str]:
    from tests.cluster.fake_card import fake

    return [line for line in fake.problems() if not line.startswith("blocked the loop")]  # as pickling does


@pytest.mark.parametrize("program", on_cards.PROGRAMS)
async def test_a_program_runs_on_cards(d, program):
    await program(d)


async def test_no_task_is_run_where_there_is_no_card(d):
    assert {await task for task in [await d.submit(here) for _ in range(12)]} <= {0, 1}


async def test_random_numbers_are_the_same_from_run_to_run(d):
    first, second = [asc.random.default_rng(3).normal(size=5) for _ in range(2)]
    assert np.array_equal(await first, await second)


async def test_what_is_put_anew_is_on_a_card_again(d, monkeypatch):
    monkeypatch.setattr("asyncsched.cluster.stream.DEEPEST", 2)
    x = await d.put(A)
    for _ in range(5):
        x = x + 1
        await d.barrier()
    assert np.array_equal(await x, A + 5)


async def test_errors_of_cuda_come_back_where_there_is_no_cupy(d):
    def fault() -> None:
        import cupy

        raise cupy.cuda.runtime.CUDARuntimeError(700)

    def fault_told() -> None:
        try:
            fault()
        except RuntimeError as error:
            raise LookupError from error

    with pytest.raises(RuntimeError, match=r"IllegalAddress.*start it again"):
        await d.call(fault)
    with pytest.raises(LookupError) as caught:
        await d.call(fault_told)
    assert type(caught.value.__cause__) is RuntimeError


async def test_bytes_are_those_of_the_cards(mortals):
    async with asc.Scheduler(DaskDevice(mortals, workers=2, gpu=True)) as s:
        assert s.statistics().max_bytes == (1 << 30) // 2  # half of the one card that they share
        x = await s.put(np.ones(3))
        assert s.statistics().bytes_retained == 512  # as CuPy's pool has it
        del x


@pytest.mark.parametrize(("found", "told"), [(123, 123), (None, 1 << 20)], ids=["driver", "no driver"])
def test_the_driver_is_asked_for_free_bytes(monkeypatch, found, told):
    """CuPy's own call holds the GIL while it waits for the driver."""
    monkeypatch.setattr(work.driver, "free_bytes", lambda _: found)
    with fake_cupy(memory=1 << 20), ThreadPoolExecutor(1) as thread:  # a thread keeps its stream
        assert thread.submit(work._look).result()["bytes"] == told


@pytest.mark.parametrize("program", [mapped, trained] if SWEEP else [mapped])
async def test_no_kill_changes_a_result(mortals, program):
    from distributed import Client

    async with asc.Scheduler("cpu") as s:
        expected = await program(s)
    kills = rounds = 0
    async with Client(mortals, asynchronous=True) as client:
        while kills < (KILLS + 1) // 2:
            device = DaskDevice(client, workers=2, gpu=True)
            async with killed(client, rounds, 1.0 if program is mapped else 3.0) as killer, asc.Scheduler(device) as s:
                found = await program(s)
            for a, b in zip(found, expected, strict=True):
                assert np.allclose(a, b, rtol=1e-5, atol=1e-6)
            kills, rounds = kills + killer.kills, rounds + 1


async def test_a_mix_is_refused_and_the_cure_named(mortals):
    with pytest.raises(RuntimeError, match=r"\[2\] have not.*gpu=True takes those that have it"):
        async with asc.Scheduler(DaskDevice(mortals, workers=3)):
            pass
    with pytest.raises(RuntimeError, match=r"no workers \[2\] with GPU=1 in this cluster"):
        async with asc.Scheduler(DaskDevice(mortals, workers=[2], gpu=True)):
            pass
    async with asc.Scheduler(DaskDevice(mortals, workers=3, gpu=False)) as s:
        assert await s.call(lambda x: type(x).__name__, await s.put(A)) == "ndarray"
        assert {await s.call(lambda x: type(x).__module__, await s.put(A)) for _ in range(3)} == {"numpy"}
    async with asc.Scheduler(DaskDevice(mortals, workers=[0, 1])) as s:
        assert s.devices[0].connection.gpu


async def test_a_worker_without_a_card_is_told_of(mortals, monkeypatch):
    async def lacking() -> dict[str, Any]:
        return {"lacks": "no NVIDIA driver found: install it"}

    monkeypatch.setattr("asyncsched.cluster.connection.look", lacking)
    with pytest.raises(RuntimeError, match=r"worker . has Dask's resource GPU, and no card .* install it"):
        async with asc.Scheduler(DaskDevice(mortals, workers=2, gpu=True)):
            pass


async def test_where_there_is_no_cupy_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "CuPy" in (await work.look())["lacks"]
