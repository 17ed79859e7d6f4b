"""How much memory and how many processors this process may use, by the machine, by the container it runs in, and by its
own limits. And how much memory it has.

Long turns for the threads of streams, so that the event loop's thread gets a processor as soon as it wakes.

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
from collections.abc import Iterator
from contextlib import suppress
from ctypes import CDLL, Structure, byref, c_int32, c_uint32, c_uint64, sizeof
from errno import EMFILE, ENFILE
from functools import cache
from math import ceil
from typing import Final

GROUPS = "/sys/fs/cgroup"
OWN_GROUPS = "/proc/self/cgroup"
OWN_PAGES = "/proc/self/statm"
NO_DESCRIPTOR = (EMFILE, ENFILE)  # by the process's own limit, or by the machine's


@cache
def allowed_memory() -> int | None:
    """Bytes that this process may use; None where that is not known. Reads files: not for the loop's thread."""
    limits = [*_machine(), *_container(), *_own()]
    return min(limits, default=None)


def allowed_processors() -> int:
    """How many processors this process may use; fewer, if a container's quota allows less of their time. Reads files.

    Counted each time, since a process may be bound to processors while it runs, as the workers of a pool.
    """
    machine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([machine, *[max(1, ceil(quota)) for quota in _quotas()]])


def _machine() -> Iterator[int]:
    with suppress(AttributeError, OSError, ValueError):  # not on Windows
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def resident_memory() -> tuple[int, int]:
    """The bytes of this process that are in memory now, and the most so far; zeros where that is not known. Reads a
    file."""
    with suppress(ImportError, IndexError):  # not on Windows, or without Linux's files
        import resource

        return _pages()[1], 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 0, 0


def _own() -> Iterator[int]:
    """What is left by the process's own limits (`ulimit -v`, `ulimit -d`). They count all that it has mapped."""
    with suppress(ImportError):  # not on Windows
        import resource

        mapped = _pages() or [0] * 7
        for kind, used in ((resource.RLIMIT_AS, mapped[0]), (resource.RLIMIT_DATA, mapped[5])):
            most = resource.getrlimit(kind)[0]
            if most != resource.RLIM_INFINITY:
                yield max(2, most - used)  # so that half of it is a limit


def _pages() -> list[int]:
    """Bytes of this process, by Linux: mapped, resident, shared, of its text, 0, of its data, 0."""
    return [os.sysconf("SC_PAGE_SIZE") * int(number) for number in _read(OWN_PAGES).split()]


def _container() -> Iterator[int]:
    for folder, first in _groups("memory"):
        with suppress(ValueError):  # not there, or "max"
            yield int(_read(f"{folder}/{'memory.limit_in_bytes' if first else 'memory.max'}"))


def _quotas() -> Iterator[float]:
    """How many processors' time each group around this process allows."""
    for folder, first in _groups("cpu"):
        with suppress(ValueError):  # not there, or "max"
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if first else ("cpu.max",)
            quota, period = [int(number) for name in names for number in _read(f"{folder}/{name}").split()]
            if quota > 0:
                yield quota / period


def _groups(kind: str) -> Iterator[tuple[str, bool]]:
    """The folders of the control groups (Linux's, versions 2 and 1) that the process is in, and of those around them.

    And whether they are of the first version.
    """
    for line in _read(OWN_GROUPS).splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and kind not in kinds.split(","):
            continue
        folder = f"{GROUPS}/{kind}" if kinds else GROUPS
        while path:  # in a container the path may be the host's: then the folder itself counts, which comes last
            path = path.rstrip("/")
            yield f"{folder}{path}", bool(kinds)
            path = path.rpartition("/")[0] or ("/" if path else "")


def _read(name: str) -> str:
    """The text of a file; empty if it is not there, or cannot be read."""
    try:
        with open(name, encoding="ascii") as file:
            return file.read()
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:  # else a limit would be overlooked, since the result is kept
            raise
        return ""


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


def attributes(thread: int = 0) -> Attributes | None:
    """How a thread is scheduled, by its native number: by default the calling one. None where that is not known."""
    found = Attributes()
    return found if _call(0, thread, byref(found), sizeof(found), 0) else None


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
