"""How much memory and how many processors this process may use, by the machine, by the container it runs in, and by its
own limits. And how much memory it has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from errno import EMFILE, ENFILE
from functools import cache
from math import ceil

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
    """The bytes that the process's own limits (`ulimit -v`, `ulimit -d`) leave. They count all that it has mapped."""
    with suppress(ImportError):  # not on Windows
        import resource

        mapped = _pages() or [0] * 7
        for kind, used in ((resource.RLIMIT_AS, mapped[0]), (resource.RLIMIT_DATA, mapped[5])):
            most = resource.getrlimit(kind)[0]
            if most != resource.RLIM_INFINITY:
                yield max(2, most - used)  # at least 2, so that half of it is a limit above 0


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
