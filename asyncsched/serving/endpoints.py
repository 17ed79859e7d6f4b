"""What a server shows of itself: health, readiness, metrics, status. No limit holds for them: a full server answers.

The status shows no data of requests, and no lines of the program.

Prometheus's metrics. Requests, batches and outputs are counted as they end; server, scheduler, batchers and steppers
are read when Prometheus asks. Several processes of one service share a folder, `PROMETHEUS_MULTIPROC_DIR`, as with any
use of Prometheus's client. Then each process writes what only it can read into that folder, once a second at most and
when it is asked. The process that is asked adds up the numbers of all.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from .http import Exchange, Problem
from .service import Service

_TEXT: Final = "text/plain; charset=utf-8"
_MOST: Final = 20  # operations
_PAGE: Final = Path(__file__).with_name("status.html").read_bytes()


async def healthz(service: Service, exchange: Exchange) -> None:
    """Whether the process is alive: its event loop runs."""
    await exchange.respond(200, _TEXT, b"ok\n", {"cache-control": "no-store"})


async def readyz(service: Service, exchange: Exchange) -> None:
    """Whether it takes requests: open, and not draining."""
    if not service.ready:
        raise Problem(503, "The server is not ready, or shutting down.", retry_after=1.0)
    await exchange.respond(200, _TEXT, b"ready\n", {"cache-control": "no-store"})


async def metrics(service: Service, exchange: Exchange) -> None:
    """Prometheus's text format."""
    if service.render_metrics is None:
        raise Problem(501, "Metrics need prometheus-client on the server: pip install asyncsched[serving]")
    await exchange.respond(200, *service.render_metrics())


async def statusz(service: Service, exchange: Exchange) -> None:
    """The state of the server and its scheduler: a page for browsers, else JSON. Without lines of code and names of
    scopes."""
    headers = {"cache-control": "no-store", "vary": "accept"}
    if b"text/html" in (exchange.header(b"accept") or b""):
        await exchange.respond(200, "text/html; charset=utf-8", _PAGE, headers)
    else:
        await exchange.respond(200, "application/json", json.dumps(status(service)).encode(), headers)


def status(service: Service) -> dict[str, Any]:
    """Requests, the scheduler's `statistics()` and `load()`, batchers, steppers, streams, and the operations that took
    longest.

    Raises:
        Problem: 503 while the scheduler is not open.
    """
    if service.summary is None:
        raise Problem(503, "The server is not ready, or shutting down.", retry_after=1.0)
    found = service.summary.read()
    return {
        "ready": service.ready,
        "seconds": found.seconds,
        "requests": {
            "in_progress": len(service.limiter),
            "limit": service.limiter.max_requests,
            "refused": service.limiter.refused,
        },
        "bodies": {
            "bytes": service.body_room.claimed,
            "limit": service.body_room.limit,
            "waiting": service.body_room.waiting,
        },
        "adopted": {"requests": service.limiter.adopted, "tasks": len(service.bodies())},
        "statistics": asdict(found.statistics),
        "load": asdict(found.load),
        "estimated_wait": service.estimated_wait(),
        "waiting_for_room": [asdict(one) for one in service.scheduler._runtime.room.read()],
        "coroutines_waiting": found.waiting_count,
        "scopes": found.scope_count,
        "batchers": {name: asdict(one.statistics()) for name, one in service.batchers.items()},
        "steppers": {name: asdict(one.statistics()) for name, one in service.steppers.items()},
        "streams": [{key: kept for key, kept in asdict(one).items() if key != "line"} for one in found.streams],
        "operations": [asdict(operation) for operation in found.operations[:_MOST]],
    }


ENDPOINTS: Final[Mapping[str, Callable[[Service, Exchange], Awaitable[None]]]] = {
    "/healthz": healthz,
    "/readyz": readyz,
    "/metrics": metrics,
    "/statusz": statusz,
}


if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram
    from prometheus_client.metrics_core import Metric

_METHODS = {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}  # others are "other", so labels are bounded
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds; Prometheus's own, from 5 ms
_SIZES = tuple(2**power for power in range(11))
_MOST_VALUES = 100  # of a label; others are "other"
_SHARED_EVERY = 1.0  # seconds


