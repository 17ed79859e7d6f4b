"""What the system may refuse or hold up, where the package can afford neither: threads, files, the log.

To open a named pipe waits until the other end is open, too: it may be for ever, on the event loop's thread. A filter or
a handler of the log may raise, in the middle of the scheduler's work.
"""

from __future__ import annotations

import logging
import os
import threading
from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

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


def at_once(path: Any, flags: int) -> int:
    """What `open(path, opener=at_once)` calls. A named pipe that nobody writes to is empty; for one that nobody reads
    it raises OSError."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(descriptor, True)
    return descriptor


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a page or a picture. Names in it may have half a surrogate pair."""
    with open(path, "w", encoding="utf-8", errors="backslashreplace", opener=at_once) as file:
        file.write(text)


# Exceptions of a user's hook that concern only the hook. Others come from a signal, and go on.
HOOK_FAILURES: Final = (Exception, CancelledError, GeneratorExit)


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose filters and handlers cannot raise.

    The exception of a filter or a handler is printed to stderr, as that of a handler's `emit` is anyway.

    Args:
        name: the logger's.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Log as `Logger.log` does. All other methods call this one."""
        try:
            super().log(level, msg, *args, stacklevel=2, **options)
        except HOOK_FAILURES:
            with suppress(*HOOK_FAILURES):  # stderr may be closed
                logging.NullHandler().handleError(logging.makeLogRecord({"msg": msg, "args": args}))


log: Final = Log("asyncsched")
