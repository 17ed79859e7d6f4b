"""Whatever becomes of requests, each is answered once at most, and the server keeps nothing of them."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import anyio.to_thread
import pytest

import asyncsched as asc
from asyncsched.serving import Problem, Serving
from asyncsched.serving.http import App, ASGIScope, Receive, Send
from tests.ledger import engine_of
from tests.waiting import turns, until

from .rig import Call, echo, opened, raises, reply, returns


async def works(scope: ASGIScope, receive: Receive, send: Send) -> None:
    await asc.current_scheduler().call(int)
    await reply(send)


async def in_thread(scope: ASGIScope, receive: Receive, send: Send) -> None:
    await anyio.to_thread.run_sync(int)
    await reply(send)


async def streams(scope: ASGIScope, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for more in (True, True, False):
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": more})


async def goes_on(scope: ASGIScope, receive: Receive, send: Send) -> None:
    await reply(send)
    asc.current_scheduler().submit_nowait(int)
    await turns(5)


async def ignores(scope: ASGIScope, receive: Receive, send: Send) -> None:
    with suppress(asyncio.CancelledError):
        await turns(20)
    await turns(5)
    await reply(send)


APPS: list[App] = [
    echo, returns, works, in_thread, streams, goes_on, ignores,
    raises(ValueError("wrong")), raises(asc.QueueFull("full")), raises(Problem(422, "wrong")),
]  # fmt: skip


async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
    await scope["kind"](scope, receive, send)


def given(name: str) -> Any:
    """An option that is read from the scope; it raises where that says so."""

    def read(scope: ASGIScope) -> Any:
        if scope[name] == "raises":
            raise ValueError(name)
        return scope[name]

    return read


async def one(server: Serving, rng: random.Random) -> None:
    options = {
        "tenant": rng.choice([None, "a", "b", rng.random(), [], "raises"]),
        "reserve": rng.choice([None, None, 100, 900, 10**9, "raises"]),
        "deadline": rng.choice([None, 60.0, 60.0, 1e-3, -1.0, "raises"]),
    }
    length = {"content-length": rng.choice(["3", "3", "3", "1000", "many"])}
    kind = rng.choice(APPS)
    end = rng.choice(["stays", "stays", "leaves", "cancelled"])
    call = Call(server, kind=kind, headers=length, **options)
    for number in range(rng.choice([3, 3, 2])):
        call.feed(b"x", more=number < 2)
        await turns(rng.randrange(3))
    await turns(rng.randrange(15))
    if end == "cancelled":
        call.task.cancel()
    elif end == "leaves":
        call.leave()
    await asyncio.wait([call.task])
    starts = [message["status"] for message in call.sent if message["type"] == "http.response.start"]
    failed = call.task.cancelled() or call.task.exception()
    assert len(starts) <= 1
    if end == "stays" and kind is not returns and not failed:
        assert call.sent


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_left_of_requests(seed: int) -> None:
    rng = random.Random(seed)
    limits: dict[str, Any] = {"max_requests": 30, "max_requests_per_tenant": 10, "max_body": 100, "max_bodies": 500}
    options: dict[str, Any] = {name: given(name) for name in ("tenant", "reserve", "deadline")} | limits
    async with opened(app, lambda: asc.Scheduler("cpu", max_bytes=1000), body_timeout=0.1, **options) as server:
        for _ in range(5):
            await asyncio.gather(*[one(server, rng) for _ in range(40)])
        limiter, room = server.limiter, server.body_room
        await until(lambda: not (server.adopted or limiter._running))
        assert (len(limiter), room.claimed, room.waiting) == (0, 0, 0)
        assert (limiter._of_tenant, limiter._scopes, limiter._left) == ({}, {}, {})
        assert engine_of(server.scheduler).root.children == {}
        assert server.scheduler.statistics().bytes_reserved == 0
