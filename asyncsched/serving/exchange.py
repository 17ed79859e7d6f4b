"""A request and its response, as ASGI has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
ASGIScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[ASGIScope, Receive, Send], Awaitable[None]]


class Exchange:
    """One request, and what is known of its response.

    Attributes:
        scope: ASGI's, of type "http".
        tenant: whose request it is; None if nobody asked.
        status: of the response, once it has started.
        complete: whether the whole response was handed to the server.
        disconnected: whether the client left before that.
    """

    __slots__ = ("_send", "complete", "disconnected", "receive", "scope", "status", "tenant")

    def __init__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self._send = send
        self.tenant: Hashable = None
        self.status: int | None = None
        self.complete = False
        self.disconnected = False

    @property
    def name(self) -> str:
        """Method and path."""
        return f"{self.scope['method']} {self.scope['path']}"

    def header(self, name: bytes) -> bytes | None:
        """The first header of this name, which is in lower case; None if there is none."""
        return next((value for key, value in self.scope["headers"] if key == name), None)

    async def send(self, message: Message) -> None:
        """ASGI's `send`, which takes note."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True  # first: a client may leave as soon as it has everything
        await self._send(message)

    async def respond(self, status: int, content_type: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        """A whole response at once."""
        named = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})
        await self.send({"type": "http.response.body", "body": b"" if self.scope["method"] == "HEAD" else body})
