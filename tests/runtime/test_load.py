"""`s.load()`: what waits, and how fast it goes. Times come from a clock that the test turns."""

from __future__ import annotations

import asyncio
import threading

import pytest

import asyncsched as asc
from asyncsched.runtime.rates import Meter
from tests.ledger import runtime_of
from tests.waiting import Clock, held, turns


class Worker:
    """Work that ends as the test says, seen by a meter."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.began: float | None = None
        self.worked = 0.0
        self.ended_tasks = self.ended_bytes = 0
        self.meter = Meter(self, self.clock)

    def work(self, seconds: float, rate: float, *, step: float = 0.125) -> None:
        self.began = self.clock()
        for _ in range(round(seconds / step)):
            self.clock.passes(step)
            self.ended_tasks += round(rate * step)
            self.ended_bytes += 10 * round(rate * step)
            self.meter.sample(True)

    def rest(self, seconds: float) -> None:
        self.meter.sample(False)
        self.clock.passes(seconds)


def test_a_steady_rate_is_right_from_the_first_sample_on() -> None:
    worker = Worker()
    assert worker.meter.rates() == (0.0, 0.0)
    for seconds in (0.125, 1, 10):
        worker.work(seconds, 80)
        assert worker.meter.rates() == pytest.approx((80, 800))


def test_rest_does_not_count() -> None:
    worker = Worker()
    worker.work(2, 80)
    worker.rest(3600)
    assert worker.meter.rates() == pytest.approx((80, 800))
    worker.work(2, 80)
    assert worker.meter.rates() == pytest.approx((80, 800))


def test_a_new_rate_takes_over_within_a_second() -> None:
    worker = Worker()
    worker.work(20, 80)
    worker.work(1, 800)
    assert worker.meter.rates()[0] == pytest.approx(80 / 2.718282 + 800 * (1 - 1 / 2.718282), rel=1e-4)
    worker.work(5, 800)
    assert worker.meter.rates()[0] == pytest.approx(800, rel=0.01)


@pytest.mark.parametrize("step", [0.001, 0.01, 0.5, 2.0])
def test_the_rate_does_not_depend_on_how_often_it_is_sampled(step: float) -> None:
    worker = Worker()
    worker.work(4, 1000, step=step)
    assert worker.meter.rates() == pytest.approx((1000, 10_000))


def test_work_that_ends_nothing_lowers_the_rate() -> None:
    worker = Worker()
    worker.work(5, 80)
    worker.work(3, 0)
    assert worker.meter.rates() == pytest.approx((1 / 3, 10 / 3))


def test_long_tasks_have_the_rate_of_their_length() -> None:
    worker = Worker()
    for _ in range(3):
        worker.work(7.875, 0)
        worker.work(0.125, 8)  # the one task ends
        assert worker.meter.rates() == pytest.approx((1 / 8, 10 / 8), rel=0.01)
    worker.work(7.875, 0)
    assert worker.meter.rates() == pytest.approx((1 / 8, 10 / 8), rel=0.01)


# -- the scheduler's ------------------------------------------------------------------------------------------------


async def test_nothing_to_do_is_no_wait() -> None:
    async with asc.Scheduler("cpu", max_bytes=1000) as s:
        assert s.load() == asc.Load(0, 0, 0, 0, 1000, 0.0, 0.0, 0.0)


async def test_the_backlog_and_the_wait_for_it() -> None:
    async with asc.Scheduler("cpu", max_ops=1, max_bytes=1000) as s:
        clock, runtime = Clock(), runtime_of(s)
        runtime.meter, runtime.ledger._clock = Meter(runtime.ledger, clock), clock
        for i in range(2):
            gate = threading.Event()
            first = await s.submit(held, gate, nbytes=100)
            if not i:
                unknown = s.load()
                assert (unknown.tasks_in_flight, unknown.bytes_tracked) == (1, 100)
                assert (unknown.drain_rate_tasks, unknown.estimated_wait) == (0.0, None)
            clock.passes(0.5)
            gate.set()
            await first
            clock.passes(1000)  # at rest
        gate = threading.Event()
        first = await s.submit(held, gate, nbytes=100)
        assert s.load().estimated_wait == pytest.approx(0.5)  # for the one in flight
        for _ in range(5):
            s.submit_nowait(int, nbytes=200)
        load = s.load()
        assert (load.tasks_pending, load.bytes_pending) == (5, 1000)
        assert load.drain_rate_tasks == pytest.approx(2)
        assert load.drain_rate_bytes == pytest.approx(200)
        assert load.estimated_wait == pytest.approx(5)  # by bytes; by number it would be 3
        gate.set()
        await s.barrier()
        assert s.load().estimated_wait == 0
        del first


async def test_a_full_memory_is_a_wait() -> None:
    async with asc.Scheduler("cpu", max_bytes=1000) as s:
        t = await s.submit(bytearray, 1000, nbytes=1000)
        kept = await t
        assert s.load().estimated_wait is not None
        waiting = asyncio.create_task(s.scope(reserve=500).__aenter__())
        await turns(2)
        load = s.load()
        assert (load.tasks_pending, load.bytes_pending, load.bytes_tracked) == (0, 500, 1000)
        assert load.estimated_wait is not None
        assert load.estimated_wait > 0
        del t, kept
        scope = await waiting
        await scope.__aexit__(None, None, None)
