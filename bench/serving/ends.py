"""Requests that end before their time: clients that leave, a server that stops; for `bench.serving`."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator

from bench.harness.rows import Result
from bench.harness.turns import Turns

from .load import Connection, connect, many_files, request, run
from .servers import CONNECTIONS, DRAIN, Found, Server, answer, counted


def leaving(turns: Turns) -> Iterator[Result]:
    """Many connections with a request each; half of them end while their requests wait."""
    quick = turns.quick
    count = 100 if quick else 10_000
    with Server("asyncsched", quick, max_requests=2 * count) as server:
        server.ask(request("/hold", b"", method="GET"))
        before = server.stats()
        statuses = run(lambda: _open_and_drop(server.port, count))
        after = _settled(server)
    computed, good = after["answered"] - before["answered"], statuses.count(200)
    note = f"{after['dropped'] - before['dropped']} dropped unseen, {good} of {count // 2} answered"
    # The first batch holds what came first, and may hold some who leave: it had begun.
    most, why = count // 2 + 32, "those who stayed, and a batch"
    yield counted("leaving-computed", "half of all clients leave: items computed", computed, why, note, most=most)
    yield counted("leaving-ledgers", "half of all clients leave: left in the ledgers", _left(after), "nothing leaks")


def _left(stats: Found) -> int:
    return sum(stats[key] for key in ("in_flight", "bytes_in_flight", "retained", "in_progress", "waiting"))


async def _open_and_drop(port: int, count: int) -> list[int]:
    many_files()
    connections = []
    for _ in range(count):
        connections.append(await connect(port))
    asked = [asyncio.ensure_future(connection.ask(request())) for connection in connections]
    control = await connect(port)
    await _in_progress(control, count)
    for connection in connections[::2]:
        connection.transport.abort()
    await _in_progress(control, count // 2)
    await control.ask(request("/release", b"", method="GET"))
    return list(await asyncio.gather(*asked))


async def _in_progress(control: Connection, count: int) -> None:
    """Until so many requests are."""
    found = -1
    while found != count:
        await asyncio.sleep(0.05)
        await control.ask(request("/stats", b"", method="GET"))
        found = json.loads(control.text.partition(b"\r\n\r\n")[2])["in_progress"]


def _settled(server: Server) -> Found:
    """The server's numbers once nothing is in progress, or after a while."""
    for _ in range(100):
        found = server.stats()
        if not found["in_progress"]:
            break
        time.sleep(0.1)
    return found


def stopping(turns: Turns) -> Iterator[Result]:
    """SIGTERM under load."""
    quick = turns.quick
    with Server("asyncsched", quick) as server:
        load = server.load(seconds=2 if quick else 6, connections=CONNECTIONS, patient=False)
        time.sleep(1 if quick else 3)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(2 * DRAIN)
        seconds = time.monotonic() - started
        statuses = answer(load)["statuses"]
    note = f"{statuses.get('200', 0)} answered, {statuses.get('503', 0)} told 503"
    lost, title = statuses.get("0", 0), "SIGTERM: until the process ended"
    yield counted("stopping-unanswered", "SIGTERM: requests without an answer", lost, "all are told", note)
    yield counted("stopping-seconds", title, seconds, "the drain timeout", most=DRAIN, unit="s")
