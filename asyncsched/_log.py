"""Logging that changes nothing else."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from contextlib import suppress
from typing import Any, Final

# What a user's hook raises, and nobody but the hook means. The rest is a signal's, and goes on.
HOOK_FAILURES: Final = (Exception, CancelledError, GeneratorExit)


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose filters and handlers cannot raise.

    The lines that log are in the middle of the scheduler's work. So what a filter or a handler raises goes to stderr,
    as what a handler's `emit` raises does anyway.

    Args:
        name: the logger's.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """As `Logger.log`, which all other methods call."""
        try:
            super().log(level, msg, *args, stacklevel=2, **options)
        except HOOK_FAILURES:
            with suppress(*HOOK_FAILURES):  # stderr may be closed
                logging.NullHandler().handleError(logging.makeLogRecord({"msg": msg, "args": args}))
