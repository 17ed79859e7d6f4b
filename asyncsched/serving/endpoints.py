"""What a server tells of itself. These requests pass no gate, so they are answered while the server is full."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from .exchange import Exchange
from .problems import Problem

if TYPE_CHECKING:
    from .server import Serving

Endpoint = Callable[["Serving", Exchange], Awaitable[None]]
_TEXT = "text/plain; charset=utf-8"


async def healthz(serving: Serving, exchange: Exchange) -> None:
    """Whether the process is alive: its event loop turns."""
    await exchange.respond(200, _TEXT, b"ok\n", {"cache-control": "no-store"})


async def readyz(serving: Serving, exchange: Exchange) -> None:
    """Whether it takes requests: open, and not draining."""
    if not serving.ready:
        raise Problem(503, "The server is not ready, or shutting down.", retry_after=1.0)
    await exchange.respond(200, _TEXT, b"ready\n", {"cache-control": "no-store"})


async def metrics(serving: Serving, exchange: Exchange) -> None:
    """Prometheus's text format."""
    if serving.metrics is None:
        raise Problem(501, "Metrics need prometheus-client on the server: pip install asyncsched[serving]")
    await exchange.respond(200, *serving.metrics.render())


ENDPOINTS: Final[Mapping[str, Endpoint]] = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}


async def answer(serving: Serving, endpoint: Endpoint, exchange: Exchange) -> None:
    """Answer GET and HEAD."""
    try:
        if exchange.scope["method"] not in ("GET", "HEAD"):
            raise Problem(405, "Use GET.")
        await endpoint(serving, exchange)
    except Problem as problem:
        await problem.answer(exchange)
