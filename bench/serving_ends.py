"""Requests that end before their time: clients that leave or misbehave, a server that stops; for `bench.serving`."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import time

from .load import BODY, Connection, connect, request, run
from .measure import Asked, Report
from .serving_processes import CONNECTIONS, DRAIN, Found, Server, answer, row


def leaving(quick: bool, report: Report) -> None:
    """Many connections with a request each; half of them end while their requests wait."""
    count = 100 if quick else 10_000
    with Server("asyncsched", quick, max_requests=2 * count) as server:
        server.ask(request("/hold", b"", method="GET"))
        before = server.stats()
        statuses = run(lambda: _open_and_drop(server.port, count))
        after = _settled(server)
    computed, good = after["answered"] - before["answered"], statuses.count(200)
    note = f"{after['dropped'] - before['dropped']} dropped unseen, {good} of {count // 2} answered"
    left = sum(after[key] for key in ("in_flight", "bytes_in_flight", "retained", "in_progress", "waiting"))
    report.rows += [
        # The first batch holds what came first, and may hold some who leave: it had begun.
        row("c left, items computed", computed, "count", count // 2 + 32, "who stayed, and a batch",
            Asked(ratio=1.0), note),
        row("c left, in the ledgers", left, "count", 1, "one", Asked(ratio=0.0)),
    ]  # fmt: skip


async def _open_and_drop(port: int, count: int) -> list[int]:
    connections = []
    for _ in range(count):
        connections.append(await connect(port))
    asked = [asyncio.ensure_future(connection.ask(request())) for connection in connections]
    control = await connect(port)
    await _in_progress(control, count)
    for connection in connections[::2]:
        connection.abort()
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


def stopping(quick: bool, report: Report) -> None:
    """SIGTERM under load."""
    with Server("asyncsched", quick) as server:
        load = server.load(seconds=2 if quick else 6, connections=CONNECTIONS, patient=False)
        time.sleep(1 if quick else 3)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(2 * DRAIN)
        seconds = time.monotonic() - started
        statuses = answer(load)["statuses"]
    report.rows += [
        row("e SIGTERM, requests without an answer", statuses.get("0", 0), "count", 1, "one", Asked(ratio=0.0),
            f"{statuses.get('200', 0)} answered, {statuses.get('503', 0)} told 503"),
        row("e SIGTERM, until the process ended", seconds, "s", DRAIN, "the drain timeout", Asked(ratio=1.0)),
    ]  # fmt: skip


CHUNK = b"10000\r\n" + bytes(2**16) + b"\r\n"
RUDE = {  # what is sent to a server that takes 64 KiB, and what it should answer
    "a body that does not come": (408, request(body=BODY[:10], more=100)),
    "1 GiB, announced": (413, request(more=2**30)),
    "too much, in chunks": (413, request(chunks=2 * CHUNK)),
    "malformed JSON": (400, request(body=b'{"x": [1, 2')),
    "wrong shape": (422, request(body=b'{"x": [1, 2]}')),
    "NaN": (422, request(body=json.dumps({"x": [math.nan] * 64}).encode())),
    "a good one": (200, request()),
}


def rudeness(quick: bool, report: Report) -> None:
    """Clients that are killed, that are slow, too large, or talk nonsense."""
    with Server("asyncsched", quick, max_body="64 KiB", body_timeout=1.0) as server:
        killed = server.load(seconds=30, connections=CONNECTIONS)
        time.sleep(1 if quick else 3)
        killed.kill()
        killed.communicate()
        heard = {name: server.ask(data)[0] for name, (_, data) in RUDE.items()}
        after = _settled(server)
    wrong = sum(heard[name] != status for name, (status, _) in RUDE.items())
    left = sum(after[key] for key in ("in_flight", "bytes_in_flight", "retained", "in_progress", "waiting"))
    note = ", ".join(f"{name}: {status}" for name, status in heard.items())
    report.rows += [
        row("f rude clients, wrong statuses", wrong, "count", 1, "one", Asked(ratio=0.0), note),
        row("f rude clients, in the ledgers", left, "count", 1, "one", Asked(ratio=0.0), "after one was killed, too"),
    ]
