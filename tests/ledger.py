"""What the engine and its ledgers say, for tests."""

from __future__ import annotations

from typing import Any

import asyncsched as asc
from tests.validate import validate


def engine_of(s: asc.Scheduler) -> Any:
    """The engine of a scheduler, which has no public name."""
    return s._runtime.engine


def lane_of(tensor: Any) -> Any:
    """The lane of the task that makes a tensor."""
    return tensor._value.task.lane


def used(s: asc.Scheduler) -> int:
    """The bytes that are charged, when all that has ended was taken in. The ledgers agree with each other."""
    s.statistics()
    validate(engine_of(s))
    return int(engine_of(s).ledger.account.used)
