"""The client's side of a request: its body, and whether it is there still.

ASGI tells of a client that has left only to who calls `receive`, after the body. So one task owns `receive`, reads
ahead (the body is bounded), and cancels the handler when there is a reason to. The cancelling is `asyncio.timeout`'s,
which knows how to stand beside other cancellations.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from .exchange import Exchange, Message
from .problems import Problem


class Disconnected(Exception):
    """The client left before it had its whole answer."""


class Client:
    """Reads a request, while `async with` is open, and ends the block when there is nobody or nothing to answer.

    Meanwhile the exchange's `receive` is this one's, for the application. Leaving the block raises why it was ended, if
    it was: Disconnected, or a Problem.

    Args:
        max_body: most bytes of the body.
        body_timeout: seconds for the whole body to arrive.
    """

    def __init__(self, exchange: Exchange, *, max_body: int | None, body_timeout: float | None) -> None:
        self._exchange = exchange
        self._source = exchange.receive
        self._max_body = max_body
        self._body_timeout = body_timeout
        self._cut = asyncio.timeout(None)
        self._reason: Exception | None = None
        self._open = False
        self._unread: bytearray | None = None  # in one piece: a message of one byte would take 200
        self._more = True  # whether the body goes on
        self._gone: Message | None = None  # the disconnect
        self._news = asyncio.Event()

    async def __aenter__(self) -> Client:
        self._check_length()
        await self._cut.__aenter__()
        self._open = True
        self._exchange.receive = self.receive
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        try:
            await self._cut.__aexit__(kind, error, trace)
        except TimeoutError:
            raise self._why() from None
        finally:
            self._reader.cancel()  # not waited for: the request's slot is free in the step that ends its response
            # No cycles: a cancelled task holds its exception, which holds frames that hold this object.
            del self._reader
            self._exchange.receive = self._source

    async def receive(self) -> Message:
        """ASGI's `receive`, for the application."""
        while self._unread is None:
            # Before it has its answer, who waits for it is cancelled, not told: frameworks raise errors of their own.
            if self._gone is not None and (self._exchange.complete or self._cut.expired()):
                return self._gone
            self._news.clear()
            await self._news.wait()
        body, self._unread = bytes(self._unread), None
        return {"type": "http.request", "body": body, "more_body": self._more}

    def end(self, reason: Exception) -> None:
        """End the block, which raises the reason."""
        if self._open and self._reason is None:
            self._reason = reason
            self._cut.reschedule(asyncio.get_running_loop().time())

    def _why(self) -> Exception:
        """The reason, which this object and the frames that it will pass through may not hold."""
        assert self._reason is not None
        reason, self._reason = self._reason, None
        return reason

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
        try:
            last = await self._read_in_time()
            while last["type"] != "http.disconnect":
                last = await self._source()
            self._left(last)
        except Exception as error:
            self.end(error)

    async def _read_in_time(self) -> Message:
        """Returns the last message of the body. A timer, since `asyncio.timeout` holds the task that it is in, and a
        cancelled task its frames: a cycle for each request."""
        if self._body_timeout is None:
            return await self._read_body()
        timer = asyncio.get_running_loop().call_later(self._body_timeout, self._too_slow)
        try:
            return await self._read_body()
        finally:
            timer.cancel()

    async def _read_body(self) -> Message:
        """Returns the last message: of the body, or of a disconnect."""
        size = 0
        while (message := await self._source())["type"] != "http.disconnect":
            body = message.get("body", b"")
            size += len(body)
            if self._max_body is not None and size > self._max_body:
                raise self._too_large()
            self._unread = self._unread or bytearray()
            self._unread += body
            self._more = message.get("more_body", False)
            self._news.set()
            if not self._more:
                break
        return message

    def _left(self, message: Message) -> None:
        self._gone = message
        if self._exchange.complete:
            self._news.set()
        else:
            self._exchange.disconnected = True
            self.end(Disconnected())

    def _too_slow(self) -> None:
        self.end(Problem(408, f"The body did not arrive within {self._body_timeout:g} seconds.", close=True))

    def _too_large(self) -> Problem:
        return Problem(413, f"The body may have {self._max_body:,} bytes at most.", close=True)
