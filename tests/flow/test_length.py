"""How many items a pipeline gives, as progress bars ask for it."""

from __future__ import annotations

import io
import operator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc

from .rig import AsyncCounted, Counted, Mapped, Sized, drain, same, same_in_thread

LENGTHS: dict[str, Any] = {
    "list": (lambda s: s.pipeline([1, 2, 3]), 3),
    "array": (lambda s: s.pipeline(np.zeros((7, 2))), 7),
    "by index": (lambda s: s.pipeline(Mapped(7)), 7),
    "iterable with a length": (lambda s: s.pipeline(Sized(7)).map(same), 7),
    "batch": (lambda s: s.pipeline(range(7)).map(same_in_thread).batch(3), 3),
    "batch, drop_last": (lambda s: s.pipeline(range(7)).batch(3, drop_last=True), 2),
    "batches of batches": (lambda s: s.pipeline(range(17)).batch(2).batch(2).to_device(), 5),
    "nothing": (lambda s: s.pipeline([]).batch(3), 0),
}
UNKNOWN: dict[str, Any] = {
    "generator": (lambda s: s.pipeline(i for i in range(3)), "object of type 'generator' has no len"),
    "iterable": (lambda s: s.pipeline(Counted(3)).batch(2), "object of type 'Counted' has no len"),
    "async": (lambda s: s.pipeline(AsyncCounted(3)), "object of type 'AsyncCounted' has no len"),
    "function": (lambda s: s.pipeline(lambda epoch: [1, 2]), "a function of the epoch makes its source"),
    "filter": (
        lambda s: s.pipeline([1]).filter(same).batch(2),
        "`filter same` decides as it goes which items it keeps",
    ),
}


@pytest.mark.parametrize(("make", "count"), LENGTHS.values(), ids=LENGTHS)
async def test_it_is_what_comes(s: asc.Scheduler, make: Any, count: int) -> None:
    pipe = make(s)
    assert len(pipe) == len(pipe.open()) == operator.length_hint(pipe.open()) == count  # which rich asks
    assert pipe
    for _ in range(2):
        received = 0
        async with pipe.open() as items:
            assert items
            assert len(items) == count
            async for _ in items:
                received += 1
                assert len(items) == count - received
        assert received == count
        assert len(items) == 0


@pytest.mark.parametrize(("make", "why"), UNKNOWN.values(), ids=UNKNOWN)
async def test_where_nobody_knows_it_says_why(s: asc.Scheduler, make: Any, why: str) -> None:
    pipe = make(s)
    for asked in (pipe, pipe.open()):
        assert asked
        assert operator.length_hint(asked, -1) == -1
        with pytest.raises(TypeError, match=f"the length of this pipeline is not known: .*{why}"):
            len(asked)


async def test_of_a_source_made_for_an_epoch_its_block_knows(s: asc.Scheduler) -> None:
    pipe = s.pipeline(lambda epoch: range(3 + epoch)).batch(2)
    for epoch in range(3):
        async with pipe.open() as items:
            assert len(items) == (4 + epoch) // 2


async def test_of_a_resumed_epoch_it_is_what_is_left(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(20)).batch(3)
    async with pipe.open() as items:
        for _ in range(4):
            await anext(items)
    assert (len(pipe), len(pipe.open())) == (7, 7)  # the next begins anew
    pipe.load_state_dict(pipe.state_dict())
    assert (len(pipe), len(pipe.open())) == (7, 3)
    assert len(await drain(pipe)) == 3
    assert len(pipe.open()) == 7


@pytest.mark.usefixtures("may_block")
async def test_a_bar_knows_its_total(s: asc.Scheduler) -> None:
    tqdm = pytest.importorskip("tqdm.asyncio").tqdm
    pipe = s.pipeline(range(10)).batch(3)
    async with pipe.open() as items:
        bar = tqdm(items, file=io.StringIO(), mininterval=0)
        assert bar.total == 4
        assert len([batch async for batch in bar]) == bar.n == 4
        with pytest.raises(TypeError, match="`async for item in items`; with tqdm"):
            list(items)  # type: ignore[call-overload]  # as mypy knows, too
    assert tqdm(pipe.open(), file=io.StringIO()).total == 4
    assert tqdm(pipe.filter(same).open(), file=io.StringIO()).total is None
