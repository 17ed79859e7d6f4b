"""How much memory this process may use, by the machine and by the container that it runs in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

GROUPS = "/sys/fs/cgroup"
OWN_GROUPS = "/proc/self/cgroup"


@cache
def allowed_memory() -> int | None:
    """In bytes; None where nothing tells. Reads files: not for the loop's thread."""
    limits = [*_machine(), *_container()]
    return min(limits, default=None)


def _machine() -> Iterator[int]:
    with suppress(AttributeError, OSError, ValueError):  # not on Windows
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _container() -> Iterator[int]:
    """The limits of the control groups that the process is in (Linux's, versions 2 and 1), and of those around them."""
    try:
        lines = _read(OWN_GROUPS).splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if not kinds:
            folder, file = GROUPS, "memory.max"
        elif "memory" in kinds.split(","):
            folder, file = f"{GROUPS}/memory", "memory.limit_in_bytes"
        else:
            continue
        while path:  # in a container the path may be the host's: then the folder's own counts, which comes last
            path = path.rstrip("/")
            with suppress(OSError, ValueError):  # not there, or "max"
                yield int(_read(f"{folder}{path}/{file}"))
            path = path.rpartition("/")[0] or ("/" if path else "")


def _read(name: str) -> str:
    with open(name, encoding="ascii") as file:
        return file.read()
