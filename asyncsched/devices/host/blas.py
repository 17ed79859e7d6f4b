"""BLAS threads shared out between compute streams. The setting is the process's, so it is counted and restored once."""

from __future__ import annotations

import os
from contextlib import ExitStack
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

_lock = Lock()
_shares: list[int] = []
_controller: ThreadpoolController | None = None
_restore = ExitStack()


def available() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def look() -> None:
    """Look for the loaded libraries. Reads files: not for the loop's thread."""
    global _controller
    from threadpoolctl import ThreadpoolController  # slow to import, and never needed by a GPU alone

    controller = ThreadpoolController()
    with _lock:
        if not _shares:
            _controller = controller


def share(streams: int) -> None:
    """Give each of several streams its part of the processors. Call `look` before; undo with `unshare`.

    On the loop's thread, like `unshare`: threadpoolctl lets only one living thread change OpenBLAS's setting, and what
    any other sets is silently dropped.
    """
    with _lock:
        _shares.append(streams)
        _apply()


def unshare(streams: int) -> None:
    """Take back one `share(streams)`. The last restores what was set before the first. Never blocks for long."""
    with _lock:
        _shares.remove(streams)
        _apply()


def _apply() -> None:
    _restore.close()
    if _shares and _controller is not None:
        # Never more than was set before.
        before = min((lib["num_threads"] for lib in _controller.select(user_api="blas").info()), default=1)
        limits = max(1, min(before, available() // max(_shares)))
        _restore.enter_context(_controller.limit(limits=limits, user_api="blas"))
