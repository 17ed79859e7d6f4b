"""Workers that are killed at any moment: nothing is lost, bounds hold, nothing is left.

How many: ASYNCSCHED_KILLS=50 for a sweep; by default as many as a suite can afford, on one kind of cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.cluster.connection import Choice, ResultLost
from asyncsched.cluster.device import DaskDevice
from tests.thorough import thoroughly, usually
from tests.waiting import until

from .local import cluster
from .on_cards import future_of, weigh

SWEEP = "ASYNCSCHED_KILLS" in os.environ
KILLS = int(os.environ.get("ASYNCSCHED_KILLS", "2"))
LIMIT = 4_000_000  # bytes

pytestmark = [pytest.mark.one_loop, pytest.mark.timeout(60 + 60 * KILLS)]


class Killer:
    """Kills a worker after a random while, again and again, if another is there."""

    def __init__(self, client: Any, seed: int, pause: float) -> None:
        self.kills = 0
        self._pause = pause
        self._client = client
        self._random = random.Random(seed)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0.05, self._pause))
            found = [pid for pid in (await self._client.run(os.getpid, on_error="ignore")).values() if pid]
            if len(found) >= 2:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._random.choice(found), signal.SIGKILL)
                    self.kills += 1


def tasks(dask_scheduler: Any) -> int:
    """How many results and tasks Dask's scheduler knows of."""
    return len(dask_scheduler.tasks)


@contextlib.asynccontextmanager
async def killed(client: Any, seed: int, pause: float) -> AsyncIterator[Killer]:
    """A block during which workers die."""
    killer = Killer(client, seed, pause)
    task = asyncio.create_task(killer.run())
    try:
        yield killer
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def slowly(x: np.ndarray, i: int) -> np.ndarray:
    time.sleep(0.05)
    return x * i


async def mapped(s: asc.Scheduler) -> list[float]:
    x = await s.put(np.arange(50_000.0))
    found = [s.submit_nowait(slowly, x, i, shape=x.shape, dtype=x.dtype).sum() for i in range(24)]
    return [float(n) for n in await asc.gather(*found)]


async def trained(s: asc.Scheduler) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    model = asc.nn.Sequential(asc.nn.Linear(16, 32, rng=1), asc.nn.Tanh(), asc.nn.Linear(32, 1, rng=2))
    await weigh(s, model)
    optimizer = asc.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    window = s.window(2)
    for _ in range(6):
        async with window:
            x, y = [await s.put(rng.standard_normal((64, n)).astype(np.float32)) for n in (16, 1)]
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return list(await asc.gather(*model.parameters()))


@pytest.fixture(scope="module")
def nannies(distributed: Any) -> Iterator[str]:
    """The address of a cluster of workers that are started again by Dask's nannies."""
    with cluster(3 if SWEEP else 2) as address:
        yield address


# A training goes on from what it has: deaths that come faster than that is computed again would keep it for ever.
@pytest.mark.parametrize(("program", "pause"), [(mapped, 1.0), *usually([], [(trained, 3.0)])])
async def test_no_kill_changes_a_result(mortals, program, pause):
    await survives(mortals, program, pause)


# A nanny whose worker dies while it starts may start no other, so these live a little longer.
@thoroughly
@pytest.mark.parametrize(("program", "pause"), [(mapped, 3.0), (trained, 5.0)] if SWEEP else [(mapped, 1.0)])
async def test_no_kill_changes_a_result_where_there_are_nannies(nannies, program, pause):
    await survives(nannies, program, pause)


async def survives(address: str, program: Any, pause: float) -> None:
    """Run a program again and again while workers die, until enough have."""
    from distributed import Client

    async with asc.Scheduler("cpu") as s:
        expected = await program(s)
    kills = rounds = 0
    async with Client(address, asynchronous=True) as client:
        while kills < (KILLS + 1) // 2:
            device = DaskDevice(client, workers=2, gpu=False)
            async with killed(client, rounds, pause) as killer, asc.Scheduler(device, max_ops=16, max_bytes=LIMIT) as s:
                found = await program(s)
                told = s.statistics()
                assert told.peak_bytes <= LIMIT
                assert told.peak_tasks_in_flight <= 16
                gc.collect()  # a model and its optimiser hold each other
                await until(lambda s=s: s.statistics().bytes_retained == 0)
            for a, b in zip(found, expected, strict=True):
                assert np.array_equal(a, b)
            kills, rounds = kills + killer.kills, rounds + 1
            print(f"{program.__name__}: round {rounds}, {kills} kills", file=sys.stderr)
        await until(lambda: not client.futures)
        while await client.run_on_scheduler(tasks):  # the last of those dropped are told a moment later
            await asyncio.sleep(0.05)


