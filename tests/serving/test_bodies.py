"""The bound on all bodies in memory."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.serving import Serving
from asyncsched.serving.http import ASGIScope, Receive, Send
from tests.waiting import turns, until

from .rig import Call, echo, get, opened, read, reply, serving

CHUNKED = {"transfer-encoding": "chunked"}


class Reads:
    """An application that answers with its body, after all of it has come and a gate has opened."""

    def __init__(self) -> None:
        self.gate, self.has_read = asyncio.Event(), list[bytes]()

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        body = await read(receive)
        self.has_read.append(body)
        if body:
            await self.gate.wait()
        await reply(send, body)


def upload(app: Serving, body: bytes, headers: Any = None, **more: Any) -> Call:
    """One as HTTP/1.1 has it, with its length unless other headers are given."""
    headers = {"content-length": str(len(body))} if headers is None else headers
    return Call(app, headers=headers, http_version="1.1", **more).feed(body)


def unread(call: Call) -> bool:
    return not call.incoming.empty()


async def bodies(server: Serving) -> dict[str, int]:
    return (await get(server, "/statusz").answer())[1]["bodies"]


@pytest.mark.parametrize("headers", [None, CHUNKED], ids=["announced", "chunked"])
async def test_a_body_is_read_when_there_is_room_for_all_of_it(headers: Any) -> None:
    app = Reads()
    async with opened(app, max_body=6, max_bodies=10) as server:
        first, second = upload(server, b"a" * 6, headers), upload(server, b"b" * 5, headers)
        third = upload(server, b"c", headers)
        await until(lambda: app.has_read)
        assert (await upload(server, b"", {}).answer(), app.has_read) == ((200, b""), [b"a" * 6, b""])
        await turns()
        assert [unread(call) for call in (first, second, third)] == [False, True, True]  # each in its turn
        assert await bodies(server) == {"bytes": 6, "limit": 10, "waiting": 2}
        app.gate.set()
        assert [(await call.answer())[1] for call in (first, second, third)] == [b"a" * 6, b"b" * 5, b"c"]
        assert (await bodies(server))["bytes"] == 0


async def test_the_metrics_have_them() -> None:
    pytest.importorskip("prometheus_client", reason="metrics need prometheus-client")
    app = Reads()
    async with opened(app, max_body=6, max_bodies=10) as server:
        calls = [upload(server, b"a" * 6) for _ in range(3)]
        await until(lambda: app.has_read)
        metrics = (await get(server, "/metrics").answer())[1]
        assert b"asyncsched_body_bytes 6.0" in metrics
        assert b"asyncsched_bodies_waiting 2.0" in metrics
        app.gate.set()
        assert [(await call.answer())[0] for call in calls] == [200] * 3


async def test_a_body_that_comes_slowly_has_all_its_room() -> None:
    async with opened(echo, max_body=6, max_bodies=10) as server:
        slow = Call(server, headers={"content-length": "6"}, http_version="1.1").feed(b"a", more=True)
        await until(lambda: not unread(slow))
        second = upload(server, b"b" * 6)
        await turns()
        assert unread(second)
        assert await slow.feed(b"a" * 5).answer() == (200, b"a" * 6)
        assert await second.answer() == (200, b"b" * 6)


@pytest.mark.parametrize("cut", ["deadline", "draining"])
async def test_one_that_waits_for_room_and_is_cut_short_gives_way(cut: str) -> None:
    app = Reads()

    def deadline(scope: ASGIScope) -> float | None:
        return 0.02 if cut == "deadline" and scope["path"] == "/late" else None

    async with opened(app, max_body=6, max_bodies=10, deadline=deadline, drain_timeout=0.0) as server:
        first = upload(server, b"a" * 6)
        await until(lambda: app.has_read)
        late, small = upload(server, b"b" * 6, path="/late"), upload(server, b"c" * 4)
        if cut == "draining":
            await until(lambda: len(server.limiter) == 3)
            await server.drain()
            assert [(await call.answer())[0] for call in (first, late, small)] == [503] * 3
        else:
            assert (await late.answer())[0] == 504
            await until(lambda: app.has_read == [b"a" * 6, b"c" * 4])
            app.gate.set()
            assert [(await call.answer())[0] for call in (first, small)] == [200, 200]
        assert unread(late)
        assert await bodies(server) == {"bytes": 0, "limit": 10, "waiting": 0}


async def test_the_body_of_work_that_cannot_be_ended_keeps_its_room() -> None:
    gate, began = threading.Event(), threading.Event()

    def function() -> None:
        began.set()
        gate.wait(60)

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await read(receive)
        await scope["state"]["scheduler"].call(function)

    async with opened(app, max_bodies=10, max_body=10) as server:
        call = upload(server, b"a" * 6)
        await until(began.is_set)
        await call.leave().task
        assert (await bodies(server))["bytes"] == 6
        gate.set()
        await until(lambda: not server.adopted)
        assert (await bodies(server))["bytes"] == 0


async def test_with_a_reserve_the_body_is_read_after_it() -> None:
    app = Reads()
    make = partial(asc.Scheduler, "cpu", max_bytes=1000)
    async with opened(app, make, reserve=600, max_body=6, max_bodies=100) as server:
        calls = [upload(server, b"a" * 6) for _ in range(2)]
        await until(lambda: app.has_read)
        await turns()
        assert [unread(call) for call in calls] == [False, True]
        app.gate.set()
        assert [(await call.answer())[0] for call in calls] == [200, 200]


@pytest.mark.parametrize(("max_bytes", "limit"), [("64 MiB", 16 << 20), (1000, 8 << 20), (None, None)])
async def test_the_bound_is_a_quarter_of_the_schedulers_but_holds_one_body(max_bytes: Any, limit: int | None) -> None:
    async with opened(echo, partial(asc.Scheduler, "cpu", max_bytes=max_bytes), max_bodies="auto") as server:
        assert (await bodies(server))["limit"] == limit


async def test_a_body_of_any_length_is_refused_where_bodies_are_bounded() -> None:
    async with opened(echo, max_body=None, max_bodies=10) as server:
        refused = upload(server, b"a", CHUNKED)
        status, body = await refused.answer()
        assert (status, body["detail"]) == (411, "Say how long the body is, by Content-Length.")
        assert refused.headers["connection"] == "close"
        assert await upload(server, b"a" * 10).answer() == (200, b"a" * 10)
        assert (await upload(server, b"a" * 11).answer())[0] == 413
        assert await Call(server, http_version="2", method="GET").feed().answer() == (200, b"")  # which may have none
        assert (await Call(server, http_version="2", method="GET").feed(b"a").answer())[0] == 411
        assert (await Call(server, http_version="2", method="POST").feed(b"a").answer())[0] == 411
    async with opened(echo, partial(asc.Scheduler, "cpu", max_bytes=None), max_body=None, max_bodies="auto") as server:
        assert await upload(server, b"a" * 100, CHUNKED).answer() == (200, b"a" * 100)


@pytest.mark.parametrize("announced", ["-5", "+5", "1_0", " 5"])
async def test_a_length_that_only_python_reads_as_one_is_refused(announced: str) -> None:
    async with opened(echo, max_bodies=10, max_body=10) as server:
        assert (await upload(server, b"a", {"content-length": announced}).answer())[0] == 400


def test_a_bound_that_holds_no_body() -> None:
    with pytest.raises(
        ValueError, match=r"^max_bodies must hold one body, of max_body=8,388,608 bytes, and is '1 MiB'"
    ):
        serving(echo, max_bodies="1 MiB")
    with pytest.raises(ValueError, match="^max_bodies='much' is no size"):
        serving(echo, max_bodies="much")
