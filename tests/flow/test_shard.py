"""Shares of a source for several processes: disjoint, and everything together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import until

from .rig import AsyncCounted, Counted, Mapped, Sized, drain, same

SOURCES: dict[str, Any] = {
    "list": lambda n: list(range(n)),
    "array": np.arange,
    "by index": Mapped,
    "iterable": Sized,
    "async": AsyncCounted,
    "function of the epoch": lambda n: lambda epoch: iter(range(n)),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("items", [0, 2, 10, 12])
async def test_shares_are_disjoint_and_everything_together(s: asc.Scheduler, source: Any, items: int) -> None:
    for drop_last in (False, True):
        pipes = [s.pipeline(source(items)).shard(index, 4, drop_last=drop_last).map(same) for index in range(4)]
        shares = [await drain(pipe) for pipe in pipes]
        assert shares == [list(range(index, items - items % 4 if drop_last else items, 4)) for index in range(4)]
        for pipe, share in zip(pipes, shares, strict=True):
            if source in (SOURCES["list"], SOURCES["array"], SOURCES["by index"], SOURCES["iterable"]):
                assert len(pipe) == len(share)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("drop_last", [True, False])
async def test_a_share_goes_on_where_it_was_left(s: asc.Scheduler, source: Any, drop_last: bool) -> None:
    pipe = s.pipeline(source(11)).shard(1, 3, drop_last=drop_last)
    share = [1, 4, 7] if drop_last else [1, 4, 7, 10]
    for taken in range(len(share) + 1):
        async with pipe.open() as items:
            assert [await anext(items) for _ in range(taken)] == share[:taken]
        state = pipe.state_dict()
        assert state["taken"] == taken
        pipe.load_state_dict(state)
        assert await drain(pipe) == share[taken:]


async def test_others_items_are_not_read_by_index(s: asc.Scheduler) -> None:
    source = Mapped(10)
    assert await drain(s.pipeline(source).shard(2, 4)) == source.asked == [2, 6]
    source.asked.clear()
    pipe = s.pipeline(source, order=range(9, -1, -1)).shard(1, 4)
    assert repr(pipe.map(same)) == "Pipeline(Mapped, shard 1 of 4, map same)"
    assert await drain(pipe) == source.asked == [8, 4, 0]


async def test_shares_of_an_order_in_each_epoch_are_disjoint(s: asc.Scheduler) -> None:
    def permutation(epoch: int) -> Any:
        return np.random.default_rng((7, epoch)).permutation(10)

    pipes = [s.pipeline(range(10), order=permutation).shard(index, 3).shuffle(2, seed=index) for index in range(3)]
    for _ in range(3):
        shares = [await drain(pipe) for pipe in pipes]
        assert sorted(item for share in shares for item in share) == list(range(10))
        assert [len(share) for share in shares] == [4, 3, 3]


@pytest.mark.parametrize("source", [range(50), Sized(50)], ids=["range", "iterable"])
async def test_a_share_can_be_shared(s: asc.Scheduler, source: Any) -> None:
    machine = s.pipeline(source).shard(1, 2)
    shares = [await drain(machine.shard(index, 3)) for index in range(3)]
    assert shares == [list(range(50))[1::2][index::3] for index in range(3)]
    assert len(machine.shard(0, 3)) == 9


@pytest.mark.parametrize("kind", [Counted, AsyncCounted])
async def test_leaving_early_closes_what_is_shared(s: asc.Scheduler, kind: type[Counted]) -> None:
    async with s.pipeline(source := kind(1000)).shard(0, 2).shard(1, 2).open() as items:
        assert await anext(items) == 2
        await until(lambda: source.asked > 30)
    assert source.closed == 1
    assert source.asked < 200


@pytest.mark.parametrize(("source", "told"), [(Mapped, "index 3"), (None, "item 3 of the shared items")])
async def test_an_error_of_the_source_names_the_item_there(s: asc.Scheduler, source: Any, told: str) -> None:
    def generator() -> Any:
        yield from (0, 1, 2)
        raise LookupError("it")

    made = Mapped(9, LookupError("it")) if source else (lambda epoch: generator())
    pipe = s.pipeline(made).shard(1, 2)
    received = []
    with pytest.raises(LookupError, match="it") as caught:
        async with pipe.open() as items:
            async for item in items:
                received.append(item)
    assert received == [1]
    assert caught.value.__notes__[0].endswith(f"stage 0 (source), at item 1 of the source: {told}")


async def test_what_is_refused(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(3))
    for args, error, text in (
        ((2, 2), ValueError, "one of 2 shares, from 0 to 1, not 2"),
        ((-1, 2), ValueError, "index must be at least 0"),
        ((0, 0), ValueError, "count must be at least 1"),
        ((0, 2.0), TypeError, "count must be an int"),
    ):
        with pytest.raises(error, match=text):
            pipe.shard(*args)  # type: ignore[arg-type]
    for late in (pipe.map(same), pipe.repeat(2)):
        with pytest.raises(ValueError, match="comes first"):
            late.shard(0, 2)
