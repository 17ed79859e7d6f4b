"""A model behind HTTP: capacity, overload, clients that leave, tenants, shutting down: `python -m bench.serving`.

Server and load generator are processes of their own, on loopback. BLAS has one thread, so that loop and generator have
a processor left on a machine with two.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from statistics import median

from .load import many_files, request
from .measure import Asked, Report, Row, run_bench
from .serving_ends import leaving, rudeness, stopping
from .serving_processes import CONNECTIONS, LIMIT, Found, Server, answer, row


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
                found[kind].append(answer(server.load(seconds=0.2 if quick else 6, connections=CONNECTIONS)))
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
        alone = answer(server.load(seconds=0.2 if quick else 10, connections=CONNECTIONS))
        rate, seconds = 3 * alone["per_second"], 0.5 if quick else 60.0
        answer(server.load(seconds=seconds / 12, connections=2000, rate=rate))  # memory grows to its size
        before, counts = server.stats(), _counts(server)
        found = answer(server.load(seconds=seconds, connections=2000, rate=rate, probe=True))
        after, counts = server.stats(), _counts(server) - counts
        tasks = _tasks_of_a_batch(server)
    good, slow, refused = found["good"], alone["good"]["p99"] * 1e3, found["refused"]["p99"] * 1e3
    batches, completed = after["batches"] - before["batches"], after["completed"] - before["completed"]
    differently = (
        sum(abs(found["statuses"].get(status, 0) - counts[status]) for status in {*found["statuses"], *counts})
        + abs(found["statuses"]["200"] - (after["answered"] - before["answered"]))
        + abs(completed - batches * tasks)
    )
    heard = ", ".join(f"{status}: {count}" for status, count in sorted(found["statuses"].items()))
    per_second = f"{found['per_second']:.0f} per second of {rate:.0f}; {heard}; {found['unsent']} unsent"
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
        row("b overload, counted differently", differently, "count", 1, "one", Asked(ratio=0.0),
            f"by client, metrics, batcher, and scheduler: {completed} tasks in {batches} batches"),
    ]  # fmt: skip


def _counts(server: Server) -> Counter[str]:
    """Requests by status, as the server's metrics have them."""
    text = server.ask(request("/metrics", b"", method="GET"))[1]
    found: Counter[str] = Counter()
    for status, count in re.findall(r'^asyncsched_requests_total{.*status="(\w+)"} (\S+)$', text, re.MULTILINE):
        found[status] += int(float(count))
    return found


def _tasks_of_a_batch(server: Server) -> int:
    before = server.stats()
    server.ask(request())
    after = server.stats()
    found: int = after["completed"] - before["completed"]
    return found


def tenants(quick: bool, report: Report) -> None:
    """Three tenants at their share of 15% each; a fourth at its share, and at ten times that."""
    p99 = {}
    with Server("asyncsched", quick, max_requests_per_tenant=LIMIT // 8) as server:
        most = answer(server.load(seconds=0.2 if quick else 6, connections=CONNECTIONS))["per_second"]
        for times in (1, 10):
            noisy = server.load(seconds=0.5 if quick else 10, connections=500, rate=0.15 * most * times, tenant="noisy")
            others = [
                server.load(seconds=0.5 if quick else 10, connections=100, rate=0.15 * most, tenant=str(i))
                for i in range(1 if quick else 3)
            ]
            p99[times] = max(answer(one)["good"]["p99"] for one in others) * 1e3
            heard = answer(noisy)["statuses"]
    counts = ", ".join(f"{status}: {number}" for status, number in sorted(heard.items()))
    report.rows.append(
        row("d one tenant at 10x its share, p99 of the others", p99[10], "ms", p99[1], "with all at their share",
            Asked(ratio=1.5), f"the one heard {counts}")
    )  # fmt: skip


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
