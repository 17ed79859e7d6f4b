"""ASGI's lifespan: the scheduler is open before the application starts, and until it has stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .exchange import ASGIScope, Message, Receive, Send

if TYPE_CHECKING:
    from .server import Serving


async def run_lifespan(serving: Serving, scope: ASGIScope, receive: Receive, send: Send) -> None:
    """Answer the server's "startup" and "shutdown", with the application's own part in between, if it has any."""
    await receive()  # "lifespan.startup"
    ending = _Ending(serving, receive, send)
    try:
        async with serving.open() as scheduler:
            scope.setdefault("state", {}).update(scheduler=scheduler, serving=serving)
            await ending.run(scope)
    except Exception as error:
        await send(ending.failed(error))
        raise
    await send(ending.last)


class _Ending:
    """The application's lifespan. Its last word is kept until the scheduler is closed."""

    def __init__(self, serving: Serving, receive: Receive, send: Send) -> None:
        self.started = False
        self.last: Message = {"type": "lifespan.shutdown.complete"}
        self._serving = serving
        self._receive = receive
        self._send = send
        self._asked = False
        self._stopping = False

    def failed(self, error: Exception) -> Message:
        """What to send when it ends in an exception: the application's own words, if it had any."""
        if self.last["type"].endswith(".failed"):
            return self.last
        kind = "shutdown" if self.started else "startup"
        return {"type": f"lifespan.{kind}.failed", "message": f"{type(error).__name__}: {error}"}

    async def run(self, scope: ASGIScope) -> None:
        """Until the application has stopped, or the server asks for it where the application knows no lifespan."""
        try:
            await self._serving.app(scope, self._to_app, self._from_app)
        except Exception:
            if self.started or self.last["type"] == "lifespan.startup.failed":
                raise
        if self.last["type"] != "lifespan.startup.failed" and not self._stopping:
            await self._from_app({"type": "lifespan.startup.complete"})
            await self._stop()

    async def _to_app(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "lifespan.startup"}
        return await self._stop()

    async def _stop(self) -> Message:
        message = await self._receive()
        self._stopping = True
        await self._serving.drain()
        return message

    async def _from_app(self, message: Message) -> None:
        if message["type"] != "lifespan.startup.complete":
            self.last = message
        elif not self.started:
            self.started = True
            await self._send(message)
