"""What `Serving` promises with a web server around it: here with uvicorn, in this process."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from asyncsched.serving import Serving, service
from asyncsched.serving.http import ASGIScope, Receive, Send
from tests.waiting import until

from .rig import Held, reply, serving

uvicorn = pytest.importorskip("uvicorn", reason="asyncsched[demos]")


class Asked:
    """A connection, and what is sent and read on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def at(cls, port: int) -> Asked:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def ask(self, path: str) -> Asked:
        self.writer.write(b"GET %b HTTP/1.1\r\nhost: test\r\n\r\n" % path.encode())
        return self

    async def answer(self) -> tuple[int, bool]:
        """The status, and whether the connection ends with it."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        closes = b"connection: close" in head
        if closes:
            await self.reader.read()
            self.writer.close()
        return int(head.split()[1]), closes


@pytest.fixture
def middleware(monkeypatch: pytest.MonkeyPatch) -> Serving:
    monkeypatch.setattr(service, "_LOOKS", 10**6)
    held = Held()

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await (held if scope["path"] == "/held" else lambda *_: reply(send))(scope, receive, send)

    app.held = held  # type: ignore[attr-defined]
    return serving(app, drain_on_sigterm=True)


@pytest.fixture
def server(middleware: Serving) -> Iterator[Any]:
    """One whose signals reach this process no other way."""
    config = uvicorn.Config(middleware, lifespan="on", log_config=None, http="h11", ws="none")
    config.load()
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    yield uvicorn.Server(config)
    signal.signal(signal.SIGTERM, before)


async def test_every_connection_that_the_server_has_taken_is_answered_when_it_restarts(
    server: Any, middleware: Serving
) -> None:
    held: Held = middleware.app.held  # type: ignore[attr-defined]
    with socket.create_server(("127.0.0.1", 0)) as listening, listening.dup():  # which another process has, too
        port = listening.getsockname()[1]
        running = asyncio.create_task(server.serve(sockets=[listening]))
        await until(lambda: server.started)
        silent, slow = await Asked.at(port), (await Asked.at(port)).ask("/held")
        await until(lambda: held.entered)
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: middleware.limiter.draining)
        assert await (await Asked.at(port)).ask("/").answer() == (200, True)
        late = (await Asked.at(port)).ask("/held")
        await until(lambda: held.entered == 2)
        assert not running.done()
        held.gate.set()
        assert await slow.answer() == await late.answer() == (200, True)
        await until(lambda: not server.servers[0].is_serving())
        assert await silent.ask("/").answer() == (200, True)
        await running
