"""A load generator, a process of its own: `main` with the argument '{"port": 8000, ...}' prints the answers'
numbers.

Requests are written, and answers read, with as little work as possible, so that the server gets the processor.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np

from bench.libraries import uvloop_factory

BODY = json.dumps({"x": [i / 64 for i in range(64)]}).encode()
_LATEST = 15.0  # seconds in which answers may come after the last request
PROGRAM = (sys.executable, "-c", "from bench.serving.load import main; main()")  # and the load, as JSON
_GONE = 0  # the "status" of a request whose connection ended without an answer


@dataclass
class Load:
    """The requests to send.

    With `rate`, so many requests a second, however slow the answers are (at most `connections` at a time). A latency
    counts from the moment at which the request was due. Without `rate`, each connection sends its next request as soon
    as it has the answer.
    """

    port: int
    seconds: float
    connections: int
    rate: float | None = None
    tenant: str = ""
    probe: bool = False  # ask /healthz, 20 times a second
    patient: bool = True  # open connections again that the server has closed
    results: list[tuple[int, float, float]] = field(default_factory=list)  # status, latency, when sent
    probes: list[tuple[int, float, float]] = field(default_factory=list)
    unsent: int = 0

    async def run(self) -> dict[str, Any]:
        started = perf_counter()
        probing = asyncio.create_task(self._probe()) if self.probe else None
        await (self._open(started) if self.rate else self._closed(started + self.seconds))
        if probing is not None:
            probing.cancel()
        return self._report(started)

    async def _closed(self, until: float) -> None:
        async def one() -> None:
            connection = await connect(self.port)
            while (now := perf_counter()) < until:
                status = await connection.ask(request(tenant=self.tenant))
                if status == _GONE and not (self.patient or connection.taken):
                    return  # the server has closed its socket: like a connection that is refused
                self.results.append((status, perf_counter() - now, now))
                if status in (_GONE, 503) and not self.patient:
                    return
                if connection.closed:
                    connection = await connect(self.port)

        await asyncio.gather(*[one() for _ in range(self.connections)], return_exceptions=True)

    async def _open(self, started: float) -> None:
        assert self.rate is not None
        idle, asked, number = [await connect(self.port) for _ in range(self.connections)], set(), 0
        while (due := started + number / self.rate) < started + self.seconds:
            if (wait := due - perf_counter()) > 0.001:
                await asyncio.sleep(wait)
            number += 1
            if not idle:
                self.unsent += 1
                continue
            task = asyncio.create_task(self._ask(idle.pop(), due, idle))
            asked.add(task)
            task.add_done_callback(asked.discard)
        if asked:
            await asyncio.wait(asked, timeout=_LATEST)

    async def _ask(self, connection: Connection, due: float, idle: list[Connection]) -> None:
        if connection.closed:
            connection = await connect(self.port)
        status = await connection.ask(request(tenant=self.tenant))
        self.results.append((status, perf_counter() - due, due))
        idle.append(connection)

    async def _probe(self) -> None:
        connection = await connect(self.port)
        while True:
            now = perf_counter()
            status = await connection.ask(request("/healthz", b"", method="GET"))
            self.probes.append((status, perf_counter() - now, now))
            await asyncio.sleep(0.05)

    def _report(self, started: float) -> dict[str, Any]:
        good = [latency for status, latency, _ in self.results if status == 200]
        refused = [latency for status, latency, _ in self.results if status in (429, 503)]
        last = max([at + latency for _, latency, at in self.results], default=started)
        return {
            "statuses": Counter(status for status, _, _ in self.results),
            "unsent": self.unsent,
            "per_second": len(good) / max(last - started, 1e-9),
            "good": quantiles(good),
            "refused": quantiles(refused),
            "healthz": quantiles([latency for _, latency, _ in self.probes]),
        }


def quantiles(seconds: list[float]) -> dict[str, float]:
    """p50, p99 and max, in seconds; zeros if there are no values."""
    p50, p99, most = np.percentile(seconds, (50, 99, 100)) if seconds else (0, 0, 0)
    return {"p50": float(p50), "p99": float(p99), "max": float(most)}


def request(path: str = "/predict", body: bytes = BODY, *, method: str = "POST", tenant: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nx-tenant: {tenant}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.closed = False
        self.taken = False  # by the server, which has answered on it
        self.text = b""
        self.transport: Any = None
        self._answer: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._settle(_GONE)

    def data_received(self, data: bytes) -> None:
        self.taken = True
        self.text += data
        head, found, body = self.text.partition(b"\r\n\r\n")
        lower = head.lower()
        if found and len(body) >= int(lower.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0):
            self.closed = self.closed or b"connection: close" in lower
            self._settle(int(head[9:12]))

    def _settle(self, status: int) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(status)

    async def ask(self, data: bytes) -> int:
        """The status of the answer; 0 if there was none. Its text is in `text`."""
        self.text, self._answer = b"", asyncio.get_running_loop().create_future()
        if self.closed:
            return _GONE
        self.transport.write(data)
        return await self._answer


async def connect(port: int) -> Connection:
    """A connection to the server on this machine."""
    return (await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port))[1]


def many_files() -> None:
    """Let this process have as many connections as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def run(main: Callable[[], Any]) -> Any:
    factory = uvloop_factory() if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())


def main() -> None:
    """Print what the load of the first argument got."""
    many_files()
    print(json.dumps(run(Load(**json.loads(sys.argv[1])).run)))
