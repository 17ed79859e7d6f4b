"""A request as seen from its client: the body, room in memory for it, the disconnect, and the cancellation of the work.

Theory of operation. That the client has left is learned only by a call of `receive`, after the body. The work runs in
an asyncio task of its own, so the server's task is free: it reads the body ahead (which is bounded), and then waits for
the disconnect. The application gets the messages by a `receive` of its own.

That wait is ended by a cancellation of the server's task: when the work has ended, and when there is a reason to cut it
short. Cancellations are counted, as by `asyncio.timeout`, to tell this one from one that came from outside, which goes
on.

The objects of a request have no reference cycles. Otherwise, under overload, Python's collector would stop the loop to
collect those of refused requests. So nobody keeps the work, or the reason to cut it short, once the wait is over.

The room for a whole body is claimed before its first byte is read. If it were claimed piece by piece, bodies that have
been read in part could wait for each other. It is also claimed before a reserve of the scheduler's, and the body is
read after that: a request with bytes of the scheduler's never waits for the body of another. Claims are granted in
their order. The room is given back when all work of the request has ended, since handlers keep the bodies.

A scope of anyio may hold off the cancellation. asyncio cancels an asyncio task once, wherever it waits. anyio cancels
all that is in a scope again and again, but nothing that a shielded scope in it protects. A function in one of anyio's
threads, such as a `def` endpoint of FastAPI, is so protected: its wait goes on until the function has ended, and only
then is the thread's token given back. After asyncio's own `cancel()`, the token would be free while the thread still
runs.

Here both are wanted: one cancellation, as handlers for asyncio expect (else no `await` in a `finally` would work), and
none under a shield. So the work runs in two scopes. The outer one is cancelled. The inner one shields the work from
that, except for a moment, in which anyio cancels the work unless another shield protects it. In that case it is tried
again later, since anyio tells nobody when a shield ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import cache
from types import TracebackType
from typing import Any, Final

import anyio

from ..errors import DeadlineExceeded
from .http import BodyTooLarge, Exchange, LengthRequired, Message, Problem

_UNWINDING: Final = 0.05  # seconds for a request that is cut short to end by itself, before it is answered all the same


class Disconnected(Exception):
    """The client left before it had its whole answer."""


class Client:
    """Reads a request while its work runs, and cuts the work short when there is no client or no request to answer.

    Args:
        max_body: most bytes of the body.
        max_bodies: most bytes of all bodies together, for which room is claimed. At least `max_body`.
        body_timeout: seconds for the whole body to arrive.
    """

    _may_read = False
    _waiting: asyncio.Task[Any] | None = None  # the server's task, while it waits to be woken
    _work: asyncio.Task[None] | None = None  # for whose end it waits
    _woken = False
    _reason: Exception | None = None  # why the work is cut short
    _late: asyncio.TimerHandle | None = None  # while the body has not arrived
    _unread: bytearray | None = None  # in one piece: a message of one byte would take 200
    _more_body = True
    _disconnect: Message | None = None

    def __init__(
        self, exchange: Exchange, *, max_body: int | None, max_bodies: int | None, body_timeout: float | None
    ) -> None:
        self._exchange = exchange
        self._receive = exchange.receive
        self._max_body, self._max_bodies = max_body, max_bodies
        self._most = max_bodies if max_body is None else max_body  # bytes of this body; `max_bodies` is never less
        self._body_timeout = body_timeout
        self._arrived = asyncio.Event()

    def needed(self) -> int:
        """The bytes to claim for the body before it is read, where bodies are bounded.

        Raises:
            Problem: if the body is announced as too large, or it is not known how large it may become.
        """
        scope = self._exchange.scope
        headers = dict([*scope["headers"]][::-1])  # of several the first
        sends = b"expect" not in headers  # else it waits for "100 Continue", sent by `receive`
        given, http_1, room = headers.get(b"content-length"), scope.get("http_version", "2") < "2", 0
        length = None if given is None else _number(given)
        if length is not None and self._most is not None and length > self._most:
            raise BodyTooLarge(self._most, sending=sends)
        if self._max_bodies is not None:
            # HTTP/1 says whether there is a body. Later versions do not: there the method does, mostly.
            if length is not None or (
                b"transfer-encoding" not in headers
                and (http_1 or scope["method"] in ("GET", "HEAD", "OPTIONS", "TRACE"))
            ):
                room = length or 0
                if not room and http_1:
                    self._body_timeout = None  # there is nothing to wait for
            elif self._max_body is None:
                raise LengthRequired(sending=sends)
            else:
                room = self._max_body
            self._most = room
        if not room:
            self.begin()
        return room

    def begin(self) -> None:
        """Begin to read the body: there is room for it."""
        self._may_read = True
        self._arrived.set()

    async def attend(self, work: asyncio.Task[None], cancelling: Cancelling, deadline: float | None) -> None:
        """Read the request, and wait until its work has ended or is cut short: at its deadline, say, unless the server
        has taken the whole answer by then.

        Raises:
            Disconnected, Problem, DeadlineExceeded: why the work was cut short.
            Exception: what the work raised.
        """
        exchange, loop, task = self._exchange, asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        before, reason = task.cancelling(), None
        past = None if deadline is None else loop.call_later(deadline, self._pass_deadline, deadline)
        work.add_done_callback(self._wake)
        self._waiting, self._work = task, work
        try:
            try:
                while not self._may_read:
                    await self._arrived.wait()
                if self._body_timeout is not None and (deadline is None or self._body_timeout < deadline):
                    self._late = loop.call_later(self._body_timeout, self._give_up_body, self._body_timeout)
                await self._read()
                await asyncio.wait([work])
            except (asyncio.CancelledError, Exception) as error:
                reason = self._reason if self._woken and task.cancelling() <= before + 1 else error
            finally:
                if self._woken:
                    task.uncancel()
                self._waiting = self._work = self._reason = None
                for timer in (past, self._late):
                    if timer is not None:
                        timer.cancel()
            if reason is not None:
                exchange.cancelled = True
                cancelling.cancel(work)
                if not work.done():
                    await asyncio.wait([work], timeout=_UNWINDING)
                ended = work.done() and not work.cancelled()
                answered = ended and (exchange.complete or work.exception() is not None)  # which is an answer, too
                if not (answered or exchange.taken) or isinstance(reason, asyncio.CancelledError):
                    raise reason
                if not ended:
                    return  # it answered in the meantime: only what it does after its answer is cut short
            work.result()
        finally:
            self._arrived.set()
            del work, task, reason

    async def receive(self) -> Message:
        """ASGI's `receive`, for the application."""
        while self._unread is None:
            if self._exchange.left:
                return {"type": "http.disconnect"}
            # Before the response is complete, the application is cancelled. It does not get the disconnect: frameworks
            # would raise errors of their own.
            if self._disconnect is not None and (self._exchange.complete or self._exchange.cancelled):
                return self._disconnect
            self._arrived.clear()
            await self._arrived.wait()
        body, self._unread = bytes(self._unread), None
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    def end(self, reason: Exception) -> None:
        """Cut the work short, unless it has ended. `attend` raises the reason."""
        if self._waiting is not None and not self._woken:
            self._reason = reason
            self._wake()

    def ends(self) -> None:
        """Called by the work as it ends: wakes `attend` without a further turn of the loop."""
        if self._work is not None:
            self._work.remove_done_callback(self._wake)
            self._wake()

    def _wake(self, work: object = None) -> None:
        if self._waiting is not None and not self._woken:
            self._woken = True
            self._waiting.cancel()

    def _pass_deadline(self, seconds: float) -> None:
        if not self._exchange.taken:
            self.end(DeadlineExceeded(f"{self._exchange.name} passed its deadline of {seconds:g} s"))

    def _give_up_body(self, seconds: float) -> None:
        if not self._exchange.complete:
            self.end(Problem(408, f"The body did not arrive within {seconds:g} seconds.", close=True))

    async def _read(self) -> None:
        """Read the body, then wait for the disconnect. Raises Disconnected if it comes before the whole answer.

        Some test clients have a `receive` that never waits, and says again that there is no more body: then the client
        waits for its answer.
        """
        size = 0
        while True:
            message = await self._receive()
            if self._woken:
                raise asyncio.CancelledError  # which `receive` has swallowed
            if message["type"] == "http.disconnect":
                break
            if not self._more_body:
                return
            size += len(message.get("body", b""))
            if self._most is not None and size > self._most:
                if self._exchange.complete:
                    message = {"type": "http.disconnect"}  # as servers say then: nobody reads the rest
                    break
                sending = message.get("more_body", False)
                raise BodyTooLarge(self._most, sending) if self._most else LengthRequired(sending)
            self._take(message)
        self._disconnect = message
        if not self._exchange.complete:
            self._exchange.disconnected = True
            raise Disconnected
        self._arrived.set()

    def _take(self, message: Message) -> None:
        """Keep a part of the body for the application."""
        self._unread = self._unread or bytearray()
        self._unread += message.get("body", b"")
        self._more_body = message.get("more_body", False)
        self._arrived.set()
        if not self._more_body and self._late is not None:
            self._late.cancel()


