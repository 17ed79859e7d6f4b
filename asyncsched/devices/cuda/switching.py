"""How long a thread waits for the GIL before it asks for it, while CUDA schedulers are open: a setting of the process.

CPython's own is 5 ms (`sys.setswitchinterval`). A stream's issuing thread gives the GIL away with each launch. So
beside an event loop that stays in Python it issues one operation in such a time or more, and the card runs dry.
Measured on CuPy in host memory, on two busy processors: beside such a loop an operation is issued every 600 us at 5 ms,
every 180 us at 1 ms, every 130 us at 0.5 ms, and no more often below. A chain of operations takes the same time at all
these settings, and a loop beside two busy streams is equally late.
"""

from __future__ import annotations

import sys

from ..._interrupts import Lock

SECONDS = 5e-4
_HALF = 5e-7  # a microsecond: CPython cuts off fractions of one

_lock = Lock()
_wanted: dict[object, float] = {}  # by owner
_before = _ours = 0.0  # the interval that somebody else set, and the one set here


def hold(owner: object, seconds: float) -> None:
    """Have threads wait for no longer than this, until `owner` releases it. The shortest interval of all owners
    counts."""
    with _lock:
        _wanted[owner] = seconds
        _set()


def let_go(owner: object) -> None:
    """Take back `hold`, if it was called. The last owner sets back the interval from before."""
    with _lock:
        if _wanted.pop(owner, None) is not None:
            _set()


def _set() -> None:
    global _before, _ours
    now = sys.getswitchinterval()
    if now != _ours:
        _before = now  # if somebody else has set it meanwhile, that is set back
    sys.setswitchinterval(min([_before, *_wanted.values()]) + _HALF)
    _ours = sys.getswitchinterval()
