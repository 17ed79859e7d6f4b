"""Starting threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

_NO_THREAD: Final = (
    "no thread can be started, and asyncsched needs one ({}): end some threads or processes, or raise the limit"
    " (`ulimit -u`, a container's limit of processes, or its memory)"
)


def start_thread(run: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread of this name.

    Raises:
        RuntimeError: if the system has none left.
    """
    thread = threading.Thread(target=run, name=f"asyncsched {name}", daemon=True)
    start(thread)
    return thread


def start(thread: threading.Thread) -> None:
    """The same for a thread that is made already."""
    try:
        thread.start()
    except RuntimeError as error:
        raise RuntimeError(
            _NO_THREAD.format(thread.name.removeprefix("idle, for ").removeprefix("asyncsched "))
        ) from error
