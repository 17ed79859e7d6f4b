"""The server's own endpoints: health, readiness, metrics, status. They pass no limit, so a full server answers them.

The page of the status shows no data of requests, and no lines of the program.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

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
