"""What the engine and its ledgers say, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import asyncsched as asc
from tests.validate import validate
from tests.waiting import Clock


def runtime_of(s: asc.Scheduler) -> Any:
    """What a scheduler's public methods work on, which has no public name. If in doubt, use `asc.observe.Probe(s)`."""
    return s._runtime


def engine_of(s: asc.Scheduler) -> Any:
    """The engine of a scheduler, which has no public name."""
    return runtime_of(s).engine


def value_of(handle: Any) -> Any:
    """The value that a handle refers to now. This is the one place where tests look behind a handle."""
    return handle._value


def task_of(handle: Any) -> Any:
    """The engine's task of a handle; None once its result was taken."""
    return value_of(handle).task


def lane_of(tensor: Any) -> Any:
    """The lane of the task that makes a tensor."""
    return task_of(tensor).lane


def array_of(tensor: Any) -> Any:
    """The array of a finished tensor, as the scheduler has it. To look at it here does not count as letting it out."""
    return value_of(tensor).array


def address_of(tensor: Any) -> int:
    """Where a finished tensor's elements are, without letting the array out. An `await` would keep its buffer."""
    array = array_of(tensor)
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def stands_still(s: asc.Scheduler) -> None:
    """The clock by which a scheduler places tasks stands: no stream counts as late, however busy the processors are."""
    runtime_of(s).clock = Clock()


def in_use(pool: Any) -> int:
    """The bytes that a card's pool has given out, when all that came back was taken in. Of its blocks only those of
    slabs are counted in public."""
    with pool._lock:
        pool._gather(None)
        return int(pool.reserved()) - sum([piece.nbytes for piece in pool._heap._pieces])


def live(pool: Any) -> int:
    """The bytes that the host's pool has given out, when all that came back was taken in."""
    pool.adopt(0)
    return int(pool.live)


def used(s: asc.Scheduler) -> int:
    """The bytes that are charged, when all that has ended was taken in. The ledgers agree with each other."""
    s.statistics()
    validate(engine_of(s))
    return int(engine_of(s).ledger.account.used)
