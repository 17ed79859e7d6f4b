"""Long turns for the threads of streams, so that the event loop's thread gets a processor as soon as it wakes.

Linux (6.6 and newer) runs the thread with the earliest deadline: the time at which it would have had its slice. Threads
that wake often, such as a loop's, and threads that only compute have the same slice by default, 1 to 3 ms. So if a loop
wakes beside as many computing threads as there are processors, it mostly waits until one has had its slice. Since 6.12
each thread may ask for a slice of its own, without a privilege, and streams ask for the longest: their deadlines are
later than the loop's. Shares of the processors stay as they were, unlike with niceness, also beside other processes.

Not taken: `SCHED_BATCH`, by which a stream that wakes never takes the processor from the loop's thread, which has the
GIL at that moment. A small call takes 6% less processor time where the two share a processor. But beside other
processes the 99th percentile of its time doubles, since the stream waits for their slices.

https://docs.kernel.org/scheduler/sched-eevdf.html, and `sched_setattr(2)`.
"""

from __future__ import annotations

import os
import sys
from ctypes import CDLL, Structure, byref, c_int32, c_uint32, c_uint64, sizeof
from typing import Final

LONGEST: Final = 100_000_000  # nanoseconds; the kernel takes no more
# The numbers of sched_getattr and sched_setattr, since a C library names them only from glibc 2.41 on.
_CALLS: Final = {"x86_64": (315, 314), "aarch64": (275, 274), "riscv64": (275, 274)}
_LIBRARY: Final = CDLL(None) if sys.platform == "linux" and sys.maxsize > 2**32 else None  # one: each leaves a cycle
_RESET_ON_FORK: Final = 1  # what a task starts, a process say, has slices as others have
_FAIR: Final = (0, 3)  # SCHED_OTHER and SCHED_BATCH: others have no slices


class Attributes(Structure):
    """How a thread is scheduled: Linux's `struct sched_attr`, in its first version."""

    _fields_ = [
        *[(name, c_uint32) for name in ("size", "policy")],
        ("flags", c_uint64),
        ("nice", c_int32),
        ("priority", c_uint32),
        *[(name, c_uint64) for name in ("slice", "deadline", "period")],
    ]


def attributes() -> Attributes | None:
    """How the calling thread is scheduled. None where that is not known."""
    found = Attributes()
    return found if _call(0, 0, byref(found), sizeof(found), 0) else None


def take_long_slices() -> None:
    """Ask for long slices for the calling thread. Nothing happens if the system has none."""
    found = attributes()
    if found is not None and found.policy in _FAIR:
        found.slice, found.flags = LONGEST, found.flags | _RESET_ON_FORK
        _call(1, 0, byref(found), 0)


def _call(which: int, *args: object) -> bool:
    """Make one of `_CALLS`, and say whether it succeeded."""
    if _LIBRARY is None or (numbers := _CALLS.get(os.uname().machine)) is None:
        return False
    made: int = _LIBRARY.syscall(numbers[which], *args)
    return made == 0
