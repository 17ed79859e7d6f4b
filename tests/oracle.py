"""An oracle for writing in place: whoever holds a value must be counted among its holders.

The scheduler writes over a buffer where the list of holders says that nobody else has it (`_core.ownership`). Here each
such decision is compared with what the collector knows: every lease of the value, and every read of an unfinished task.
If the list has fewer entries than there are holders, a holder does not count, and its array would be written over in
silence.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import CoroutineType, FrameType, GeneratorType
from typing import Any

import pytest

from asyncsched._core.model import Lease, Task, Value
from asyncsched._core.ownership import sole

PLACES = ("_core.ledger", "_core.audit", "devices.execution", "tensors.capture")
_ENGINE = tuple(f"asyncsched/{room}/" for room in ("_core", "devices", "runtime", "cluster"))


class Oracle:
    """What was asked, and what was wrong."""

    def __init__(self) -> None:
        self.asked = 0  # how often nobody else held a value
        self.wrong: list[str] = []

    def sole(self, value: Value, entries: int) -> bool:
        found = sole(value, entries)
        if found:
            self.asked += 1
            self.wrong += uncounted(value, entries)
        return found


def uncounted(value: Value, entries: int) -> list[str]:
    """What holds a value that the list of its holders does not count."""
    found: list[str] = []
    keeping: list[str] = []
    for one in gc.get_referrers(value):
        if isinstance(one, Lease):
            found.append(type(one).__name__)
        elif type(one) is Task and one.reads is value:
            found.append(f"a read of {one}")
        elif type(one) is tuple and (task := next((t for t in gc.get_referrers(one) if type(t) is Task), None)):
            found += [f"a read of {task}"] * (sum(read is value for read in one) if task.reads is one else 0)
        elif type(one) in (GeneratorType, CoroutineType):
            keeping.append(f"a variable of {one.__qualname__}")
        elif type(one) in (list, dict, set, tuple) and _is_kept(one):
            keeping.append(f"a {type(one).__name__} that somebody keeps")
    if len(found) > entries or keeping:
        return [f"{entries} counted; found {', '.join(found + keeping)}"]
    return []


def _is_kept(container: Any) -> bool:
    """Whether a container is more than a variable of the engine's, or of this file's."""
    for one in gc.get_referrers(container):
        if isinstance(one, FrameType):
            if any(room in one.f_code.co_filename for room in _ENGINE) or one.f_code.co_filename == __file__:
                continue
            return True
        if type(one) is not list and not type(one).__name__.endswith("iterator"):  # of referrers, and of a loop
            return True
    return False


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch, *, smallest: int | None = None) -> Iterator[Oracle]:
    """Compare each decision in this block. With `smallest`, values of so many bytes and more are written over."""
    oracle = Oracle()
    with monkeypatch.context() as patch:
        if smallest is not None:
            patch.setattr("asyncsched._core.model.COUNTED", smallest)
            for place in ("_core.ledger", "devices.host.memory"):
                patch.setattr(f"asyncsched.{place}.POOLED_BYTES", smallest)
        for place in PLACES:
            patch.setattr(f"asyncsched.{place}.sole", oracle.sole)
        yield oracle
