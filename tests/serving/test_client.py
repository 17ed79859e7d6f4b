"""The client's side: bodies, and clients that leave."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.serving import client
from asyncsched.serving import server as layers
from asyncsched.serving.http import ASGIScope, Message, Problem, Receive, Send
from tests.ledger import engine_of
from tests.waiting import cancelled, eager_tasks, turns, until

from . import rig
from .rig import BEGUN, Call, Held, Seen, echo, opened, read, reply, serving


@pytest.mark.parametrize("unread", [False, True], ids=["read", "body unread"])
async def test_a_client_that_leaves_cancels_its_work(unread: bool) -> None:
    gate, told, ended = threading.Event(), asyncio.Event(), []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        s = scope["state"]["scheduler"]
        running = await s.submit(gate.wait, 60)
        queued = s.submit_nowait(ended.append, running)
        try:
            await queued
        finally:
            told.set()

    seen = Seen()
    server = serving(app, instruments=[seen])
    async with server.open() as s:
        call = Call(server).feed(b"part", more=unread)
        await until(lambda: s.statistics().tasks_in_flight == 2)
        call.leave()
        await told.wait()
        gate.set()
        await call.task
        await until(lambda: not server.adopted)  # a slow machine may answer first
        assert s.statistics().tasks_cancelled == 2
        assert call.sent == []
        assert ended == []
        assert engine_of(s).root.children == {}
        assert seen.exchanges[0].disconnected
        assert len(server.limiter) == 0


async def test_a_request_takes_few_turns_of_the_loop() -> None:
    async with opened(echo) as server:
        call, taken = Call(server).feed(), 0
        while not call.task.done():
            await asyncio.sleep(0)
            taken += 1
    assert taken <= 5  # the server's task begins, the work begins, two messages are sent, the server's task ends


async def test_work_that_never_begins_ends_its_request() -> None:
    async with opened(echo) as server:
        before = asyncio.all_tasks()
        call = Call(server).feed()
        await until(lambda: len(asyncio.all_tasks() - before) == 2)
        (work,) = asyncio.all_tasks() - before - {call.task}
        work.cancel()
        await asyncio.wait([call.task])
        assert (call.task.cancelled(), len(server.limiter)) == (True, 0)


async def test_a_client_that_leaves_while_its_request_waits_for_room() -> None:
    held = Held()
    server = serving(held, lambda: asc.Scheduler("cpu", max_bytes=1000), reserve=600)
    async with server.open() as s:
        first, second = Call(server).feed(), Call(server).feed()
        await until(lambda: held.entered == 1 and len(server.limiter) == 2)
        second.leave()
        await second.task
        assert (second.sent, held.entered) == ([], 1)
        held.gate.set()
        assert (await first.answer())[0] == 200
        assert s.statistics().bytes_reserved == 0


async def test_a_client_that_leaves_in_its_body_raises_nothing_of_the_frameworks() -> None:
    told: list[str] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        try:
            while (message := await receive())["type"] == "http.request":
                assert message["more_body"]
            raise ConnectionError("what a framework makes of it")
        finally:
            told.append((await receive())["type"])  # who asks once it is cancelled need not wait

    async with opened(app) as server:
        for at_once in (True, False):
            call = Call(server).feed(b"part", more=True)
            if not at_once:
                await until(call.incoming.empty)
                await asyncio.sleep(0)
            await call.leave().task
            assert call.sent == []
    assert told == ["http.disconnect"]  # for a client that left at once, nothing begins


async def test_leaving_with_the_whole_answer_cancels_nothing() -> None:
    after: list[str] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await reply(send)
        assert (await receive())["type"] == "http.request"
        for _ in range(2):
            assert (await receive())["type"] == "http.disconnect"
        after.append("in the background")

    async with opened(app) as server:
        call = Call(server).feed()
        await until(lambda: len(call.sent) == 2)
        call.leave()
        await call.task
    assert after == ["in the background"]


async def test_another_cancellation_is_not_swallowed() -> None:
    held = Held()
    async with opened(held) as server:
        call = Call(server).feed()
        await until(lambda: held.entered == 1)
        await cancelled(call.task)
        assert len(server.limiter) == 0


@pytest.mark.parametrize("late", [False, True], ids=["before the end", "with the end"])
async def test_another_cancellation_is_not_swallowed_by_work_that_ends(late: bool) -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        if not late:
            call.task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        await reply(send)
        if late:
            asyncio.get_running_loop().call_soon(call.task.cancel)

    async with opened(app) as server:
        call = Call(server).feed()
        with pytest.raises(asyncio.CancelledError):
            await call.task
        assert call.task.cancelling() == 1
        assert len(call.sent) == 2


@pytest.mark.parametrize("begun", [False, True], ids=["silent", "begun"])
@pytest.mark.parametrize("status", [408, 413, 503])
async def test_an_application_that_swallows_its_end_and_returns_is_answered_for(status: int, begun: bool) -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    timeout = BEGUN if status == 408 else None
    async with opened(app, max_body=10, body_timeout=timeout, drain_timeout=0.0) as server:
        call = Call(server).feed(more=status != 503)
        await until(lambda: len(server.limiter) == 1 and len(call.sent) == begun)
        if status == 503:
            await server.drain()
        elif status == 413:
            call.feed(b"far too much")
        if not begun:
            assert (await call.answer())[0] == status
        elif status == 503:  # as for one that lets its end out: the server sees a response that stays incomplete
            await call.task
        else:
            with pytest.raises(Problem):
                await call.task


@pytest.mark.parametrize("raising", [False, True], ids=["returns", "raises"])
async def test_a_receive_that_hides_its_cancellation_hides_no_end(raising: bool) -> None:
    held, left = Held(), list[int]()

    async def server_with_such(scope: ASGIScope, receive: Receive, send: Send) -> None:
        async def hiding() -> Message:
            try:
                return await receive()
            except asyncio.CancelledError:
                if raising:
                    raise ConnectionError("what a server makes of it") from None
                return {"type": "http.disconnect"}

        await server(scope, hiding, send)
        task = asyncio.current_task()
        assert task is not None
        left.append(task.cancelling())

    async with opened(held, drain_timeout=0.0) as server:
        for code in (200, 503):
            call = Call(server_with_such).feed()
            await until(lambda: len(server.limiter) == held.entered == 1)
            held.gate.set() if code == 200 else await server.drain()
            assert (await call.answer())[0] == code
            held.entered = 0
            held.gate.clear()
    assert left == [0, 0]


async def test_tasks_may_be_eager() -> None:
    """The application begins, and may end, before its request is read."""
    held = Held()
    with eager_tasks():
        async with (
            opened(echo) as server,
            opened(held) as left,
            opened(lambda scope, receive, send: reply(send)) as quick,
        ):
            assert await Call(server).feed(b"all", more=True).feed(b" of it").answer() == (200, b"all of it")
            assert await Call(quick).answer() == (200, b"fine")
            call = Call(left).feed()
            await until(lambda: held.entered == 1)
            await call.leave().task
            assert (call.sent, len(left.limiter)) == ([], 0)


@pytest.mark.parametrize("announced", ["abc", "", "3, 3", "9" * 5000])
async def test_a_length_that_is_no_number(announced: str) -> None:
    async with opened(echo) as server:
        status, body = await Call(server, headers={"content-length": announced}).answer()
        assert (status, body["detail"]) == (400, "Content-Length must be a number of bytes.")


async def test_a_body_in_small_pieces_takes_no_more_room_than_in_one() -> None:
    held = Held()
    async with opened(held) as server:
        call = Call(server)
        await until(lambda: held.entered == 1)
        tracemalloc.start()
        try:
            for _ in range(1000):
                call.feed(b"x", more=True)
                await until(call.incoming.empty)
            here = [tracemalloc.Filter(True, name) for name in (client.__file__, rig.__file__)]  # not other threads'
            left = tracemalloc.take_snapshot().filter_traces(here)
            assert sum(found.size for found in left.statistics("filename")) < 50_000
        finally:
            tracemalloc.stop()
            held.gate.set()
            await call.task


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_above_the_limit(announced: bool) -> None:
    async with opened(echo, max_body=10) as server:
        call = Call(server, headers={"content-length": "12"} if announced else None)
        call.feed(b"x" * 6, more=True).feed(b"x" * 5, more=True)
        await turns()
        assert call.sent == []  # a connection that closes while its client still sends is reset, and the answer lost
        status, body = await call.feed(b"x").answer()
        assert (status, body["detail"]) == (413, "The body may have 10 bytes at most.")
        assert call.headers["connection"] == "close"
        assert await Call(server, headers={"content-length": "10"}).feed(b"x" * 10).answer() == (200, b"x" * 10)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_client_that_sends_nothing_more_is_refused_at_once(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "_LINGERS", None)
    async with opened(echo, max_body=10) as server:
        if waits:  # for the server's "100 Continue", which a call of `receive` would send
            call = Call(server, headers={"content-length": "11", "expect": "100-continue"})
        else:
            call = Call(server).feed(b"x" * 11)
        assert (await call.answer())[0] == 413


async def test_a_body_above_the_limit_that_does_not_end_is_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "_LINGERS", 0.01)
    async with opened(echo, max_body=10) as server:
        assert (await Call(server).feed(b"x" * 11, more=True).answer())[0] == 413
        await Call(server).feed(b"x" * 11, more=True).leave().task


async def test_a_body_that_does_not_come() -> None:
    async with opened(echo, body_timeout=0.01) as server:
        call = Call(server).feed(b"slow", more=True)
        status, body = await call.answer()
        assert (status, body["title"]) == (408, "Request Timeout")
        assert call.headers["connection"] == "close"


async def test_a_slow_answer_to_a_whole_body_is_not_the_clients_fault() -> None:
    held = Held()
    async with opened(held, body_timeout=BEGUN) as server:
        call = Call(server).feed()
        await asyncio.wait([call.task], timeout=BEGUN + 0.05)
        held.gate.set()
        assert (await call.answer())[0] == 200


@pytest.mark.parametrize("large", [False, True], ids=["late", "too large"])
async def test_a_body_ends_nothing_once_all_is_answered(large: bool) -> None:
    after: list[str] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        began = asyncio.get_running_loop().time()
        await reply(send)
        if large:
            call.feed(b"x" * 11)
            assert (await receive())["type"] == "http.disconnect"  # it is not read
        else:
            await until(lambda: asyncio.get_running_loop().time() > began + BEGUN + 0.05)
        after.append("in the background")

    async with opened(app, max_body=10, body_timeout=30 if large else BEGUN) as server:
        call = Call(server)
        assert (await call.answer())[0] == 200
    assert after == ["in the background"]


@pytest.mark.parametrize("more", [{}, {"body": b""}, {"body": b"", "more_body": False}])
async def test_a_receive_that_never_waits_is_a_client_that_does(more: dict[str, Any]) -> None:
    """As many tests of applications have it."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", **more}

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        assert await read(receive) == b""
        s = scope["state"]["scheduler"]
        await reply(send, str(await s.call(pow, 2, 10)).encode())

    async with opened(app, deadline=60) as server:
        await server({"type": "http", "method": "GET", "path": "/", "headers": []}, receive, send)
        assert sent[-1]["body"] == b"1024"
        assert not len(server.limiter)


async def test_the_deadline_holds_for_a_receive_that_never_waits() -> None:
    async def receive() -> Message:
        return {"type": "http.request"}

    async def never(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async with opened(never, deadline=0.05) as server:
        await server({"type": "http", "method": "GET", "path": "/", "headers": []}, receive, send)
    assert sent[0]["status"] == 504
