"""Logging that cannot raise."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from contextlib import suppress
from typing import Any, Final

# Exceptions of a user's hook that concern only the hook. Others come from a signal, and go on.
HOOK_FAILURES: Final = (Exception, CancelledError, GeneratorExit)


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose filters and handlers cannot raise.

    Its callers are in the middle of the scheduler's work. So the exception of a filter or a handler is printed to
    stderr, as that of a handler's `emit` is anyway.

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