class Metrics:
    """Counts and times requests, and is a collector of Prometheus for all else."""

    def __init__(self, service: Service, buckets: Sequence[float] = BUCKETS) -> None:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

        bounds = [float(bound) for bound in buckets]
        if not bounds or bounds != sorted({*bounds}) or bounds[0] <= 0:
            raise ValueError(f"buckets are seconds above 0 that increase, not {buckets!r}")
        self._service = service
        self._content_type = CONTENT_TYPE_LATEST
        self._generate = generate_latest
        self._registry = CollectorRegistry()
        self._gauge = Gauge
        self._gauges: dict[str, Gauge] = {}  # for other processes
        self._shared_at = 0.0
        self._shared = bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))
        self._routes, self._tenants = _Values(), _Values()

        def counter(name: str, told: str, *labels: str) -> Callable[..., Counter]:
            return cache(Counter(f"asyncsched_{name}", told, labels, registry=self._registry).labels)

        def histogram(name: str, told: str, *labels: str, buckets: Sequence[float] = bounds) -> Histogram:
            return Histogram(f"asyncsched_{name}", told, labels, buckets=buckets, registry=self._registry)

        self._requests = counter(
            "requests", 'Requests; their status is "disconnected" where the client left before the whole answer.',
            "method", "route", "status",
        )  # fmt: skip
        self._of_tenant = counter(
            "tenant_requests", "Requests by tenant, if the server has `tenant=`.", "tenant", "status"
        )
        self._refusals = counter("refusals", "Requests that were answered in the application's place.", "reason")
        seconds = histogram(
            "request_duration_seconds",
            "From the begin of the application's work to the answer's last byte. Without answers 429 and 503.", "route",
        )  # fmt: skip
        self._seconds: Callable[..., Histogram] = cache(seconds.labels)
        if service.batchers:
            wait = histogram("batcher_wait_seconds", "For how long an item waited for its batch.", "batcher")
            size = histogram("batcher_batch_items", "Items in a batch.", "batcher", buckets=_SIZES)
            for name, batcher in service.batchers.items():
                batcher._queue.on_batch = partial(_note_batch, wait.labels(name), size.labels(name))
        if service.steppers:
            wait = histogram("stepper_wait_seconds", "For how long a member waited for its next step.", "stepper")
            size = histogram("stepper_step_members", "Members in a step.", "stepper", buckets=_SIZES)
            first = histogram("stepper_first_output_seconds", "From joining to the first output.", "stepper")
            gap = histogram("stepper_gap_seconds", "From one output of a member to its next.", "stepper")
            for name, stepper in service.steppers.items():
                stepper._queue.on_batch = partial(_note_batch, wait.labels(name), size.labels(name))
                stepper._on_output = partial(_note_output, first.labels(name), gap.labels(name))
        if self._shared:
            from prometheus_client.multiprocess import mark_process_dead

            atexit.register(mark_process_dead, os.getpid())  # its gauges end with it
        else:
            self._registry.register(cast(Any, self))  # a Collector only by its method: the class is not imported here

    def count(self, exchange: Exchange, started: float, failed: bool) -> None:
        """Count a request that has ended. If it `failed`, the server answers the exception."""
        status = "disconnected" if exchange.disconnected else str(exchange.status)
        if failed or not (exchange.disconnected or exchange.complete):
            status = "500"
        now, method = perf_counter(), exchange.scope["method"]
        route = self._routes.bounded(exchange.route or "other")
        self._requests(method if method in _METHODS else "other", route, status).inc()
        if (tenant := exchange.tenant) is not None:
            named = tenant.decode("latin-1") if isinstance(tenant, bytes) else str(tenant)  # as headers are
            self._of_tenant(self._tenants.bounded(named), status).inc()
        if exchange.refusal:
            own = exchange.refusal == "Problem"  # which the application chose, by its status
            self._refusals(f"status {exchange.status}" if own else exchange.refusal).inc()
        if status not in ("429", "503"):
            self._seconds(route).observe(now - started)
        if self._shared and now - self._shared_at > _SHARED_EVERY:
            self._share()

    def render(self) -> tuple[str, bytes]:
        """The content type and the text."""
        if not self._shared:
            return self._content_type, self._generate(self._registry)
        from prometheus_client import CollectorRegistry
        from prometheus_client.multiprocess import MultiProcessCollector

        self._share()
        registry = CollectorRegistry()
        cast(Any, MultiProcessCollector)(registry)  # which has no types
        return self._content_type, self._generate(registry)

    def _share(self) -> None:
        """Write for other processes what only this one can read."""
        self._shared_at = perf_counter()
        for metric in self.collect():
            for sample in metric.samples:
                name, labels = sample.name, sorted(sample.labels)
                if name not in self._gauges:
                    mode = "sum" if metric.type == "counter" else "livesum"
                    self._gauges[name] = self._gauge(
                        name, metric.documentation, labels, registry=None, multiprocess_mode=cast(Any, mode)
                    )
                gauge = self._gauges[name]
                (gauge.labels(**sample.labels) if labels else gauge).set(sample.value)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        service, found = self._service, list[tuple[tuple[Row, ...], str, Mapping[tuple[str, ...], Any]]]()
        found.append((SERVER, "", {(): service}))
        if service.is_open:
            found.append((SCHEDULER, "", {(): service.scheduler.statistics()}))
            found.append((ROOM, "", {(): service.scheduler._runtime.room.read()}))
        if service.summary is not None:
            found.append((SUMMARY, "", {(): service.summary}))
        for rows, kind, things in (BATCHERS, "batcher", service.batchers), (STEPPERS, "stepper", service.steppers):
            if things:
                found.append((rows, kind, {(name,): one.statistics() for name, one in things.items()}))
        return (row.read_from(sources, kind) for rows, kind, sources in found for row in rows)


