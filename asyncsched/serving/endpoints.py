"""The server's own endpoints: health, readiness, metrics, status. They pass no limit, so a full server answers them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from .http import Exchange, Problem
from .service import Service
from .status import PAGE, status

_TEXT = "text/plain; charset=utf-8"


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
    """What the scheduler does: a page for browsers, JSON for all else. Its lines and scopes stay inside."""
    headers = {"cache-control": "no-store", "vary": "accept"}
    if b"text/html" in (exchange.header(b"accept") or b""):
        await exchange.respond(200, "text/html; charset=utf-8", PAGE, headers)
    else:
        await exchange.respond(200, "application/json", json.dumps(status(service)).encode(), headers)


ENDPOINTS: Final[Mapping[str, Callable[[Service, Exchange], Awaitable[None]]]] = {
    "/healthz": healthz,
    "/readyz": readyz,
    "/metrics": metrics,
    "/statusz": statusz,
}
