"""Errors as HTTP tells them: a status, and problem details (RFC 9457)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from http import HTTPStatus
from math import ceil
from typing import Any, Final, NamedTuple

from ..errors import (
    DeadlineExceeded,
    MemoryDeadlockError,
    QueueFull,
    SchedulerClosed,
    SchedulerStalled,
    TaskCancelled,
    TaskTooLarge,
)
from .exchange import Exchange

logger = logging.getLogger("asyncsched.serving")
_LONGEST = 3600.0  # seconds to come back after: measured rates of what hardly moves give centuries


class Problem(Exception):
    """An error that is the answer to a request. A handler may raise it.

    Args:
        status: the HTTP status.
        detail: what went wrong, for the client. The title is the status's own phrase, as RFC 9457 asks of problems that
            have no type of their own.
        retry_after: seconds after which the client may try again.
        close: whether the connection ends with the answer, since the rest of the request will not be read.
        members: further members of the problem details.
    """

    def __init__(
        self, status: int, detail: str, *, retry_after: float | None = None, close: bool = False, **members: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.retry_after = retry_after
        self.close = close
        self.members = members

    async def answer(self, exchange: Exchange) -> None:
        """Send it."""
        headers = {"cache-control": "no-store"}
        if self.retry_after is not None:  # whole seconds, by RFC 9110
            headers["retry-after"] = str(max(1, ceil(min(_LONGEST, self.retry_after))))
        if self.close:
            headers["connection"] = "close"
        title = _phrase(self.status)
        found = {"type": "about:blank", "title": title, "status": self.status, "detail": str(self), **self.members}
        await exchange.respond(self.status, "application/problem+json", json.dumps(found).encode(), headers)


class Row(NamedTuple):
    """How an exception of the library is told. Its own text is for who runs the server: it is logged, unless the
    exception is an ordinary event, and not sent."""

    error: type[Exception]
    status: int
    detail: str
    retry: bool = False
    logged: bool = True


TABLE: Final = (
    Row(QueueFull, 503, "The server has as much to do as it takes on.", retry=True, logged=False),
    Row(TaskTooLarge, 413, "The request needs more than this server has for one."),
    Row(DeadlineExceeded, 504, "The answer was not ready in time.", logged=False),
    Row(MemoryDeadlockError, 503, "The server ran out of room for this request.", retry=True),
    Row(SchedulerStalled, 503, "The server ran out of room for this request.", retry=True),
    Row(SchedulerClosed, 503, "The server is shutting down.", retry=True),
)
"""What is answered where a handler lets an exception out. What is not here is the framework's to answer, with 500."""


def find_problem(error: Exception, retry_after: float | None) -> Problem | None:
    """What to answer; None for what is not in the table, as a bug in a group is not, whatever else there is in it.
    `retry_after` is used where the error does not say."""
    causes = [leaf for leaf in _leaves(error) if not isinstance(leaf, TaskCancelled)]
    found = [_problem_of(leaf, retry_after) for leaf in causes]
    return found[0] if all(found) and found else None


def _problem_of(error: BaseException, retry_after: float | None) -> Problem | None:
    if isinstance(error, Problem):
        return error
    for row in TABLE:
        if isinstance(error, row.error):
            if row.logged:
                logger.warning("answered with %d: %s: %s", row.status, type(error).__name__, error)
            after = getattr(error, "retry_after", None) or retry_after or 1.0
            return Problem(row.status, row.detail, retry_after=after if row.retry else None)
    return None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:  # 499 or 529, say: servers send what they are told
        return "Error"
