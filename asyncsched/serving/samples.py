"""The numbers that are read when Prometheus asks: one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

    from ..flow.batcher.batcher import Batcher, BatcherStatistics
    from ..runtime.statistics import Statistics
    from .server import Serving


class Of(NamedTuple):
    """A metric: its name (counters get "_total"), its help, whether it only grows, and how to read its samples.

    What is read is one number, or numbers by label; None is left out.
    """

    name: str
    help: str
    counter: bool
    read: Callable[[Any], float | Mapping[str, float | None] | None]
    label: str = ""


def _tasks(s: Statistics) -> Mapping[str, float | None]:
    return {"completed": s.tasks_completed, "failed": s.tasks_failed, "cancelled": s.tasks_cancelled}


def _bytes(s: Statistics) -> Mapping[str, float | None]:
    return {"in_flight": s.bytes_in_flight, "retained": s.bytes_retained}


def _items(s: BatcherStatistics) -> Mapping[str, float | None]:
    return {"answered": s.answered, "dropped": s.dropped, "refused": s.refused}


SERVER: Final = (
    Of("requests_in_progress", "Requests let in and not answered.", False, lambda s: len(s.gate)),
    Of("requests_limit", "The most requests in progress.", False, lambda s: s.gate.most),
    Of("requests_refused", "Requests refused at the gate: full, draining, or a tenant's quota.", True,
       lambda s: s.gate.refused),
    Of("estimated_wait_seconds", "How long what is in progress and in the backlog will take.", False,
       lambda s: s.estimated_wait()),
    Of("ready", "1 while requests are taken, else 0.", False, lambda s: int(s.ready)),
)  # fmt: skip
SCHEDULER: Final = (
    Of("tasks", "Tasks ended, by outcome.", True, _tasks, "outcome"),
    Of("tasks_pending", "Tasks in the backlog.", False, lambda s: s.tasks_pending),
    Of("tasks_in_flight", "Tasks admitted and not ended.", False, lambda s: s.tasks_in_flight),
    Of("tracked_bytes", "Tracked bytes.", False, _bytes, "state"),
    Of("tracked_bytes_peak", "The most tracked bytes there ever were.", False, lambda s: s.peak_bytes),
    Of("tracked_bytes_limit", "The limit on tracked bytes.", False, lambda s: s.max_bytes),
    Of("admission_wait_seconds", "Time that callers waited for admission, added up.", True,
       lambda s: s.admission_wait_seconds),
)  # fmt: skip
BATCHERS: Final = (
    Of("batcher_items", "Items, by what became of them.", True, _items, "outcome"),
    Of("batcher_batches", "Batches computed.", True, lambda s: s.batches),
    Of("batcher_items_waiting", "Items in the queue.", False, lambda s: s.waiting),
    Of("batcher_cost_waiting", "What the items in the queue cost.", False, lambda s: s.waiting_cost),
    Of("batcher_wait_seconds", "Time that items waited for their batch, added up.", True, lambda s: s.wait_seconds),
)


def samples(serving: Serving, batchers: Mapping[str, Batcher[Any, Any]]) -> Collector:
    """A collector of Prometheus's that reads all rows."""
    from prometheus_client.registry import Collector

    class Samples(Collector):
        def collect(self) -> Iterator[Metric]:
            for row in SERVER:
                yield _metric(row, {(): serving})
            if serving.ready:
                statistics = serving.scheduler.statistics()
                for row in SCHEDULER:
                    yield _metric(row, {(): statistics})
            for row in BATCHERS if batchers else ():
                yield _metric(row, {(name,): batcher.statistics() for name, batcher in batchers.items()})

    return Samples()


def _metric(row: Of, sources: Mapping[tuple[str, ...], Any]) -> Metric:
    """One metric with its samples; `sources` are read, and named by the batcher's label where there are several."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if row.counter else GaugeMetricFamily
    labels = ["batcher"] * any(sources) + [row.label] * bool(row.label)
    metric = kind(f"asyncsched_{row.name}", row.help, labels=labels)
    for source, read_from in sources.items():
        found = row.read(read_from)
        for value, number in (found if isinstance(found, Mapping) else {"": found}).items():
            if number is not None:
                metric.add_metric([*source, value] if row.label else [*source], number)
    return metric
