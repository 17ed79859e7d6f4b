"""Requests made by hand, so that a client can do what no library lets it do."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import asyncsched as asc
from asyncsched.serving import Exchange, Serving
from asyncsched.serving.http import App, ASGIScope, Message, Receive, Send

BEGUN = 0.5  # seconds: a deadline by which the application has begun, however busy the machine is

with suppress(ImportError):  # importing reads files, which no test may do on its loop
    importlib.import_module("prometheus_client")


def serving(app: App, make: Callable[[], asc.Scheduler] = lambda: asc.Scheduler("cpu"), **options: Any) -> Serving:
    """A server that leaves signals alone. Its calls announce no length, so their bodies are in no bound."""
    return Serving(app, make, **({"drain_on_sigterm": False, "max_bodies": None} | options))


@asynccontextmanager
async def opened(app: App, *args: Any, **options: Any) -> AsyncIterator[Serving]:
    """Such a server, whose scheduler is open."""
    server = serving(app, *args, **options)
    async with server.open():
        yield server


class Call:
    """One request, whose task starts at once; its body comes when it is fed."""

    def __init__(self, app: App, path: str = "/", *, method: str = "POST", headers: Any = None, **more: Any) -> None:
        raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self.scope: ASGIScope = {"type": "http", "method": method, "path": path, "headers": raw, **more}
        self.sent: list[Message] = []
        self.incoming: asyncio.Queue[Message] = asyncio.Queue()
        self.task = asyncio.create_task(app(self.scope, self.incoming.get, self.send))  # type: ignore[arg-type]

    async def send(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.sent.append(message)

    def feed(self, body: bytes = b"", *, more: bool = False) -> Call:
        self.incoming.put_nowait({"type": "http.request", "body": body, "more_body": more})
        return self

    def leave(self) -> Call:
        self.incoming.put_nowait({"type": "http.disconnect"})
        return self

    async def answer(self) -> tuple[int, Any]:
        """The status and the body, read as JSON where it is."""
        await self.task
        body = b"".join(message["body"] for message in self.sent[1:])
        kind = self.headers["content-type"]
        return self.sent[0]["status"], json.loads(body) if "json" in kind else body

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}


def get(app: App, path: str) -> Call:
    return Call(app, path, method="GET").feed()


async def reply(send: Send, body: bytes = b"fine", status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


async def read(receive: Receive) -> bytes:
    """The whole body."""
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        body += message["body"]
        more = message["more_body"]
    return body


async def echo(scope: ASGIScope, receive: Receive, send: Send) -> None:
    await reply(send, await read(receive))


async def returns(scope: ASGIScope, receive: Receive, send: Send) -> None:
    """Says nothing."""


def raises(error: Exception) -> App:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        raise error

    return app


class Held:
    """An application that answers when its gate opens."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.entered = 0
        self.cancelled = 0

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        self.entered += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        await reply(send)


class Seen:
    """An instrument that remembers."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    @contextmanager
    def __call__(self, exchange: Exchange) -> Iterator[None]:
        try:
            yield
        finally:
            self.exchanges.append(exchange)
