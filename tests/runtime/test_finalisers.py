"""What a program does in a finaliser, which may run in the middle of a row on the loop's thread."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn
from asyncsched._core.instrument import Instrument
from asyncsched.ops.meta import meta
from tests.ledger import engine_of
from tests.validate import validate
from tests.waiting import held


class Loud:
    """A circle that says so when the collector finds it."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.me, self.act = self, act

    def __del__(self) -> None:
        self.act()


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """Whatever makes a container has the collector run."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


class Program:
    """Quick rows that wait for a slot; the first reads an array whose end is told to a finaliser."""

    def __init__(self, s: asc.Scheduler, scope: asc.Scope, gate: threading.Event) -> None:
        self.s, self.scope, self.acted, self.wrong = s, scope, 0, ""
        self.made: list[Any] = []
        self.thread = threading.get_ident()
        array = np.ones(6)
        weakref.finalize(array, self.act)
        box = [array]
        del array
        s.submit_nowait(held, gate)
        base = s.submit_nowait(box.pop, shape=(6,), dtype="float64")
        self.other = s.submit_nowait(np.ones, 6, shape=(6,), dtype="float64")
        self.rows = [base + i for i in range(3)]
        del base
        for i in range(100):
            self.rows.append(self.rows[-1] * 1 + i % 2)
        self.gone: set[asc.Tensor] = set()

    def act(self) -> None:
        if threading.get_ident() != self.thread:  # whoever asks there is told that it must not
            return
        self.acted += 1
        try:
            self.do()
        except Exception as error:
            self.wrong = repr(error)

    def do(self) -> None:
        raise NotImplementedError

    async def end(self) -> None:
        """Compare all."""
        expected = [np.ones(6) + i for i in range(3)]
        for i in range(100):
            expected.append(expected[-1] + i % 2)
        for row, array in zip(self.rows, expected, strict=True):
            try:
                assert (await row).tobytes() == array.tobytes()
                assert row not in self.gone
            except asc.TaskCancelled:
                assert self.gone
        assert not self.wrong
        assert self.acted
        for made in self.made:
            assert (await made).tolist() == [2.0] * 6


class Submits(Program):
    def do(self) -> None:
        self.made += [self.other + 1 for _ in range(3)]


class SubmitsElsewhere(Program):
    def do(self) -> None:
        self.made.append(self.scope.submit_nowait(np.full, 6, 2.0, shape=(6,), dtype="float64"))


class Cancels(Program):
    def do(self) -> None:
        self.gone |= {row for row in self.rows[::7] if row.cancel()}


class Asks(Program):
    def do(self) -> None:
        for row in self.rows:
            row.done()
        self.s.statistics()


class Drops(Program):
    def do(self) -> None:
        self.rows.clear()

    async def end(self) -> None:
        await self.other
        assert self.acted
        assert not self.wrong


@pytest.mark.drops_at_once
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("by_collector", [False, True])
@pytest.mark.parametrize("program", [Submits, SubmitsElsewhere, Cancels, Asks, Drops])
async def test_among_rows_that_were_pending(program, by_collector, watched, gate, eager_collector):
    async with asc.Scheduler("cpu", streams=1, max_ops=1) as s:
        if watched:
            s.add_instrument(Instrument())
        async with s.scope() as scope:
            this = program(s, scope, gate)
            if by_collector:
                for _ in range(20):
                    Loud(this.act)
                gc.set_threshold(1, 1, 1)
            gate.set()
            await s.barrier()
            gc.set_threshold(700)
            await this.end()
        this.__dict__.clear()
        del this
        gc.collect()
        s.statistics()
        engine = engine_of(s)
        validate(engine)
        assert not engine.ledger.account.used
        assert not engine.ledger.unfinished


async def test_in_a_row_that_runs_at_once(s, monkeypatch):
    x = await s.put(np.arange(6.0))
    made: list[asc.Tensor] = []
    plain = asc.ops.table.TABLE["cumulative_sum"]
    asc.cumulative_sum(x)

    def kernel(*args: Any, **options: Any) -> Any:
        made.append(x + 1)
        made[0].done()
        return np.cumsum(args[0])

    (found,) = [plan for plan in plain.plans.values() if plan.meta == meta((6,), np.dtype(float))][:1]
    monkeypatch.setattr(found, "kernel", kernel)
    assert (await asc.cumulative_sum(x)).tolist() == [0, 1, 3, 6, 10, 15]
    assert (await made[0]).tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("function", [nn.gelu, nn.log_softmax])
async def test_at_any_line_of_an_operation_that_runs_at_once(function, elsewhere, s):
    async with asc.Scheduler("cpu") as other:
        x = await s.put(np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4))
        y = await (other if elsewhere else s).put(np.linspace(-3, 2, 8, dtype=np.float32).reshape(2, 4))
        expected = [await t.numpy() for t in (function(x), function(y))]
        at, lines, made = 0, 1, list[asc.Tensor]()

        def trace(frame: Any, event: str, arg: Any) -> Any:
            nonlocal lines
            inside = f"{os.sep}kernels{os.sep}" in frame.f_code.co_filename
            if inside and event == "line":
                lines += 1
                if lines == at:
                    Loud(lambda: made.append(function(y)))
                    gc.collect(0)
            return trace if inside else None

        while lines >= at:  # there was such a line
            at, lines = at + 1, 0
            await asyncio.sleep(0)  # the loop takes quick operations again
            sys.settrace(trace)
            made.append(function(x))
            sys.settrace(None)
            results = [await t.numpy() for t in reversed(made)]
            assert [r.tolist() for r in results] == [e.tolist() for e in expected[: len(made)]], at
            made.clear()
        assert at > 10


@pytest.mark.one_loop
def test_ends_after_the_loop_are_taken_in_when_somebody_asks():
    gate = threading.Event()

    async def main() -> tuple[asc.Scheduler, list[asc.Tensor]]:
        s = await asc.Scheduler("cpu", streams=1, max_ops=1).__aenter__()
        x = s.submit_nowait(lambda: (gate.wait(), np.ones(700))[1], shape=(700,), dtype="float64")
        return s, [asc.exp(x) for _ in range(3)]

    s, rows = asyncio.run(main())
    gate.set()
    engine = engine_of(s)
    while not engine.completions.items:
        pass
    assert rows[0].done()
    validate(engine)
    opened = [s]
    del s
    with pytest.warns(ResourceWarning):
        opened.clear()
