"""The client's side of a request: its body, and whether the client is still there.

Theory of operation. Only a call of `receive`, after the body, learns that the client has left. So one asyncio task, the
reader, owns `receive`: it reads the body ahead (which is bounded), and then waits for the disconnect. The application
gets the messages by a `receive` of its own, and is cancelled when there is a reason to.

One `asyncio.timeout` around a request cuts it short. It expires when the body is late; never, once the body is there;
and at once, when there is a reason to end the request. It counts cancellations, so it tells its own from one that came
from outside, which goes on.

The objects of a request have no reference cycles. Otherwise, under overload, Python's collector would stop the loop to
collect those of refusals. That is why the reader has no timeout of its own (`asyncio.timeout` holds its task, and a
cancelled task its frames), and why nobody keeps the reader or the reason once the block is left.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .http import Exchange, Message, Problem


class Disconnected(Exception):
    """The client left before it had its whole answer."""


class Client:
    """Reads a request while its `async with` is open, and ends the block when there is no client or no request to
    answer.

    Meanwhile this is the exchange's `receive`, for the application. If the block was ended, leaving it raises the
    reason: Disconnected, or a Problem.

    Args:
        max_body: most bytes of the body.
        body_timeout: seconds for the whole body to arrive.
    """

    def __init__(self, exchange: Exchange, *, max_body: int | None, body_timeout: float | None) -> None:
        self._exchange = exchange
        self._receive = exchange.receive
        self._max_body = max_body
        self._body_timeout = body_timeout
        self._open = False
        self._reason: Exception | None = None  # why the block is ended
        self._unread: bytearray | None = None  # in one piece: a message of one byte would take 200
        self._more_body = True
        self._disconnect: Message | None = None
        self._arrived = asyncio.Event()

    async def __aenter__(self) -> Client:
        self._check_length()
        self._timeout = await asyncio.timeout(self._body_timeout).__aenter__()
        self._open = True
        self._exchange.receive = self.receive
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._open = False
        try:
            await self._timeout.__aexit__(*error)
        except TimeoutError:
            late = f"The body did not arrive within {self._body_timeout or 0:g} seconds."
            raise self._reason or Problem(408, late, close=True) from None
        finally:
            self._reader.cancel()  # not waited for: the request's slot is free in the step that ends its response
            del self._reader
            self._reason = None
            self._exchange.receive = self._receive
            self._arrived.set()

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
        """End the block, which raises the reason."""
        if self._may_end():
            self._reason = reason
            self._timeout.reschedule(asyncio.get_running_loop().time())

    def _may_end(self) -> bool:
        """Whether the block is open, and has not been ended for another reason."""
        return self._open and self._reason is None and not self._timeout.expired()

    def _check_length(self) -> None:
        announced = self._exchange.header(b"content-length")
        if self._max_body is None or announced is None:
            return
        try:
            length = int(announced)
        except ValueError:
            raise Problem(400, "Content-Length must be a number of bytes.", close=True) from None
        if length > self._max_body:
            raise self._too_large()

    async def _read(self) -> None:
        """The reader: read the body, then wait for the disconnect."""
        try:
            last = await self._read_body()
            if self._may_end():
                self._timeout.reschedule(None)
            while last["type"] != "http.disconnect":
                last = await self._receive()
            self._left(last)
        except Exception as error:
            self.end(error)

    async def _read_body(self) -> Message:
        """Read the body. Returns the last message of it, or the disconnect."""
        size = 0
        while (message := await self._receive())["type"] != "http.disconnect":
            body = message.get("body", b"")
            size += len(body)
            if self._max_body is not None and size > self._max_body:
                raise self._too_large()
            self._unread = self._unread or bytearray()
            self._unread += body
            self._more_body = message.get("more_body", False)
            self._arrived.set()
            if not self._more_body:
                break
        return message

    def _left(self, message: Message) -> None:
        self._disconnect = message
        if self._exchange.complete:
            self._arrived.set()
        else:
            self._exchange.disconnected = True
            self.end(Disconnected())

    def _too_large(self) -> Problem:
        return Problem(413, f"The body may have {self._max_body:,} bytes at most.", close=True)