def _number(length: bytes) -> int:
    """The value of a Content-Length."""
    try:
        if length.isdigit():
            return int(length)
    except ValueError:  # thousands of digits
        pass
    raise Problem(400, "Content-Length must be a number of bytes.", close=True)


_SOONEST: Final = 0.001  # seconds until the next try, and twice as long each time
_LATEST: Final = 0.25


class Cancelling:
    """Cancels one asyncio task, once. It does not hold the task, which would be a cycle."""

    def __init__(self) -> None:
        kind = _kind_of_scope()
        self._outer, self._inner = kind(), kind(shield=True)
        self._begun = False
        self._task = 0  # the identity of the task, once that is cancelled
        self._again: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        """Open around all that the task does."""
        self._outer.__enter__()
        self._inner.__enter__()
        self._begun = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The task ends. A cancellation goes on as such."""
        if self._again is not None:
            self._again.cancel()
        self._inner.__exit__(kind, error, trace)
        self._outer.__exit__(kind, error, trace)

    def cancel(self, task: asyncio.Task[Any], again: float = _SOONEST) -> None:
        """Cancel the task, as soon as no scope of anyio shields it."""
        if task.done():
            return
        if not self._begun:
            task.cancel()
            return
        before, self._task = task.cancelling(), id(task)
        self._outer.cancel()
        self._inner.shield = False
        self._inner.shield = True
        self._again = None
        if task.cancelling() == before:
            later = min(2 * again, _LATEST)
            self._again = asyncio.get_running_loop().call_later(again, self.cancel, task, later)

    def check(self) -> None:
        """Raise CancelledError if this is the task, and it is still to be cancelled."""
        if self._again is not None and id(asyncio.current_task()) == self._task:
            self._again.cancel()
            self._again = None
            raise asyncio.CancelledError


@cache
def _kind_of_scope() -> type[anyio.CancelScope]:
    """The class of anyio's scopes on asyncio. (`anyio.CancelScope()` asks each time which library runs, which takes
    longer than everything else here.)"""
    return type(anyio.CancelScope())


class BodyRoom:
    """Bytes that are claimed for bodies.

    Attributes:
        limit: the most bytes; None for no limit.
        claimed: the bytes that are claimed now.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self.claimed: int = 0
        self._waiting = deque[tuple[int, asyncio.Future[None]]]()

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    async def claim(self, nbytes: int) -> None:
        """Claim room, and wait for it. It is at most the limit."""
        claim = nbytes, asyncio.get_running_loop().create_future()
        self._waiting.append(claim)
        self._grant()
        try:
            await claim[1]
        except asyncio.CancelledError:
            if claim in self._waiting:
                self._waiting.remove(claim)
                self._grant()
            else:
                self.release(nbytes)
            raise

    def release(self, nbytes: int) -> None:
        """Give room back."""
        self.claimed -= nbytes
        self._grant()

    def _grant(self) -> None:
        while self._waiting and (self.limit is None or self.claimed + self._waiting[0][0] <= self.limit):
            nbytes, granted = self._waiting.popleft()
            self.claimed += nbytes
            if not granted.done():  # one that was cancelled gives it back
                granted.set_result(None)
