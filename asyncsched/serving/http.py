"""HTTP as ASGI has it: a request with its response, and errors as problem details (RFC 9457)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Hashable, Iterable, MutableMapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from http.client import responses
from math import ceil
from typing import Any, Final, NamedTuple, Protocol

import anyio.lowlevel

from .. import errors
from .._arguments import printable
from .._system import Log

Message = MutableMapping[str, Any]
ASGIScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[ASGIScope, Receive, Send], Awaitable[None]]

logger: Final = Log("asyncsched.serving")
_TRAILERS: Final = "http.response.trailers"
_MORE: Final = {  # by the kind of a message: where it says that others follow
    "http.response.body": "more_body",
    "http.response.pathsend": "more_body",
    "http.response.zerocopysend": "more_body",
    _TRAILERS: "more_trailers",
}
_ENDS_OF_EVENTS: Final = (b"\n\n", b"\r\r", b"\r\n\r\n")
_FOR_THE_LAST = 1.0  # seconds for a client to take the last event
_LONGEST = 3600.0  # most seconds for Retry-After: a measured rate near zero would give centuries


class Drains(Protocol):
    """Says whether the server is about to stop."""

    draining: bool


@dataclass(slots=True, eq=False)
class Exchange:
    """One request, and the state of its response.

    Attributes:
        scope: ASGI's, of type "http".
        tenant: whose request it is; None if the server has no `tenant=`.
        status: of the response, once it has started.
        headers: of the response, as ASGI has them, once it has started.
        complete: whether the whole response was handed to the server.
        taken: whether the server has taken all of it, which may be as late as its client reads.
        disconnected: whether the client left before that.
        cancelled: whether the application was cancelled before its time.
        left: whether it was answered though the application had not ended: its later messages are refused.
        limiter: of its server. While that is about to stop, responses end their connections.
        on_taken: called when the server has taken all of the response.
        on_late: called for a message after it was `left`. It may raise an exception that ends the application.
        route: the one that a framework chose, once the response has started, or the work has ended; "" if none tells.
        has_trailers: whether headers follow the response's body.
        refusal: why it was answered in the application's place: a limit, or the class of an exception.
    """

    scope: ASGIScope
    receive: Receive
    _send: Send
    tenant: Hashable = None
    status: int | None = None
    headers: Iterable[tuple[bytes, bytes]] = ()
    complete: bool = False
    taken: bool = False
    disconnected: bool = False
    cancelled: bool = False
    left: bool = False
    limiter: Drains | None = None
    on_taken: Callable[[], None] | None = None
    on_late: Callable[[], None] | None = None
    route: str | None = None
    has_trailers: bool = False
    refusal: str = ""
    _events: bool | None = None  # whether the response is a stream of events, once that was asked
    _tail: bytes = b"\n\n"  # the last bytes that were sent of such a stream

    @property
    def name(self) -> str:
        """Method and path, which the client chose, for one line of a log."""
        name = f"{self.scope['method']} {self.scope['path']}"
        return name if name.isprintable() else printable(name)

    def header(self, name: bytes) -> bytes | None:
        """The first header of this name, which is in lower case; None if there is none."""
        return next((value for key, value in self.scope["headers"] if key == name), None)

    async def _refuse(self) -> None:
        if self.on_late is not None:
            self.on_late()
        await anyio.lowlevel.checkpoint_if_cancelled()  # in a task group that has ended while a thread worked for it
        raise OSError("the request was answered when it was cut short, and takes nothing more")

    def send(self, message: Message, *, ours: bool = False) -> Awaitable[None]:
        """ASGI's `send`, for the application, which also notes the state of the response. After it was `left`, only
        `ours` is sent."""
        if self.left and not ours:
            return self._refuse()
        kind = message["type"]
        if kind == "http.response.start":
            self.status, self.headers = message["status"], message.get("headers", ())
            self.route = route_of(self.scope)
            if self.limiter is not None and self.limiter.draining and self.scope.get("http_version", "1.1") < "2":
                others = [(name, value) for name, value in self.headers if name.lower() != b"connection"]
                self.headers = [*others, (b"connection", b"close")]
                message = {**message, "headers": self.headers}
            self.has_trailers = message.get("trailers", False) and _TRAILERS in (self.scope.get("extensions") or ())
        elif (more := _MORE.get(kind)) and not (message.get(more) or (self.has_trailers and kind != _TRAILERS)):
            self.complete = True  # first: a client may leave as soon as it has everything
            return self._send_last(message)
        elif kind == "http.response.body" and self._is_events():
            self._tail = (self._tail + message.get("body", b"")[-4:])[-4:]
        return self._send(message)

    async def _send_last(self, message: Message) -> None:
        await self._send(message)
        self.taken = True
        if self.on_taken is not None:
            self.on_taken()

    async def respond(self, status: int, content_type: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        """A whole response at once."""
        named = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
        body = b"" if self.scope["method"] == "HEAD" else body
        await self.send({"type": "http.response.start", "status": status, "headers": raw}, ours=True)
        await self.send({"type": "http.response.body", "body": body}, ours=True)

    async def end_events(self, last: bytes = b"") -> bool:
        """End a response early that has begun, if it is a stream of events: in order, with a last event.

        Returns whether it was ended so. Any other response must not look whole: it is left as it is, and the server
        closes the connection. The same goes for a stream whose client does not read, and for one that stopped in the
        middle of an event, if a last event is given.
        """
        if self.complete or not self._is_events() or (last and not self._tail.endswith(_ENDS_OF_EVENTS)):
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(_FOR_THE_LAST):
                await self.send({"type": "http.response.body", "body": last}, ours=True)
        return self.taken

    def _is_events(self) -> bool:
        """Whether the response is a stream of events to which one can be added: plain text of any length."""
        if self._events is None:
            found = {name.lower(): value for name, value in self.headers}
            plain = not found.keys() & {b"content-encoding", b"content-length"}
            self._events = plain and found.get(b"content-type", b"").startswith(b"text/event-stream")
        return self._events


Instrument = Callable[[Exchange], AbstractContextManager[None]]
"""Watches requests: the context manager is open while one is handled."""


class Problem(Exception):
    """An error that is the answer to a request. A handler may raise it.

    >>> raise Problem(422, "A digit is 64 numbers.", pointer="/pixels")
    Traceback (most recent call last):
    asyncsched.serving.http.Problem: A digit is 64 numbers.

    Args:
        status: the HTTP status.
        detail: the cause, for the client. The title is the status's phrase, as RFC 9457 asks of problems without a type
            of their own.
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

    async def answer(self, exchange: Exchange, **headers: str) -> None:
        """Send the problem as the response, with these further headers."""
        status, found, body = self.rendered()
        await exchange.respond(status, found.pop("content-type"), body, found | headers)

    def as_event(self) -> bytes:
        """The problem as a server-sent event, the last of a response."""
        return b"event: error\ndata: " + self.rendered()[2] + b"\n\n"

    def rendered(self) -> tuple[int, dict[str, str], bytes]:
        """The status, headers and body of the response."""
        headers = {"content-type": "application/problem+json", "cache-control": "no-store"}
        if self.retry_after is not None:  # whole seconds, by RFC 9110
            headers["retry-after"] = str(max(1, ceil(min(_LONGEST, self.retry_after))))
        if self.close:
            headers["connection"] = "close"
        title = responses.get(self.status, "Error")  # a status outside the table, such as 499 or 529
        found = {"type": "about:blank", "title": title, "status": self.status, "detail": str(self), **self.members}
        return self.status, headers, json.dumps(found).encode()