class _Values:
    """The values of a label. The first ones are kept, others become "other": clients choose some of them, and a label
    must have few."""

    def __init__(self) -> None:
        self._kept: set[str] = set()

    def bounded(self, value: str) -> str:
        if value not in self._kept:
            if len(self._kept) >= _MOST_VALUES:
                return "other"
            self._kept.add(value)
        return value


def _note_batch(wait: Histogram, size: Histogram, seconds: list[float]) -> None:
    size.observe(len(seconds))
    for one in seconds:
        wait.observe(one)


def _note_output(first: Histogram, gap: Histogram, is_first: bool, seconds: float) -> None:
    (first if is_first else gap).observe(seconds)


class Row(NamedTuple):
    """A metric: its name (counters get "_total"), its help, whether it only grows, and a function that reads its
    samples.

    The function gives one number, or numbers by label. None is left out.
    """

    name: str
    help: str
    counter: bool
    read: Callable[[Any], float | Mapping[str, float | None] | None]
    label: str = ""

    def read_from(self, sources: Mapping[tuple[str, ...], Any], kind: str = "") -> Metric:
        """The metric with its samples. `sources` are named, by a label of that kind, where there are several."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        family = CounterMetricFamily if self.counter else GaugeMetricFamily
        labels = [kind] * bool(kind) + [self.label] * bool(self.label)
        metric = family(f"asyncsched_{self.name}", self.help, labels=labels)
        for source, read_from in sources.items():
            found = self.read(read_from)
            for value, number in (found if isinstance(found, Mapping) else {"": found}).items():
                if number is not None:
                    metric.add_metric([*source, value] if self.label else [*source], number)
        return metric


SERVER: Final = (
    Row("requests_in_progress", "Requests let in whose work has not ended.", False, lambda s: len(s.limiter)),
    Row("requests_adopted", "Requests among these that were cut short and answered, as by the deadline.", False,
        lambda s: s.limiter.adopted),
    Row("bodies_adopted", "Tasks of such requests that still run.", False, lambda s: len(s.bodies())),
    Row("requests_limit", "The most requests in progress.", False, lambda s: s.limiter.max_requests),
    Row("requests_refused", "Requests refused: too late, over max_requests or a tenant's quota, or drained.", True,
        lambda s: s.limiter.refused),
    Row("body_bytes", "Memory claimed for the bodies of requests.", False, lambda s: s.body_room.claimed),
    Row("bodies_waiting", "Bodies that are not read yet, for want of memory.", False, lambda s: s.body_room.waiting),
    Row("estimated_wait_seconds", "Seconds until all requests and tasks are done, by estimate.", False,
        lambda s: s.estimated_wait()),
    Row("ready", "1 while requests are taken, else 0.", False, lambda s: int(s.ready)),
)  # fmt: skip
SCHEDULER: Final = (
    Row("tasks", "Tasks ended, by outcome.", True,
        lambda s: {"completed": s.tasks_completed, "failed": s.tasks_failed, "cancelled": s.tasks_cancelled},
        "outcome"),
    Row("tasks_pending", "Tasks in the backlog.", False, lambda s: s.tasks_pending),
    Row("tasks_in_flight", "Tasks admitted and not ended.", False, lambda s: s.tasks_in_flight),
    Row("tracked_bytes", "Tracked bytes.", False,
        lambda s: {"in_flight": s.bytes_in_flight, "retained": s.bytes_retained}, "state"),
    Row("tracked_bytes_peak", "The most tracked bytes there ever were.", False, lambda s: s.peak_bytes),
    Row("tracked_bytes_limit", "The limit on tracked bytes.", False, lambda s: s.max_bytes),
    Row("reserved_bytes", "Bytes that open scopes have reserved.", False, lambda s: s.bytes_reserved),
    Row("scopes_preempted", "Scopes told to give back their reserve, so that others could grow.", True,
        lambda s: s.scopes_preempted),
    Row("admission_wait_seconds", "Time that callers waited for admission, added up.", True,
        lambda s: s.admission_wait_seconds),
)  # fmt: skip
ROOM: Final = (
    Row("reserves_waiting", "Scopes that wait for bytes to reserve: new ones by priority, and those that grow.", False,
        lambda room: {one.who: one.count for one in room}, "who"),
    Row("reserves_waiting_bytes", "Bytes for which scopes wait.", False,
        lambda room: {one.who: one.nbytes for one in room}, "who"),
    Row("reserves_waiting_seconds", "For how long the first of these scopes has waited.", False,
        lambda room: {one.who: one.longest for one in room}, "who"),
)  # fmt: skip
SUMMARY: Final = (
    Row("stream_busy_seconds", "Time for which a stream ran tasks, added up.", True,
        lambda s: {stream.name: stream.busy_seconds for stream in s.streams()}, "stream"),
    Row("operation_seconds", "Time for which tasks of a name ran, added up; for the first hundred names.", True,
        lambda s: {operation.name: operation.seconds for operation in s.operations()}, "operation"),
    Row("operation_tasks", "Tasks of a name that ran.", True,
        lambda s: {operation.name: operation.count for operation in s.operations()}, "operation"),
)  # fmt: skip
BATCHERS: Final = (
    Row("batcher_items", "Items, by outcome.", True,
        lambda s: {"answered": s.answered, "dropped": s.dropped, "refused": s.refused}, "outcome"),
    Row("batcher_batches", "Batches computed.", True, lambda s: s.batches),
    Row("batcher_retries", "Parts of failed batches that were computed again.", True, lambda s: s.retries),
    Row("batcher_items_waiting", "Items in the queue.", False, lambda s: s.waiting),
    Row("batcher_cost_waiting", "The cost of the items in the queue.", False, lambda s: s.waiting_cost),
)  # fmt: skip
STEPPERS: Final = (
    Row("stepper_outputs", "Outputs of members.", True, lambda s: s.outputs),
    Row("stepper_members", "Members, by state.", False,
        lambda s: {"admitting": s.admitting, "stepping": s.stepping, "waiting": s.waiting, "paused": s.paused},
        "state"),
    Row("stepper_joined", "Members that joined.", True, lambda s: s.joined),
    Row("stepper_failed", "Members that an exception ended.", True, lambda s: s.failed),
    Row("stepper_steps", "Steps computed.", True, lambda s: s.steps),
    Row("stepper_retries", "Parts of failed steps that were computed again.", True, lambda s: s.retries),
    Row("stepper_stepped", "Members in these steps, added up.", True, lambda s: s.stepped),
    Row("stepper_begun", "Members that had a first output.", True, lambda s: s.begun),
)  # fmt: skip
