"""What a `.map` does where its function raises: it calls again, leaves the item out, and says so."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import turns, until

from .rig import drain, take


class Flaky:
    """Raises for odd items, so often."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.calls: Counter[int] = Counter()

    def __call__(self, i: int) -> int:
        self.calls[i] += 1
        if i % 2 and self.calls[i] <= self.times:
            raise OSError(f"no luck with {i}")
        return i

    async def later(self, i: int) -> int:
        return self(i)


def die_of_three(i: int) -> int:
    if i == 3:
        os._exit(1)
    return i


def refuse_three(i: int) -> int:
    if i == 3:
        raise LookupError(i)
    return i


def stages(s: asc.Scheduler, **options: Any) -> list[tuple[Flaky, Any]]:
    """A pipeline of each kind of worker."""
    found = []
    for workers, ordered in [(1, True), (3, True), (3, False)]:
        for later in (False, True):
            flaky = Flaky(options.get("times", 2))
            fn: Any = flaky.later if later else flaky
            policy = {name: value for name, value in options.items() if name != "times"}
            found.append((flaky, s.pipeline(range(6)).map(fn, workers=workers, ordered=ordered, **policy)))
    return found


async def test_it_calls_again(s: asc.Scheduler) -> None:
    for flaky, pipe in stages(s, retry=2):
        assert sorted(await drain(pipe)) == [*range(6)]
        assert flaky.calls == {i: 3 if i % 2 else 1 for i in range(6)}
        assert len(pipe) == 6
    for flaky, pipe in stages(s, retry=1):
        with pytest.raises(OSError, match="no luck with"):
            await drain(pipe)
        assert flaky.calls[1] == 2


async def test_it_does_not_call_again_for_nobody(s: asc.Scheduler) -> None:
    calls, goes_on = [], threading.Event()

    def fails(item: int) -> None:
        calls.append(item)
        assert goes_on.wait(60)
        raise OSError

    async with AsyncExitStack() as opened:
        await opened.enter_async_context(s.pipeline([0]).map(fails, retry=100_000).open())
        await until(lambda: calls)
        leaving = asyncio.create_task(opened.aclose())
        await turns(5)
        goes_on.set()
        await leaving
    assert calls == [0]


async def test_nor_does_it_for_a_cancellation_that_is_told_otherwise(s: asc.Scheduler) -> None:
    calls = []

    async def fails(item: int) -> None:
        calls.append(item)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError from None  # as clients of some services do

    async with s.pipeline([0]).map(fails, retry=3).open():
        await until(lambda: calls)
    assert calls == [0]


async def test_items_that_fail_are_left_out_and_told_of(s: asc.Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    for flaky, pipe in stages(s, retry=1, skip=(ValueError, OSError)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "asyncsched"):
            assert sorted(await drain(pipe)) == [0, 2, 4]
        stage = pipe.statistics().stages[1]
        assert (stage.skipped, stage.items) == (3, 3)
        assert sorted(stage.failures) == [f"item {i} of the source ({i}): OSError: no luck with {i}" for i in (1, 3, 5)]
        assert [record.getMessage().count("leaves out item") for record in caplog.records] == [1]
        assert flaky.calls[1] == 2


async def test_other_errors_end_it(s: asc.Scheduler) -> None:
    for _, pipe in stages(s, skip=ValueError):
        with pytest.raises(OSError, match="no luck"):
            await drain(pipe)


async def test_a_resumed_pipeline_leaves_out_the_same(s: asc.Scheduler) -> None:
    def make() -> Any:
        return s.pipeline(range(9)).map(Flaky(9), workers=2, skip=OSError).take(4).batch(2, collate=tuple)

    whole = [(0, 2), (4, 6)]
    for taken in range(3):
        pipe, other = make(), make()
        assert await take(pipe, taken) == whole[:taken]
        other.load_state_dict(json.loads(json.dumps(pipe.state_dict())))
        assert await drain(other) == whole[taken:]
    with pytest.raises(TypeError, match="length of this pipeline is not known"):
        len(make())


async def test_processes_have_it_too(s: asc.Scheduler) -> None:
    from concurrent.futures.process import BrokenProcessPool

    pipe = s.pipeline(range(5)).map(refuse_three, processes=True, retry=1, skip=LookupError)
    assert await drain(pipe) == [0, 1, 2, 4]
    pipe = s.pipeline(range(5)).map(die_of_three, processes=True, skip=BrokenProcessPool)
    assert await drain(pipe) == [0, 1, 2, 4]


async def test_only_the_last_failures_are_kept(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(100)).flat_map(Flaky(9), skip=(OSError, TypeError))
    assert await drain(pipe) == []
    stage = pipe.statistics().stages[1]
    assert (stage.skipped, len(stage.failures)) == (100, 16)
    assert stage.failures[-1] == "item 99 of the source (99): OSError: no luck with 99"


async def test_rates_and_costs_are_told(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(10)).map(lambda i: np.ones(1000))
    await drain(pipe)
    source, stage = pipe.statistics().stages
    assert stage.items_per_second > 0
    assert stage.bytes_per_second == pytest.approx(8000 * stage.items_per_second, rel=0.01)
    assert stage.seconds_per_item == pytest.approx(stage.busy_seconds / 10)
    assert "/s" in str(stage).partition("bytes_per_second")[2].partition("\n")[0]
    assert 0 < source.bytes_per_second < stage.bytes_per_second
    assert [part.items_per_second for part in s.pipeline([]).statistics().stages] == []


@pytest.mark.parametrize("ordered", [False, True])
async def test_an_array_that_was_overwritten_is_not_left_out(s: asc.Scheduler, ordered: bool) -> None:
    buffer, ahead = np.zeros(3), threading.Event()

    def fills(epoch: int) -> Any:
        for number in range(5):
            buffer[:] = number
            yield buffer
        ahead.set()

    def total(array: Any) -> Any:
        assert ahead.wait(60)
        return array.sum()

    with pytest.raises(RuntimeError, match="written to"):
        await drain(s.pipeline(fills).map(total, workers=1, skip=Exception, ordered=ordered))


async def test_an_item_of_many_parts_is_weighed_by_few(s: asc.Scheduler) -> None:
    class Part:
        asked = 0

        @property
        def nbytes(self) -> int:
            Part.asked += 1
            return 8

    pipe = s.pipeline([{"parts": [Part()] * 100_000, "other": (b"",)}])
    await drain(pipe)
    (source,) = pipe.statistics().stages
    assert source.bytes_per_second == pytest.approx(800_000 * source.items_per_second, rel=0.01)
    assert Part.asked < 100


async def test_what_is_refused(s: asc.Scheduler) -> None:
    for skip in (KeyboardInterrupt, "OSError", OSError(), (OSError, 1), True):
        with pytest.raises(TypeError, match="skip= takes classes of exceptions"):
            s.pipeline([1]).map(str, skip=skip)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="retry must be at least 0"):
        s.pipeline([1]).map(str, retry=-1)
