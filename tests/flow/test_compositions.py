"""Pipelines put together at random: each is stopped at each item, resumed, and compared with an unbroken run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.thorough import usually
from tests.waiting import turns

from . import in_processes
from .rig import STAGES, AsyncCounted, Counted, Mapped, drain, same_in_thread

Step = Callable[[Any], Any]  # from a pipeline to one that does more


async def slow(item: Any) -> Any:
    await turns(hash(str(item)) % 4)
    return item


async def kept_later(item: Any) -> bool:
    await turns(hash(str(item)) % 3)
    return kept(item)


def kept(item: Any) -> bool:
    return sum(str(item).encode()) % 3 != 0


async def several_later(item: Any) -> Any:
    await turns(hash(str(item)) % 3)
    return [*several(item)]


def several(item: Any) -> Any:
    for place in range(sum(str(item).encode()) % 5):
        yield (item, place)


def permutation(epoch: int) -> Any:
    return np.random.default_rng((5, epoch)).permutation(23)


SOURCES: list[tuple[Any, Any]] = [
    (list(range(23)), None),
    (Counted(23), None),
    (AsyncCounted(23), None),
    (Mapped(23), None),
    (Mapped(23), permutation),
    (np.arange(23), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]),
    (lambda epoch: (epoch * 100 + i for i in range(20 + epoch)), None),
]

BUFFERS = [0, 1, 2, "90 B", "1 kB"]  # numbers take 28 B, tuples of them more and more


def composed(seed: int, unordered: bool) -> Callable[[asc.Scheduler], Any]:
    """Makes a pipeline, the same each time."""
    rng = random.Random(seed)
    (source, order), buffer = rng.choice(SOURCES), rng.choice([3, "90 B"])
    steps: list[Step] = []
    if rng.random() < 0.2:
        steps.append(lambda pipe: pipe.zip(source if order is None or callable(order) else range(30)))
    if rng.random() < 0.3:
        index, drop_last = rng.randrange(2), rng.random() < 0.5
        steps.append(lambda pipe: pipe.shard(index, 2, drop_last=drop_last))
    if rng.random() < 0.2:
        most = rng.choice([3, 8, 30])
        steps.append(lambda pipe: pipe.take(most))
    once = [_shuffle(rng)]
    if not unordered and rng.random() < 0.2:  # for ever: in front of what may leave out every item
        steps.append(lambda pipe: pipe.map(same_in_thread).repeat().take(40))
    else:
        once.append(lambda pipe: pipe.repeat(3))
    rng.shuffle(once)
    kinds = ["map", "kept", "kept", "batch", "flat_map"] + ([] if unordered else ["first", *STAGES])
    for _ in range(rng.randrange(1, 6)):
        if rng.random() < 0.7:
            kind = rng.choice(kinds)
            steps.append(_step(rng, kind, not unordered))
            if kind == "flat_map":
                kinds.remove(kind)
            if unordered and kind == "batch":  # of which items a batch is made is left to chance, then
                kinds = ["map", "batch", *({"flat_map"} & {*kinds})]
        steps += [once.pop()] if once and rng.random() < 0.6 else []

    def make(s: asc.Scheduler) -> Any:
        pipe = s.pipeline(source, order=order, buffer=buffer)
        for step in steps:
            pipe = step(pipe)
        return pipe

    return make


def _shuffle(rng: random.Random) -> Step:
    size = rng.choice([2, 5, 50])
    return lambda pipe: pipe.shuffle(size, seed=1)


def _step(rng: random.Random, kind: str, ordered: bool) -> Step:
    options: Any = {"workers": rng.randrange(1, 4), "buffer": rng.choice(BUFFERS), "ordered": ordered}
    most = rng.choice([1, 5, 20])
    size, drop_last, later = rng.randrange(1, 4), ordered and rng.random() < 0.5, rng.random() < 0.5
    found: dict[str, Step] = {
        **{name: lambda pipe, make=make: make(pipe, size) for name, make in STAGES.items()},
        "map": lambda pipe: pipe.map(slow if later else same_in_thread, **options),
        "kept": lambda pipe: pipe.filter(kept_later if later else kept, **options),
        "flat_map": lambda pipe: pipe.flat_map(several_later if later else several, **options),
        "first": lambda pipe: pipe.take(most),
        "batch": lambda pipe: pipe.batch(size, collate=tuple, drop_last=drop_last),
    }
    return found[kind]


async def watched(pipe: Any) -> tuple[list[Any], list[Any]]:
    """An epoch's items, and the position behind each of them."""
    items, states = [], [pipe.state_dict()]
    async with pipe.open() as opened:
        async for item in opened:
            items.append(item)
            states.append(json.loads(json.dumps(pipe.state_dict())))
            room = sum(stage.capacity for stage in pipe.statistics().stages)
            assert len(states[-1]["ahead"]) <= 100 * room
    return items, states


@pytest.mark.one_loop
@pytest.mark.parametrize("seed", range(usually(20, 150)))
async def test_it_goes_on_exactly_where_it_was_stopped(s: asc.Scheduler, seed: int) -> None:
    make = composed(seed, unordered=False)
    pipe = make(s)
    await drain(pipe)
    whole, states = await watched(pipe)
    following = await drain(pipe)
    for taken, state in enumerate(states):
        other = make(s)
        other.load_state_dict(state)
        assert await drain(other) == whole[taken:], (pipe, state)
    assert await drain(other) == following, pipe


@pytest.mark.one_loop
@pytest.mark.one_loop
@pytest.mark.parametrize("seed", range(usually(8, 20)))
async def test_where_it_has_no_order_each_item_comes_as_often(s: asc.Scheduler, seed: int) -> None:
    make = composed(seed, unordered=True)
    whole, states = await watched(make(s))
    everything = sorted(map(str, flat(whole)))
    for taken, state in enumerate(states):
        other = make(s)
        other.load_state_dict(state)
        assert sorted(map(str, flat(whole[:taken] + await drain(other)))) == everything, (other, state)


def flat(items: list[Any]) -> list[Any]:
    return [part for item in items for part in (flat([*item]) if isinstance(item, tuple) else [item])]


@pytest.mark.one_loop
@pytest.mark.parametrize("seed", range(10))
async def test_stopped_again_and_again_it_gives_the_same(s: asc.Scheduler, seed: int) -> None:
    rng, make = random.Random(seed), composed(seed, unordered=False)
    whole = await drain(make(s))
    found: list[Any] = []
    pipe = make(s)
    while len(found) < len(whole):
        async with pipe.open() as items:
            for _ in range(rng.randrange(4)):
                if len(found) < len(whole):
                    found.append(await anext(items))
        pipe.load_state_dict(json.loads(json.dumps(pipe.state_dict())))
    assert found == whole


@pytest.mark.one_loop
async def test_processes_go_on_too(s: asc.Scheduler) -> None:
    def make() -> Any:
        pipe = s.pipeline(range(9), order=[8, 0, 7, 1, 6, 2, 5, 3, 4]).shuffle(3, seed=2)
        return pipe.map(in_processes.same, processes=True).filter(lambda i: i % 4).batch(2)

    whole, states = await watched(make())
    assert len(whole) == 3  # of 1, 2, 3, 5, 6, 7
    for taken, state in enumerate(states[:3]):
        other = make()
        other.load_state_dict(state)
        assert str(await drain(other)) == str(whole[taken:])
