"""A scheduler inside an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from .._arguments import check_int, check_number, parse_bytes
from ..errors import SchedulerClosed
from ..flow.batcher.batcher import Batcher
from ..scheduler import Scheduler
from .endpoints import ENDPOINTS, Endpoint, answer
from .exchange import App, ASGIScope, Exchange, Receive, Send
from .gate import Gate
from .instruments import Instrument, Metrics, Spans, installed
from .layers import compose
from .lifespan import run_lifespan
from .problems import Problem
from .signals import drain_on_sigterm

logger = logging.getLogger("asyncsched.serving")
_LAST = 1.0  # seconds for requests to end after they were cancelled


@dataclass(frozen=True)
class Options:
    """What a request may take."""

    deadline: float | Callable[[ASGIScope], float | None] | None
    reserve: int | None
    tenant: Callable[[ASGIScope], Hashable] | None
    max_body: int | None
    body_timeout: float | None


class Serving:
    """ASGI middleware: a scheduler for the application, and a scope for each request.

    The scheduler opens when the application starts. Handlers find it as the ambient one, and as `scheduler` in ASGI's
    state (`request.state.scheduler`). Each HTTP request is one scope: leaving it waits for its tasks, and a client that
    disconnects cancels it. WebSockets pass through. Add it below a framework's own error handler, as the frameworks'
    `add_middleware` does: exceptions that it knows become problem details, and the others pass. Add it last: what
    Starlette's `@app.middleware("http")` puts around it reports a client that left as an error, "No response returned".

    Args:
        app: the application.
        scheduler: makes the scheduler, once per start: `functools.partial(asyncsched.Scheduler, max_bytes="2 GiB")`.
        max_requests: most requests in progress. One more is answered 503, with Retry-After from the measured rate.
        max_requests_per_tenant: of one tenant. One more is answered 429. Requests that are nobody's have no such bound.
        tenant: finds out whose a request is from ASGI's scope, from its headers say; None where it is nobody's.
        deadline: seconds for one request, after which it is cancelled and answered 504; None for no bound. Or a
            function of ASGI's scope that gives them, where some answers are streams.
        reserve: bytes that each request claims before its handler runs; see `Scheduler.scope`.
        max_body: most bytes of a request's body. A larger one is answered 413. Bodies are read ahead, so
            max_requests * max_body is what they may take in all. None for no bound.
        body_timeout: seconds for a body to arrive, after which 408 is answered.
        drain_timeout: seconds for the requests in progress when the server shuts down. What is left then is cancelled
            and answered 503.
        batchers: to be shown in the metrics, by name.
        instruments: watch requests, besides Prometheus's metrics and OpenTelemetry's spans, which are there where their
            packages are.
        endpoints: paths answered here, for what the server tells of itself.
        drain_on_sigterm: refuse new requests from SIGTERM on, and hand the signal to the server when those in progress
            are answered. False leaves the signal alone.
    """

    def __init__(
        self,
        app: App,
        scheduler: Callable[[], Scheduler] = Scheduler,
        *,
        max_requests: int = 1024,
        max_requests_per_tenant: int | None = None,
        tenant: Callable[[ASGIScope], Hashable] | None = None,
        deadline: float | Callable[[ASGIScope], float | None] | None = None,
        reserve: int | str | None = None,
        max_body: int | str | None = "8 MiB",
        body_timeout: float | None = 30.0,
        drain_timeout: float = 30.0,
        batchers: Mapping[str, Batcher[Any, Any]] | None = None,
        instruments: Sequence[Instrument] = (),
        endpoints: Mapping[str, Endpoint] = ENDPOINTS,
        drain_on_sigterm: bool = True,
    ) -> None:
        check_int("max_requests", max_requests)
        check_int("max_requests_per_tenant", max_requests_per_tenant, none="no bound")
        check_number("deadline", None if callable(deadline) else deadline, "seconds", none="no bound")
        check_number("body_timeout", body_timeout, "seconds", none="no bound")
        check_number("drain_timeout", drain_timeout, "seconds", zero=True)
        self.app = app
        most_bytes = None if max_body is None else parse_bytes(max_body, "max_body")
        reserved = None if reserve is None else parse_bytes(reserve, "reserve")
        self.options = Options(deadline, reserved, tenant, most_bytes, body_timeout)
        self.gate = Gate(max_requests, max_requests_per_tenant)
        self.metrics = Metrics(self, batchers or {}) if installed("prometheus_client") else None
        found = (self.metrics, Spans() if installed("opentelemetry.trace") else None)
        self.instruments = [one for one in found if one is not None] + list(instruments)
        self._make_scheduler = scheduler
        self._scheduler: Scheduler | None = None
        self._drain_timeout = drain_timeout
        self._drained_by = 0.0  # in the loop's time, once draining has begun
        self._endpoints = endpoints
        self._heeds_sigterm = drain_on_sigterm
        self._handle = compose(self)

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await run_lifespan(self, scope, receive, send)
        elif scope["type"] != "http":
            await self.app(scope, receive, send)
        else:
            exchange = Exchange(scope, receive, send)
            endpoint = self._endpoints.get(scope["path"].removeprefix(scope.get("root_path", "")))
            await (self._handle(exchange) if endpoint is None else answer(self, endpoint, exchange))

    @property
    def ready(self) -> bool:
        """Whether requests are taken: the scheduler is open, and nothing drains."""
        return self._scheduler is not None and not self.gate.draining

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, while it is open.

        Raises:
            SchedulerClosed: otherwise.
        """
        if self._scheduler is None:
            raise SchedulerClosed(
                "the scheduler is not open: the server must run ASGI's lifespan (`uvicorn --lifespan on`), or a test"
                " `async with serving.open()`"
            )
        return self._scheduler

    def estimated_wait(self) -> float | None:
        """Seconds that what is in progress and in the backlog will take, by the measured rates; None if unknown."""
        found = [self.gate.estimated_wait(), self._scheduler.load().estimated_wait if self._scheduler else None]
        return max([seconds for seconds in found if seconds is not None], default=None)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Scheduler]:
        """Open the scheduler; at the end drain and close it. ASGI's lifespan does this; a test may."""
        self.gate.draining = False
        async with self._make_scheduler() as scheduler:
            self._scheduler = scheduler
            with drain_on_sigterm(self.drain) if self._heeds_sigterm else contextlib.nullcontext():
                try:
                    yield scheduler
                    await self.drain()
                    await self._close(scheduler)
                finally:
                    self.gate.draining = True
                    self._scheduler = None

    async def drain(self) -> None:
        """Refuse new requests, and wait for those in progress. After `drain_timeout` they are cancelled."""
        if not self.gate.draining:
            self.gate.draining = True
            self._drained_by = asyncio.get_running_loop().time() + self._drain_timeout
        try:
            async with asyncio.timeout_at(self._drained_by):
                await self.gate.empty()
        except TimeoutError:
            logger.warning("%d requests were cancelled after %g s of draining", len(self.gate), self._drain_timeout)
            self.gate.end_all(Problem(503, "The server is shutting down.", retry_after=1.0, close=True))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST):
                    await self.gate.empty()

    async def _close(self, scheduler: Scheduler) -> None:
        """Wait for what requests have left behind, a batch that nobody wants any more say."""
        left = self._drained_by - asyncio.get_running_loop().time()
        try:
            await scheduler.aclose(timeout=max(left, _LAST))
        except TimeoutError as error:
            logger.warning("%s", error)