class ShuttingDown(Problem):
    """The end of a request that was not answered in the time for draining."""

    def __init__(self) -> None:
        super().__init__(503, "The server is shutting down.", retry_after=1.0, close=True)


class BodyRefused(Problem):
    """The end of a request whose body is not read. Its client may still be sending it (`sending`)."""

    def __init__(self, status: int, detail: str, sending: bool) -> None:
        super().__init__(status, detail, close=True)
        self.sending = sending


class BodyTooLarge(BodyRefused):
    """The end of a request whose body is above the limit."""

    def __init__(self, most: int, sending: bool) -> None:
        super().__init__(413, f"The body may have {most:,} bytes at most.", sending)


class LengthRequired(BodyRefused):
    """The end of a request whose body may have any length, where bodies are bounded."""

    def __init__(self, sending: bool) -> None:
        super().__init__(411, "Say how long the body is, by Content-Length.", sending)


class Answer(NamedTuple):
    """How an exception of the library is answered. Its text is for the operator: it is not sent, but logged, unless the
    exception is an ordinary event."""

    error: type[Exception]
    status: int
    detail: str
    retry: bool = False
    logged: bool = True


TABLE: Final = (
    Answer(errors.QueueFull, 503, "A queue of the server is full, or has no room in time.", retry=True, logged=False),
    Answer(errors.TaskTooLarge, 413, "The request is larger than this server allows."),
    Answer(errors.DeadlineExceeded, 504, "The answer was not ready in time.", logged=False),
    Answer(errors.Preempted, 503, "The server ran out of room for this request.", retry=True, logged=False),
    Answer(errors.MemoryDeadlockError, 503, "The server ran out of room for this request.", retry=True),
    Answer(errors.SchedulerStalled, 503, "The server ran out of room for this request.", retry=True),
    Answer(errors.SchedulerClosed, 503, "The server is shutting down.", retry=True),
)
"""The answers to exceptions that a handler lets out. The framework answers all others, with 500."""


def find_problem(error: BaseException, retry_after: Callable[[], float | None]) -> Problem | None:
    """The answer to an exception; None if it is not in the table. A group is in it if all of its parts are: others are
    bugs. `retry_after` is called if the error has none."""
    if isinstance(error, BaseExceptionGroup):
        _, causes = error.split(errors.TaskCancelled)
        found = [find_problem(cause, retry_after) for cause in causes.exceptions] if causes else []
        return found[0] if found and all(found) else None
    if isinstance(error, Problem):
        return error
    for row in TABLE:
        if isinstance(error, row.error):
            if row.logged:
                logger.warning("answered with %d: %s: %s", row.status, type(error).__name__, error)
            after = (getattr(error, "retry_after", None) or retry_after() or 1.0) if row.retry else None
            return Problem(row.status, row.detail, retry_after=after)
    return None


def route_of(scope: ASGIScope) -> str:
    """The route that a framework chose: the template of its path, or the name of what it called; never the path. Empty
    if no framework tells, or it has not chosen yet."""
    route = scope.get("route")
    template = getattr(route, "path_format", None) or getattr(route, "path", None) or scope.get("path_template")
    return template if isinstance(template, str) else getattr(scope.get("endpoint"), "__name__", "")
