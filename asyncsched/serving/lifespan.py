"""ASGI's lifespan: the scheduler is open before the application starts, and until it has stopped.

Theory of operation. The server sends "startup", waits for "startup.complete", serves, sends "shutdown", and waits for
"shutdown.complete". The application gets and sends the same messages, a little later and a little earlier:

    server      here                          application
    startup ->  open the scheduler, startup ->
                                           <- startup.complete, passed on
                                              after `warm_up`
    shutdown -> drain, shutdown ->
                                           <- shutdown.complete, kept
                close the scheduler
             <- shutdown.complete, which was kept

An application may know no lifespan. By ASGI it may then return, or raise any exception. So an exception before
"startup.complete" is no failure, unless "startup.failed" announced it, which is passed on at once. Later it is a
failure. A BaseException that is no `Exception` (SystemExit, a group with a CancelledError) always is a failure: no
application raises that because it knows no lifespan.
"""

from __future__ import annotations

import asyncio

from .http import App, ASGIScope, Message, Receive, Send
from .service import Service


async def run_lifespan(service: Service, app: App, scope: ASGIScope, receive: Receive, send: Send) -> None:
    """Answer the server's "startup" and "shutdown", with the application's own part in between, if it has any."""
    await receive()  # "lifespan.startup"
    state = scope.setdefault("state", {})
    inner = _ApplicationLifespan(service, receive, send, state)
    try:
        async with service.open():
            service.put_into(state)
            await inner.run(app, scope)
    except BaseException as error:
        if not _from_outside(error) and (told := inner.failed(error)):
            await send(told)
        raise
    if inner.started:
        await send(inner.last)


def _from_outside(error: BaseException) -> bool:
    """Whether the server itself ended the lifespan by this exception: then it gets no more messages."""
    task = asyncio.current_task()
    cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
    return cancelled or isinstance(error, GeneratorExit)


class _ApplicationLifespan:
    """The application's own lifespan. Its last message is kept back until the scheduler is closed."""

    def __init__(self, service: Service, receive: Receive, send: Send, state: Message) -> None:
        self.started = False
        self._answered = False  # whether the server knows that the application started, or failed to
        self.last: Message = {"type": "lifespan.shutdown.complete"}
        self._service = service
        self._receive = receive
        self._send = send
        self._state = state
        self._asked = False  # whether the application was asked to start
        self._warming = False  # whether it has started, and the next message was asked for
        self._stopping = False  # whether the server asked it to stop

    def failed(self, error: BaseException) -> Message | None:
        """The message to send when it ends in an exception, with the application's own words, if it sent any. None if
        it was sent."""
        if self._answered and not self.started:
            return None
        if self.last["type"].endswith(".failed"):
            return self.last
        kind = "shutdown" if self.started else "startup"
        return {"type": f"lifespan.{kind}.failed", "message": f"{type(error).__name__}: {error}"}

    async def run(self, app: App, scope: ASGIScope) -> None:
        """Run the application's lifespan until it has stopped; if it has none, until the server stops."""
        try:
            await app(scope, self._to_app, self._from_app)
        except Exception:
            if self._answered or self._warming:
                raise
        if not self._answered or (self.started and not self._stopping):
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
        await self._service.drain()
        return message

    async def _from_app(self, message: Message) -> None:
        if message["type"].startswith("lifespan.shutdown."):
            self.last = message
        elif message["type"].startswith("lifespan.startup.") and not self._answered:
            complete = message["type"].endswith(".complete")
            if complete:
                self._warming = True
                self._service.check_state(self._state)
                await self._service.warm_up()
            self._answered, self.started = True, complete
            await self._send(message)
