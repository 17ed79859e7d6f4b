"""A model behind HTTP: capacity, overload, tenants, shutting down. Clients that leave are in `soak`.

Server and load generator are processes of their own, on loopback. BLAS has one thread, so that loop and generator have
a processor left on a machine with two. (Ray Serve is left out: it is a cluster of processes, and needs more
processors.)
"""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec

from bench.harness.rows import OURS, Result, Row, Target
from bench.harness.subjects import Together
from bench.harness.turns import Turns

from .load import request
from .servers import CONNECTIONS, DRAIN, LIMIT, Found, Server, answer, beside, counted, with_litserve

KINDS = ("batch", "call", "tensors", "tokens")  # of `waiting`
AT_CAPACITY = "at capacity"


def capacity(turns: Turns) -> Iterator[Result]:
    """As many requests as each kind of server can answer for CONNECTIONS clients, in turn."""
    quick = turns.quick
    kinds, missing = with_litserve(["inline", "executor", OURS], turns)
    found: dict[str, list[Found]] = {kind: [] for kind in kinds}
    for _ in range(min(turns.rounds, 3)):
        for kind in kinds:
            with Server(kind, quick) as server:
                found[kind].append(answer(server.load(seconds=0.2 if quick else 6, connections=CONNECTIONS)))
    times = {kind: [1e3 / max(one["per_second"], 1e-9) for one in all_] for kind, all_ in found.items()}
    p99 = {kind: [one["good"]["p99"] * 1e3 for one in found[kind]] for kind in ("executor", "inline", *kinds[2:])}
    batched, queued = {OURS: Target(0.5, "batches")}, {OURS: Target(1.0, "no queue in front of a lock")}
    yield Row("capacity-time", "time per answer of a model of 5 ms a row", "ms", targets=batched).result(times, missing)
    yield Row("capacity-p99", "the same, 99th percentile of latency", "ms", targets=queued).result(p99, missing)


def overload(turns: Turns) -> Iterator[Result]:
    """Three times as many requests as the server can answer."""
    quick = turns.quick
    with Server("asyncsched", quick) as server:
        alone = answer(server.load(seconds=0.2 if quick else 10, connections=CONNECTIONS))
        rate, seconds = 3 * alone["per_second"], 0.5 if quick else 60.0
        answer(server.load(seconds=seconds / 12, connections=2000, rate=rate))  # memory grows to its size
        before, counts = server.stats(), _counts(server)
        found = answer(server.load(seconds=seconds, connections=2000, rate=rate, probe=True))
        after, counts = server.stats(), _counts(server) - counts
        tasks = _tasks_of_a_batch(server)
    batches, completed = after["batches"] - before["batches"], after["completed"] - before["completed"]
    differently = (
        sum(abs(found["statuses"].get(status, 0) - counts[status]) for status in {*found["statuses"], *counts})
        + abs(found["statuses"]["200"] - (after["answered"] - before["answered"]))
        + abs(completed - batches * tasks)
    )
    heard = ", ".join(f"{status}: {count}" for status, count in sorted(found["statuses"].items()))
    per_second = f"{found['per_second']:.0f} per second of {rate:.0f}; {heard}; {found['unsent']} unsent"
    most = f"max {found['refused']['max'] * 1e3:.0f} ms"
    soon, late = Target(50, "it is told at once", absolute=True), Target(10, "nothing blocks it", absolute=True)
    time, before_it = [1e3 / max(one["per_second"], 1e-9) for one in (found, alone)]
    slow = alone["good"]["p99"] * 1e3
    for key, title, to, value, target, note in (
        ("time", "time per good answer", before_it, time, Target(1 / 0.95, "5% for refusals"), per_second),
        ("p99", "p99 of the accepted", slow, found["good"]["p99"] * 1e3, Target(2.0, "the queue is bounded"), ""),
        ("refusals", "p99 of refusals", slow, found["refused"]["p99"] * 1e3, soon, most),
        ("healthz", "p99 of /healthz", slow, found["healthz"]["p99"] * 1e3, soon, ""),
        ("lag", "p99 of the loop's lag", slow, after["lag"]["p99"] * 1e3, late, ""),
    ):
        yield beside(f"overload-{key}", f"three times the load: {title}", "ms", AT_CAPACITY, to, value, target, note)
    for key, title, of, to, value, target in (
        ("tracked", "most tracked bytes", "the limit", after["max_bytes"], after["peak_bytes"], Target(1.0, "a bound")),
        ("resident", "resident set", "before", before["rss"], after["rss"], Target(1.05, "it does not grow")),
    ):
        title = f"three times the load: {title}"
        yield beside(f"overload-{key}", title, "MiB", of, to / 2**20, value / 2**20, target)
    note = f"by client, metrics, batcher, and scheduler: {completed} tasks in {batches} batches"
    yield counted("overload-counts", "three times the load: counted differently", differently, "books agree", note)


def deadlines(turns: Turns) -> Iterator[Result]:
    """Three times as many requests as can be answered, with a deadline of 1.9 s: those that are answered in time, for
    several limits of requests in progress. The guide's is 80, twice as many as are answered in that time."""
    quick = turns.quick
    kinds, missing = with_litserve([*KINDS, *(["fastapi"] if find_spec("fastapi") else [])], turns)
    limits = (80,) if quick else (40, 80, 320)
    found: dict[str, dict[int, list[float]]] = {}
    for kind in kinds:
        app = "bench.serving.waiting"
        with Server(kind, quick, app=app, max_requests=1000, deadline=None) as server:
            most = answer(server.load(seconds=0.3 if quick else 6, connections=40))["per_second"]
        for limit in limits:
            with Server(kind, quick, app=app, max_requests=limit, deadline=1.9) as server:
                one = answer(server.load(seconds=0.5 if quick else 20, connections=500, rate=3 * most))
            told = one["statuses"]
            let_in = told.get("200", 0) + told.get("504", 0)
            numbers = [one["per_second"] / most, 100 * told.get("504", 0) / max(1, let_in), one["refused"]["p99"] * 1e3]
            found.setdefault(kind, {})[limit] = numbers
    least, few = Target(1 / 0.95, "5% for refusals"), Target(1, "it was let in", absolute=True)
    soon = Target(50, "it is told at once", absolute=True)
    for limit in limits:
        rows = {kind: numbers[limit] for kind, numbers in found.items()}
        for at, key, title, unit, target in (
            (0, "time", "time per answer in time", "x", least), (1, "late", "let in, and told 504", "%", few),
            (2, "refusals", "p99 of refusals", "ms", soon),
        ):  # fmt: skip
            values = {kind: [1 / max(one[at], 1e-3) if at == 0 else one[at]] for kind, one in rows.items()}
            title = f"three times the load, a deadline, {limit} requests: {title}"
            targets = dict.fromkeys(KINDS, target)
            of = {AT_CAPACITY: [1.0]} if at == 0 else {}
            yield Row(f"deadlines-{limit}-{key}", title, unit, targets=targets).result(of | values, missing)


def _counts(server: Server) -> Counter[str]:
    """Requests by status, from the server's metrics."""
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


def tenants(turns: Turns) -> Iterator[Result]:
    """Three tenants at their share of 15% each, and a fourth at its share, then at ten times that."""
    quick = turns.quick
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
    share, target = "with all at their share", Target(1.5, "tenants take turns")
    title = "one tenant at 10x its share, p99 of the others"
    yield beside("tenants", title, "ms", share, p99[1], p99[10], target, f"the one heard {counts}")


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


ROWS = tuple(Together(one.__name__, one) for one in (capacity, overload, deadlines, tenants, stopping))
