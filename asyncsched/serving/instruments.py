"""Watching requests: Prometheus metrics and OpenTelemetry spans, each where its package is installed.

An instrument is a function of an exchange that returns a context manager, which is open while the request is handled.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .exchange import Exchange
from .samples import samples

if TYPE_CHECKING:
    from ..flow.batcher.batcher import Batcher
    from .server import Serving

Instrument = Callable[[Exchange], AbstractContextManager[None]]

_METHODS = {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}  # all else is "other": labels are bounded
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds; Prometheus's own, from 5 ms


def installed(module: str) -> bool:
    """Whether a package is there, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


class Metrics:
    """Counts and durations of requests, and what scheduler and batchers tell of themselves, for Prometheus."""

    def __init__(self, serving: Serving, batchers: Mapping[str, Batcher[Any, Any]]) -> None:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest

        self._content_type = CONTENT_TYPE_LATEST
        self._generate = generate_latest
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "asyncsched_requests",
            'Requests by method and status; "disconnected" where the client left before a response.',
            ("method", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "asyncsched_request_duration_seconds",
            "From the first byte of the application's work to the last of the response. Refusals are not in it.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(samples(serving, batchers))

    @contextmanager
    def __call__(self, exchange: Exchange) -> Iterator[None]:
        started = perf_counter()
        status = "500"  # what a server answers where an exception comes out, or nothing
        try:
            yield
            status = "disconnected" if exchange.disconnected else str(exchange.status or 500)
        finally:
            method = exchange.scope["method"]
            self._requests.labels(method if method in _METHODS else "other", status).inc()
            if status not in ("429", "503"):
                self._seconds.observe(perf_counter() - started)

    def render(self) -> tuple[str, bytes]:
        """The content type and the text."""
        return self._content_type, self._generate(self._registry)


class Spans:
    """A server span for each request, below the one that the client's `traceparent` names.

    Names and attributes are those of OpenTelemetry's semantic conventions for HTTP.
    """

    def __init__(self) -> None:
        from opentelemetry import propagate, trace

        self._trace = trace
        self._extract = propagate.extract
        self._tracer = trace.get_tracer("asyncsched.serving")

    @contextmanager
    def __call__(self, exchange: Exchange) -> Iterator[None]:
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in exchange.scope["headers"]}
        method = exchange.scope["method"] if exchange.scope["method"] in _METHODS else "_OTHER"
        with self._tracer.start_as_current_span(
            method,  # the route is the framework's to know, and the path has no bound
            context=self._extract(headers),
            kind=self._trace.SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": exchange.scope["path"]},
        ) as span:
            yield
            if exchange.status is not None:
                span.set_attribute("http.response.status_code", exchange.status)
            if exchange.disconnected or (exchange.status or 0) >= 500:
                span.set_attribute("error.type", "disconnected" if exchange.disconnected else str(exchange.status))
                span.set_status(self._trace.StatusCode.ERROR)
