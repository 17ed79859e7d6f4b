"""Requests that are cut short: their threads, their shields, and the end of their answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest

from asyncsched.errors import DeadlineExceeded
from asyncsched.serving.http import ASGIScope, Exchange, Message, Receive, Send
from tests.waiting import turns, until

from .rig import BEGUN, Call, get, opened, reply


class InThread:
    """An endpoint in one of anyio's threads, as frameworks run a plain `def`."""

    def __init__(self, *, answers: bool = True) -> None:
        self.gate, self.running, self.answers = threading.Event(), 0, answers
        self.after: list[str] = []

    def function(self) -> None:
        self.running += 1
        self.gate.wait(60)
        self.running -= 1

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/quick":
            return await reply(send)
        try:
            await anyio.to_thread.run_sync(self.function)
            if not self.answers:
                await asyncio.Event().wait()
            await reply(send)
            self.after.append("answered")
        finally:
            await turns()  # a cancellation comes once, so this is not cancelled too
            self.after.append("cleaned up")
        return None


@pytest.mark.parametrize("answers", [True, False], ids=["answers", "waits on"])
@pytest.mark.parametrize("cut", ["deadline", "client", "draining"])
async def test_a_function_in_a_thread_keeps_its_place_and_its_thread_until_it_has_ended(
    cut: str, answers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app, threads = InThread(answers=answers), anyio.to_thread.current_default_thread_limiter()
    deadline = 1.0 if cut == "deadline" else None
    async with opened(app, deadline=deadline, max_requests=2, drain_timeout=0.0) as server:
        call = Call(server).feed()
        await until(lambda: app.running)
        if cut == "client":
            await call.leave().task
        else:
            if cut == "draining":
                await server.drain()
            assert (await call.answer())[0] == (504 if cut == "deadline" else 503)
        sent = len(call.sent)
        assert (len(server.limiter), threads.borrowed_tokens, app.after) == (1, 1, [])
        assert (await get(server, "/statusz").answer())[1]["adopted"] == {"requests": 1, "tasks": 0}
        app.gate.set()
        await until(lambda: not len(server.limiter))
        assert (app.running, threads.borrowed_tokens, app.after) == (0, 0, ["cleaned up"])
        assert len(call.sent) == sent
    assert "raised after" not in caplog.text


@pytest.mark.parametrize("lacking", ["places", "threads"])
async def test_functions_of_requests_cut_short_that_hold_all_there_is_make_the_server_unready(lacking: str) -> None:
    app, threads = InThread(), anyio.to_thread.current_default_thread_limiter()
    threads.total_tokens = 2 if lacking == "threads" else 40
    async with opened(app, max_requests=2 if lacking == "places" else 40) as server:
        for running, ready in ((1, True), (2, False)):
            call = Call(server).feed()
            await until(lambda running=running: app.running == running)
            await call.leave().task
            assert (await get(server, "/readyz").answer())[0] == (200 if ready else 503)
        assert (await Call(server, "/quick").feed().answer())[0] == (503 if lacking == "places" else 200)
        app.gate.set()
        await until(lambda: server.ready)
        assert (await Call(server, "/quick").feed().answer())[0] == 200


async def test_another_task_that_sends_late_takes_no_cancellation_from_the_work() -> None:
    function, sends = InThread(), asyncio.Event()
    seen: list[BaseException] = []

    async def late(send: Send) -> None:
        await sends.wait()
        await send({"type": "http.response.start", "status": 200})

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        others.append(asyncio.create_task(late(send)))
        try:
            await anyio.to_thread.run_sync(function.function)
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            seen.append(error)
            raise

    others: list[asyncio.Task[None]] = []
    async with opened(app) as server:
        call = Call(server).feed()
        await until(lambda: function.running)
        await call.leave().task
        sends.set()
        with pytest.raises(OSError, match="takes nothing more"):
            await others[0]
        function.gate.set()
        await until(lambda: not server.adopted)
    assert len(seen) == 1


async def test_a_shield_of_anyio_is_respected_and_the_cancellation_comes_once_after_it() -> None:
    gate, seen = asyncio.Event(), list[str]()

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        with anyio.CancelScope(shield=True):
            await gate.wait()
            seen.append("shielded")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await turns()
            seen.append("cancelled")
            raise

    async with opened(app, deadline=BEGUN) as server:
        assert (await Call(server).feed().answer())[0] == 504
        assert seen == []
        gate.set()
        await until(lambda: not server.adopted)
    assert seen == ["shielded", "cancelled"]


@pytest.mark.parametrize("shielded", [False, True], ids=["cancelled", "shielded"])
async def test_an_answer_that_is_whole_stands_though_its_work_was_cut_short_meanwhile(
    shielded: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("asyncsched.serving.client._UNWINDING", 0.5)
    gate, seen = asyncio.Event(), list[Exchange]()

    @contextmanager
    def see(exchange: Exchange) -> Iterator[None]:
        seen.append(exchange)
        yield

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        with anyio.CancelScope(shield=True):
            await until(lambda: seen[0].cancelled)
            await reply(send)
            if shielded:
                await gate.wait()
        await asyncio.Event().wait()

    async with opened(app, deadline=BEGUN, instruments=[see]) as server:
        assert (await Call(server).feed().answer())[0] == 200
        assert len(server.adopted) == shielded
        gate.set()
        await until(lambda: not len(server.limiter))
    assert caplog.text == ""


async def test_a_task_group_of_anyio_is_ended_with_all_in_it() -> None:
    ended: list[str] = []

    async def child(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(child, "a")
            group.start_soon(child, "b")

    async with opened(app, deadline=BEGUN) as server:
        assert (await Call(server).feed().answer())[0] == 504
        assert sorted(ended) == ["a", "b"]
        assert not server.adopted


async def test_a_task_group_that_has_ended_while_a_thread_worked_in_it_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a stream has one, of a plain generator."""
    function, after = InThread(), list[str]()

    async def streams(send: Send) -> None:
        await anyio.to_thread.run_sync(function.function)
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        after.append("sent")

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(streams, send)

    async with opened(app) as server:
        call = Call(server).feed()
        await until(lambda: function.running)
        await call.leave().task
        function.gate.set()
        await until(lambda: not server.adopted)
    assert (call.sent, after, caplog.text) == ([], [], "")


class Unread:
    """A client that does not read: the server's `send` of a message waits until it does."""

    def __init__(self, app: Any, at: int) -> None:
        self.reads, self.sent, self.at = asyncio.Event(), list[Message](), at
        self.task = asyncio.create_task(
            app({"type": "http", "method": "GET", "path": "/", "headers": []}, self._receive, self._send)
        )

    async def _receive(self) -> Message:
        if self.sent:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b""}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        if len(self.sent) == self.at:
            await self.reads.wait()


async def streamed(scope: ASGIScope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})
    await send({"type": "http.response.body", "body": b"b"})


@pytest.mark.parametrize("at", [1, 2, 3], ids=["at the start", "within", "at the end"])
async def test_a_client_that_does_not_read_has_its_place_until_the_deadline(at: int) -> None:
    async with opened(streamed, deadline=BEGUN, max_requests=1) as server:
        call = Unread(server, at)
        with pytest.raises(DeadlineExceeded, match=rf"GET / passed its deadline of {BEGUN:g} s"):
            await call.task  # so the server ends the connection
        assert len(call.sent) == at
        assert not len(server.limiter)
        assert not server.adopted


async def test_a_client_that_reads_in_time_ends_the_deadline_with_its_last_byte() -> None:
    done: list[str] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await streamed(scope, receive, send)
        began = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() > began + BEGUN + 0.05)
        done.append("in the background")

    async with opened(app, deadline=BEGUN) as server:
        call = Unread(server, 3)
        await until(lambda: len(call.sent) == 3)
        call.reads.set()
        await call.task
    assert done == ["in the background"]


async def test_a_client_that_reads_nothing_while_the_server_drains_is_left() -> None:
    async with opened(streamed, drain_timeout=0.0, max_requests=1) as server:
        call = Unread(server, 3)
        await until(lambda: len(call.sent) == 3)
        await server.drain()
        await call.task
        assert not len(server.limiter)
