"""Requests leave no reference cycles: under overload the collector would stop the loop for what they leave."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.serving import Problem, Serving
from asyncsched.serving.http import ASGIScope, Receive, Send
from asyncsched.serving.limiter import Route
from tests.waiting import no_collector, turns

from .rig import Call, read, reply, serving

Ask = Callable[[Serving], Coroutine[Any, Any, Any]]


async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
    """Answers with the sum of the body, by way of its path."""
    body = await read(receive)
    if scope["path"] == "/problem":
        raise Problem(400, "No.")
    if scope["path"] == "/failing":
        raise asc.QueueFull("full")
    if scope["path"] in ("/slow", "/left", "/late"):
        await asyncio.Event().wait()
    x = await scope["state"]["scheduler"].put(np.frombuffer(body, np.uint8))
    await reply(send, str(await asc.sum(x).item()).encode())


def deadline(scope: ASGIScope) -> float | None:
    return {"/slow": 0.001, "/late": 60.0}.get(scope["path"])


async def ask(server: Serving, path: str = "/", *, size: int = 3) -> int:
    return (await Call(server, path).feed(b"x" * size).answer())[0]


async def leave(server: Serving) -> int:
    call = Call(server, "/left").feed().leave()
    await call.task
    return len(call.sent)


async def stall(server: Serving) -> int:
    return (await Call(server).feed(b"x", more=True).answer())[0]


async def refused(server: Serving) -> int:
    server.limiter.max_requests = 0
    try:
        return await ask(server)
    finally:
        server.limiter.max_requests = 10


async def too_late(server: Serving, *, let_in: bool) -> int:
    """Refused at the door, or once it was let in, by the work of another."""
    calls = [Call(server, "/left").feed()]
    calls += [Call(server, "/late").feed()] if let_in else []
    await turns()
    for inside in server.limiter._inside.values():
        inside.route = Route()
        inside.route.add(1000.0)
    server.limiter._look(perf_counter())
    calls += [] if let_in else [Call(server, "/late").feed()]
    status = (await calls[1].answer())[0]
    await calls[0].leave().task
    return status


KINDS: list[tuple[Ask, int]] = [
    (ask, 200),
    (refused, 503),
    (partial(ask, path="/problem"), 400),
    (partial(ask, path="/failing"), 503),
    (partial(ask, path="/slow"), 504),
    (partial(ask, size=11), 413),
    (partial(too_late, let_in=False), 503),
    (partial(too_late, let_in=True), 503),
    (leave, 0),
    (stall, 408),
]


@pytest.mark.parametrize(("kind", "expected"), KINDS, ids=lambda value: str(value) if isinstance(value, int) else "")
async def test_no_cycles(kind: Ask, expected: int) -> None:
    server = serving(app, max_requests=10, max_body=10, body_timeout=0.001 if kind is stall else 30, deadline=deadline)
    async with server.open() as s:
        assert await kind(server) == expected  # the first may leave what is made once
        await s.barrier()
        with no_collector():
            for _ in range(10):
                assert await kind(server) == expected
            await s.barrier()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            assert Counter(type(one).__qualname__ for one in gc.garbage) == {}
