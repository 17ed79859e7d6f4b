"""Streams of tokens over HTTP: a stepper beside an engine written by hand with asyncio, and a thread for each token.

A server is a process of its own, on loopback. The model is a perceptron on one BLAS thread, with a row
for each token that a step reads: the last one, or a chunk of a prompt. Clients for whose texts there is no room wait:
for bytes, or at a semaphore.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from math import inf
from time import perf_counter, sleep
from typing import Any

import numpy as np

import asyncsched as asc
from asyncsched.serving import Serving
from bench.harness.rows import OURS, Result, Row, Target
from bench.harness.subjects import Together
from bench.perceptron import resident
from bench.serving.app import forward, weights
from bench.serving.load import many_files, request, run
from bench.serving.servers import Server, beside, counted, with_litserve

many_files()  # a thousand clients, here and in the server
CACHE, CAPACITY, ROOM, CHUNK, LENGTH = 1 << 16, 64, 1 << 22, 16, 100  # bytes of a text, texts, bytes of all, tokens
ASK = b"POST /predict?%d+%d HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def advance(text: list[int]) -> Any:
    """A text: how many tokens to read, of the prompt or the last one, and how many to write."""
    reads, text[0] = text[0] > CHUNK, max(1, text[0] - CHUNK)
    text[1] -= not reads
    return asc.SKIP if reads else text[1] or asc.Last(0)


def step(texts: list[list[int]]) -> list[Any]:
    forward(LAYERS, np.ones((sum(min(text[0], CHUNK) for text in texts), 64), np.float32), np.maximum)
    return [advance(text) for text in texts]


LAYERS, running, engine, room = list[Any](), list[Any](), list[Any](), asyncio.Semaphore(CAPACITY)
stepper = asc.Stepper(step, max_cost=CAPACITY * CHUNK, reserve=CACHE)  # all go, as by hand


async def stepped(text: list[int], send: Any) -> None:
    async with stepper.join(text) as outputs:
        async for _ in outputs:
            await send()


async def by_hand(text: list[int], send: Any) -> None:
    async with room:
        running.append((text, queue := asyncio.Queue[int]()))
        if not engine or engine[0].done():
            engine[:] = [asyncio.create_task(steps())]
        try:
            for _ in range(text[1]):
                await queue.get()
                await send()
        finally:
            running[:] = [one for one in running if one[0] is not text]


async def steps() -> None:
    while texts := list(running):
        await asyncio.get_running_loop().run_in_executor(None, step, [text for text, _ in texts])
        for text, queue in texts:
            queue.put_nowait(text[1])
        running[:] = [one for one in running if one[0][1]]


async def threads(text: list[int], send: Any) -> None:
    async with room:
        while text[1]:
            await asyncio.to_thread(step, [text])
            await send()


KINDS = {"by hand": by_hand, OURS: stepped, "to_thread": threads}


def serve(kind: str, port: str, options: str) -> None:
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        prompt, left = map(int, (scope["query_string"] or b"1+1").split(b"+"))  # a client asks whether it is up
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")] * (left == 1)})
        token = {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
        await KINDS[kind]([prompt, left], partial(send, token))
        await send({"type": "http.response.body"})

    LAYERS.extend(weights(json.loads(options)["width"]))
    asgi: Any = Serving(app, partial(asc.Scheduler, "cpu", max_bytes=ROOM), max_requests=2000) if kind == OURS else app
    uvicorn.run(asgi, port=int(port), log_level="error", access_log=False, backlog=16_384)


async def read(server: Server, clients: int, *, long: int = CHUNK, leaving: bool = False) -> dict[str, Any]:
    """The answers to clients that ask for a text each. If `leaving`, a third leave. A client with a long prompt comes
    when the others have begun, and the gaps are those that begin from then on."""
    first, gap, started, begun = list[float](), list[float](), perf_counter(), asyncio.Event()
    since = inf if long > CHUNK else 0.0  # gaps from before are those of so many requests at once

    async def one(number: int) -> None:
        nonlocal since
        if not number and long > CHUNK:
            await begun.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(ASK % (CHUNK if number else long, LENGTH))
        last, got = perf_counter(), 0
        while got < (number % LENGTH if leaving and number % 3 == 0 else LENGTH):
            if (await reader.readline()).startswith(b"data"):
                now = perf_counter()
                if not got or last >= since:
                    (gap if got else first).append(now - last)
                last, got = now, got + 1
                if since == inf and len(first) == clients - 1:
                    since = now
                    begun.set()
        writer.transport.abort()

    await asyncio.gather(*map(one, range(clients)))
    return {"first": first, "gap": gap, "time per token": (perf_counter() - started) / (len(first) + len(gap))}


def streams(size: str, width: int, least: float, rounds: int, turns: Any) -> Iterator[Result]:
    """With 1, 16, 64 and three times as many clients as texts fit, for each kind of server in turn."""
    with ExitStack() as stack:
        kinds, missing = with_litserve(KINDS, turns)
        servers = {k: stack.enter_context(Server(k, turns.quick, app="bench.tokens", width=width)) for k in kinds}
        for clients in (1, 4) if turns.quick else (1, 16, CAPACITY, 3 * CAPACITY):
            found: dict[str, dict[str, list[float]]] = {}
            for kind in [*kinds, *reversed(kinds)] * (1 if turns.quick else rounds):
                got = run(partial(read, servers[kind], clients))
                for what, p in (("time per token", 50), ("first", 50), ("first", 99), ("gap", 50), ("gap", 99)):
                    key, value = f"{size}, {clients} clients, {what}, p{p}", float(np.percentile(got[what], p)) * 1e3
                    found.setdefault(key, {}).setdefault(kind, []).append(value)
            for key, values in found.items():
                targets = {OURS: Target(1 / least if "time" in key else 1.1, "as by hand")}
                yield Row(key, key, "ms", targets=targets).result({kind: values[kind] for kind in kinds}, missing)


def leaving(turns: Any) -> Iterator[Result]:
    """A thousand clients of which a third leave in the middle; a long prompt beside 32 streams."""
    sizes, clients = list[float](), 20 if turns.quick else 1000
    with ExitStack() as stack:
        server, hand = [
            stack.enter_context(Server(kind, turns.quick, app="bench.tokens", width=768)) for kind in (OURS, "by hand")
        ]
        for _ in range(3):
            run(partial(read, server, clients, leaving=True))
            sizes.append(resident("VmRSS", server.process.pid) / 2**20)
        sleep(1.0)  # the server hears of the last client's leaving
        found = json.loads(server.ask(request("/statusz", b"", method="GET"))[1])["statistics"]
        gaps: dict[str, list[float]] = {"median": [], "by hand": [], OURS: []}
        for _ in range(turns.rounds):
            gaps["median"].append(float(np.median(run(partial(read, server, 33))["gap"])) * 1e3)
            for kind, one in (("by hand", hand), (OURS, server)):
                gaps[kind].append(max(run(partial(read, one, 33, long=480))["gap"]) * 1e3)
    left = found["bytes_reserved"] + found["bytes_retained"] + found["bytes_in_flight"]
    yield counted("left", f"{clients:,} clients, a third leave: bytes left", left, "nothing leaks")
    for key, unit, of, to, value, most in (
        ("resident set", "MiB", "the first time", sizes[0], sizes[-1], 1.05),
        ("tracked bytes", "MiB", "the limit", found["max_bytes"] / 2**20, found["peak_bytes"] / 2**20, 1.0),
    ):
        yield beside(key, key, unit, of, to, value, Target(most, "a bound"))
    longest = "longest gap beside a long prompt"
    yield Row(longest, longest, "ms", targets={OURS: Target(2.0, "a bound")}).result(gaps)


ROWS = tuple(Together(row[0], partial(streams, *row)) for row in (("tiny", 768, 0.95, 5), ("wide", 2048, 1.0, 2)))
ROWS += (Together("leaving", leaving),)

if __name__ == "__main__":
    serve(*sys.argv[1:])
