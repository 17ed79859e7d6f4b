"""When a result's buffer comes back."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncsched._core.completions import Completions
from asyncsched._core.model import Account, Lease, Value, new_value
from asyncsched._core.ownership import COUNTED
from tests.cycles import Cycle


class Reclaimed:
    """A device's memory that notes what it gets back: buffers, and whether they may be used again."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Any, bool]] = []

    def reclaim(self, value: Value) -> None:
        self.blocks.append((value.block, value.escaped))


@pytest.fixture
def memory() -> Reclaimed:
    return Reclaimed()


def value_of(memory: Reclaimed) -> Value:
    value = new_value(Account(None, Completions(lambda: None)), SimpleNamespace(memory=memory), None)
    value.block = "a buffer"
    return value


def test_a_buffer_that_nobody_holds_may_be_used_again(memory):
    value_of(memory)
    assert memory.blocks == [("a buffer", False)]


def test_a_buffer_in_a_dead_cycle_may_not_since_another_finaliser_may_read_it(memory):
    found: list[Any] = []
    Cycle(value_of(memory), lambda value: found.append(value.escaped))
    assert not memory.blocks
    gc.collect()
    assert memory.blocks == [("a buffer", True)]


@pytest.mark.parametrize("held", [False, True], ids=["dropped", "in a dead cycle"])
def test_bytes_come_back_when_their_array_is_gone_or_in_the_collectors_hands(held: bool) -> None:
    """Of an array that is in no pool's buffer, dropped on another thread than the one that counts."""
    told: list[bool] = []
    account = Account(None, Completions(lambda: told.append(there() is not None)))
    value = new_value(account, None, None, array=np.zeros(1))
    value.charge, there = 8, weakref.ref(value.array)
    account.completions.wants_bytes = True  # told at the first drop
    if held:
        Cycle(value, lambda value: None)
    del value
    gc.collect()
    assert told == [held]


@pytest.mark.parametrize("earlier", [True, False])
def test_a_lease_counts_until_no_finaliser_can_have_kept_it(earlier: bool) -> None:
    """The collector finalises the objects of a dead cycle in the order in which they were made."""
    value = new_value(Account(None, Completions(lambda: None)), None, None, nbytes=COUNTED)
    kept: list[Any] = []
    lease = Lease(value) if earlier else None
    cycle = Cycle(None, kept.append)
    cycle.thing = lease or Lease(value)
    del lease, cycle
    for _ in range(3):  # what was kept may be in a dead cycle again
        gc.collect()
        assert value.holders == [None]
        Cycle(kept.pop(), kept.append)
    gc.collect()
    kept.clear()
    assert value.holders == []
