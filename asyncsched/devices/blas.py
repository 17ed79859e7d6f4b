"""BLAS threads shared out between compute streams. The setting is the process's, so it is counted and restored once."""

from __future__ import annotations

import os
from threading import Lock

from threadpoolctl import threadpool_limits

_lock = Lock()
_shares: list[int] = []
_limits: threadpool_limits | None = None


def available() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share(streams: int) -> None:
    """Give each of several streams its part of the processors. Undo with `unshare`."""
    if streams > 1:
        _change(lambda: _shares.append(streams))


def unshare(streams: int) -> None:
    """Take back one `share(streams)`. The last restores what was set before the first."""
    if streams > 1:
        _change(lambda: _shares.remove(streams))


def _change(edit) -> None:  # type: ignore[no-untyped-def]
    global _limits
    with _lock:
        edit()
        if _limits is not None:
            _limits.restore_original_limits()
            _limits = None
        if _shares:
            _limits = threadpool_limits(max(1, available() // max(_shares)), user_api="blas")
