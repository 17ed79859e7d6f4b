"""What the ledgers say, for tests."""

from __future__ import annotations

import asyncsched as asc
from tests.validate import validate


def used(s: asc.Scheduler) -> int:
    """The bytes that are charged, when all that has ended was taken in. The ledgers agree with each other."""
    s.statistics()
    validate(s._runtime.engine)
    return s._runtime.engine.ledger.account.used
