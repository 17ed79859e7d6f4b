"""Nothing is written in place that a frame still holds, in whatever way, whoever looks on."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.ledger import address_of

from .holding import LOOKING_ON, WAYS, Way

LARGE = np.arange(150.0 * 130.0).reshape(150, 130)  # buffers of this size are recycled
SMALL = LARGE[:2, :3].copy()


def past(s: asc.Scheduler) -> None:
    """Wait here until the one stream has run what it was given: who holds its operands is decided by then."""
    gate = threading.Event()
    s.submit_nowait(gate.set)
    while not gate.is_set():  # with no lock, which blocks the loop
        pass


@pytest.mark.one_loop
@pytest.mark.parametrize("looks_on", LOOKING_ON, ids=lambda one: one.__name__)
async def test_what_a_frame_holds_is_not_written_over(looks_on: Any) -> None:
    async with asc.Scheduler("cpu", streams=1) as s:
        for name, way in WAYS.items():
            for source in (LARGE, SMALL):
                made: list[Any] = []

                def use(x: Any, made: list[Any] = made) -> None:
                    made.append(x + 1)
                    past(s)

                for _ in range(3):  # the interpreter specialises what runs often
                    box = [await s.put(source)]
                    with looks_on():
                        found = way(box, use)
                    assert np.array_equal(await found, source), (name, source.shape)
                    assert np.array_equal(await made.pop(), source + 1), (name, source.shape)
                    assert not made
                    del found


@pytest.mark.one_loop
async def test_what_no_frame_holds_is_written_over() -> None:
    """So the test above may fail."""
    async with asc.Scheduler("cpu", streams=1) as s:
        box = [await s.put(LARGE)]
        before = address_of(box[0])
        box = [box.pop() + 1]
        past(s)
        assert address_of(box[0]) == before
        assert np.array_equal(await box[0], LARGE + 1)


@pytest.mark.one_loop
@pytest.mark.parametrize("looks_on", LOOKING_ON, ids=lambda one: one.__name__)
async def test_an_array_that_a_frame_holds_is_not_written_over(looks_on: Any) -> None:
    """The array itself, once its tensor is gone."""

    async def held(way: Way) -> None:
        def use(array: Any) -> None:
            zeros.extend(asc.zeros(LARGE.shape) for _ in range(3))
            past(s)

        zeros: list[asc.Tensor] = []
        box = [await (await s.put(LARGE))]
        with looks_on():
            found = way(box, use)
        assert np.array_equal(found, LARGE), way

    async with asc.Scheduler("cpu", streams=1) as s:
        for name, way in WAYS.items():
            if name != "kept_results":  # arrays have no hash
                await held(way)