async def test_what_was_put_outlives_its_worker(mortals):
    from distributed import Client

    async with (
        Client(mortals, asynchronous=True) as client,
        asc.Scheduler(DaskDevice(client, workers=2, gpu=False)) as s,
    ):
        x = await s.put(np.arange(1000.0))
        [held] = (await client.who_has([future_of(x)])).values()
        for pid in (await client.run(os.getpid, workers=list(held))).values():
            os.kill(pid, signal.SIGKILL)
        assert np.array_equal(await (x + 1), np.arange(1000.0) + 1)
        assert np.array_equal(await x, np.arange(1000.0))
        [again] = (await client.who_has([future_of(x)])).values()
        assert not set(held) & set(again)  # it came from Dask's scheduler


def dies(flag: Path, x: np.ndarray) -> float:
    """The first time takes its worker with it."""
    if flag.exists():
        return float(x.sum())
    flag.touch()
    os._exit(1)


def always_dies() -> None:
    os._exit(1)


def allows(dask_scheduler: Any, deaths: int) -> None:
    dask_scheduler.allowed_failures = deaths


async def test_the_last_worker_dies_and_what_comes_in_its_place_goes_on(one_worker: str, tmp_path: Path) -> None:
    from distributed import Client, KilledWorker

    async with Client(one_worker, asynchronous=True) as client, asc.Scheduler(DaskDevice(client)) as s:
        x = await s.put(np.arange(5.0))
        y = x + 1
        assert (await y).sum() == 15
        one = asyncio.create_task(s.call(dies, tmp_path / "flag", y, resource="one at a time"))
        assert await asyncio.gather(one, s.call(len, x)) == [15, 5]
        assert np.array_equal(await x, np.arange(5.0))
        await client.run_on_scheduler(allows, deaths=1)
        with pytest.raises(KilledWorker):
            await s.call(always_dies)
        await client.run_on_scheduler(allows, deaths=1000)  # what was lost with it may be lost again
        assert (await (x * y)).sum() == 40


def sleeps() -> None:
    time.sleep(20)


def ends(dask_scheduler: Any, how: str) -> None:
    """End Dask's scheduler, if it goes well once this has been answered."""
    kill = partial(os.kill, os.getpid(), signal.SIGKILL)
    dask_scheduler.loop.call_later(0.1, kill if how == "killed" else dask_scheduler.close)


@pytest.fixture
def ending(distributed: Any) -> Iterator[str]:
    """The address of a cluster for one test, which ends it."""
    with cluster(1) as address:
        yield address


@pytest.mark.parametrize("how", ["killed", *usually([], ["closed"])])
async def test_where_dasks_scheduler_is_gone_everything_says_so(ending: str, how: str) -> None:
    """And soon: its client alone would try for half a minute to find it again, and wait for ever then."""
    from distributed import Client

    async with Client(ending, asynchronous=True) as client, asc.Scheduler(DaskDevice(client)) as s:
        x = await s.put(np.arange(5.0))
        y = x + 1
        await y
        runs, process = await s.submit(sleeps), await client.run_on_scheduler(os.getpid)
        with contextlib.suppress(OSError):  # it may end before this is answered
            await client.run_on_scheduler(ends, how=how)
        with pytest.raises(ResultLost):
            await runs
        assert client.status == "connecting"
        for ask in (
            lambda: s.put(np.ones(3)),
            lambda: s.call(len, "abc"),
            lambda: (x * 2).numpy(),
            y.numpy,
            y.sum().item,
        ):
            with pytest.raises(ResultLost, match="the connection to Dask's scheduler ended"):
                await ask()
        assert client.status == "connecting"
        with contextlib.suppress(ProcessLookupError):  # its cluster would wait for half a minute
            os.kill(process, signal.SIGKILL)


def test_in_the_place_of_a_worker_that_is_gone_comes_one_that_nobody_chose():
    known = {name: {"address": f"tcp://{name}", "resources": {}} for name in ("a", "b", "c")}
    chosen = {"a": "tcp://a", "gone": "tcp://gone", "too": "tcp://too"}
    for wanted, found in ((2, "tcp://b"), (None, "tcp://b"), (["a", "gone"], "tcp://gone")):
        assert Choice(wanted, False).bound(dict(list(chosen.items())[:2]), known) == {"a": "tcp://a", "gone": found}
    assert Choice(3, False).bound(chosen, {"b": known["b"]}) == {**chosen, "a": "tcp://b"}
    back = known | {"gone": {"address": "tcp://other", "resources": {}}}
    assert Choice(2, False).bound({"a": "tcp://a", "gone": "tcp://b"}, back) == {"a": "tcp://a", "gone": "tcp://other"}
