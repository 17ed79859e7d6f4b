"""A model behind HTTP: capacity, overload, clients that leave, tenants, shutting down: `python -m bench.serving`.

Server and load generator are processes of their own, on loopback. BLAS has one thread, so that loop and generator have
a processor left on a machine with two.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import time
from statistics import median

from .load import BODY, Connection, connect, many_files, request, run
from .measure import Asked, Report, Row, run_bench
from .serving_processes import DRAIN, LIMIT, Found, Server, answer

CONNECTIONS = 64  # of the clients at capacity: two batches


def row(name: str, value: float, unit: str, to: float, of: str, asked: Asked | None = None, note: str = "") -> Row:
    """A line: a value in its unit, and its ratio to another."""
    return Row(name, value, unit, [value / to if to else float(value == to)], of, asked, note)


def capacity(quick: bool, report: Report) -> None:
    """As many requests as CONNECTIONS clients can have answered, by each kind of server in turn."""
    kinds = ["inline", "executor", "asyncsched"]
    if importlib.util.find_spec("litserve") is not None:
        kinds.append("litserve")
    else:
        report.notes.append("a LitServe: not installed, skipped (`pip install litserve`)")
    report.notes.append("a Ray Serve: skipped: it is a cluster of processes, not to be had on a few processors")
    found: dict[str, list[Found]] = {kind: [] for kind in kinds}
    for _ in range(1 if quick else 3):
        for kind in kinds:
            with Server(kind, quick) as server:
                found[kind].append(answer(server.load(seconds=0.5 if quick else 6, connections=CONNECTIONS)))
    for what, unit in (("time per answer", "ms"), ("p99", "ms")):
        for kind in kinds:
            report.rows.append(_capacity_row(what, unit, kind, found))


def _capacity_row(what: str, unit: str, kind: str, found: dict[str, list[Found]]) -> Row:
    def value(one: Found) -> float:
        return 1e3 / max(one["per_second"], 1e-9) if what == "time per answer" else one["good"]["p99"] * 1e3

    to = "inline" if what == "time per answer" else "executor"
    ratios = [value(mine) / value(its) for mine, its in zip(found[kind], found[to], strict=True)]
    asked = {"time per answer": Asked(ratio=0.5), "p99": Asked(ratio=1.0)}[what] if kind == "asyncsched" else None
    note = f"{median(one['per_second'] for one in found[kind]):.0f} per second" if what == "time per answer" else ""
    return Row(f"a {kind}, {what}", median(map(value, found[kind])), unit, ratios, f"a {to}, {what}", asked, note)


def overload(quick: bool, report: Report) -> None:
    """Three times as many requests as it can answer."""
    with Server("asyncsched", quick) as server:
        alone = answer(server.load(seconds=0.5 if quick else 10, connections=CONNECTIONS))
        rate, seconds = 3 * alone["per_second"], 1.0 if quick else 60.0
        answer(server.load(seconds=seconds / 12, connections=2000, rate=rate))  # memory grows to its size
        before = server.stats()
        found = answer(server.load(seconds=seconds, connections=2000, rate=rate, probe=True))
        after = server.stats()
    good, slow, refused = found["good"], alone["good"]["p99"] * 1e3, found["refused"]["p99"] * 1e3
    counts = ", ".join(f"{status}: {count}" for status, count in sorted(found["statuses"].items()))
    per_second = f"{found['per_second']:.0f} per second of {rate:.0f}; {counts}; {found['unsent']} unsent"
    report.rows += [
        row("b overload, time per good answer", 1e3 / max(found["per_second"], 1e-9), "ms",
            1e3 / alone["per_second"], "at capacity", Asked(ratio=1 / 0.95), per_second),
        row("b overload, p99 of the accepted", good["p99"] * 1e3, "ms", slow, "at capacity", Asked(ratio=2.0)),
        row("b overload, p99 of refusals", refused, "ms", slow, "accepted at capacity", Asked(median=50),
            f"max {found['refused']['max'] * 1e3:.0f} ms"),
        row("b overload, most tracked bytes", after["peak_bytes"] / 2**20, "MiB", after["max_bytes"] / 2**20,
            "the limit", Asked(ratio=1.0)),
        row("b overload, resident set", after["rss"] / 2**20, "MiB", before["rss"] / 2**20, "before",
            Asked(ratio=1.05)),
        row("b overload, p99 of /healthz", found["healthz"]["p99"] * 1e3, "ms", slow, "accepted at capacity",
            Asked(median=50)),
        row("b overload, p99 of the loop's lag", after["lag"]["p99"] * 1e3, "ms", slow, "accepted at capacity",
            Asked(median=10)),
    ]  # fmt: skip


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


def tenants(quick: bool, report: Report) -> None:
    """Three tenants at their share of 15% each; a fourth at its share, and at ten times that."""
    p99 = {}
    with Server("asyncsched", quick, max_requests_per_tenant=LIMIT // 8) as server:
        most = answer(server.load(seconds=0.5 if quick else 6, connections=CONNECTIONS))["per_second"]
        for times in (1, 10):
            noisy = server.load(seconds=1 if quick else 10, connections=500, rate=0.15 * most * times, tenant="noisy")
            others = [
                server.load(seconds=1 if quick else 10, connections=100, rate=0.15 * most, tenant=str(i))
                for i in range(1 if quick else 3)
            ]
            p99[times] = max(answer(one)["good"]["p99"] for one in others) * 1e3
            heard = answer(noisy)["statuses"]
    counts = ", ".join(f"{status}: {number}" for status, number in sorted(heard.items()))
    report.rows.append(
        row("d one tenant at 10x its share, p99 of the others", p99[10], "ms", p99[1], "with all at their share",
            Asked(ratio=1.5), f"the one heard {counts}")
    )  # fmt: skip


def stopping(quick: bool, report: Report) -> None:
    """SIGTERM under load."""
    with Server("asyncsched", quick) as server:
        load = server.load(seconds=3 if quick else 6, connections=CONNECTIONS, patient=False)
        time.sleep(1.5 if quick else 3)
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


def rudeness(quick: bool, report: Report) -> None:
    """Clients that are killed, that are slow, too large, or talk nonsense."""
    with Server("asyncsched", quick, max_body="64 KiB", body_timeout=1.0) as server:
        killed = server.load(seconds=30, connections=CONNECTIONS)
        time.sleep(1.5 if quick else 3)
        killed.kill()
        killed.communicate()
        heard = {
            408: server.ask(request(body=BODY[:10], more=100))[0],
            413: server.ask(request(body=b"x" * 70_000))[0],
            400: server.ask(request(body=b'{"x": [1, 2'))[0],
            200: server.ask(request())[0],
        }
        after = _settled(server)
    wrong = sum(asked != got for asked, got in heard.items())
    left = sum(after[key] for key in ("in_flight", "bytes_in_flight", "retained", "in_progress", "waiting"))
    note = ", ".join(f"{asked} as {got}" for asked, got in heard.items())
    report.rows += [
        row("f rude clients, wrong statuses", wrong, "count", 1, "one", Asked(ratio=0.0), note),
        row("f rude clients, in the ledgers", left, "count", 1, "one", Asked(ratio=0.0), "after one was killed, too"),
    ]


if __name__ == "__main__":
    many_files()
    run_bench(
        "serving",
        {
            "capacity": capacity,
            "overload": overload,
            "leaving": leaving,
            "tenants": tenants,
            "stopping": stopping,
            "rudeness": rudeness,
        },
    )
