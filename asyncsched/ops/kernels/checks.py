"""Errors that only the data shows: raised at once where the data is at hand, and told later by a GPU.

To ask a GPU is to wait for it. So a kernel says which numbers decide, and goes on as if they were right; who runs it
there has them copied behind it, and judges them once the device has come so far. `devices.cuda.doubts` says how.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

Judge = Callable[..., Exception | None]  # given the numbers
Check = tuple[Sequence[Any], Judge]

_here = threading.local()


def require(xp: Any, numbers: Sequence[Any], judge: Judge) -> None:
    """Raise what `judge` makes of some arrays of one number, now or later."""
    if deferring(xp):
        _here.found.append((numbers, judge))
        return
    error = judge(*map(int, numbers))
    if error is not None:
        raise error


def deferring(xp: Any) -> bool:
    """Whether errors are told later."""
    return xp is not np and getattr(_here, "found", None) is not None


@contextmanager
def deferred() -> Iterator[list[Check]]:
    """Within, on this thread, what a kernel on a GPU requires is gathered."""
    found: list[Check] = []
    _here.found = found
    try:
        yield found
    finally:
        _here.found = None
