"""The servers that are compared: `python -m bench.serving.app KIND PORT OPTIONS`, each a process of its own.

All answer POST /predict, JSON in and out, with the same perceptron on one BLAS thread. They differ in the place of the
computation: the handler itself, on the loop ("inline"); an executor's thread ("executor"); or a batcher on a stream
("asyncsched").
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import numpy as np

import asyncsched as asc
from asyncsched.serving import Exchange, Problem, Serving
from asyncsched.serving.endpoints import ENDPOINTS
from asyncsched.serving.http import App, ASGIScope, Receive, Send
from bench.perceptron import resident

from .load import many_files, quantiles
from .servers import free_port

Row = Any
Predict = Callable[[Row], Awaitable[int]]
BATCH = 32
TICK = 0.005
BACKLOG = 16_384


def weights(width: int) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = [(64, width), (width, width), (width, width), (width, 10)]
    return [rng.standard_normal(shape, np.float32) / np.float32(shape[0] ** 0.5) for shape in shapes]


def forward(layers: list[Any], x: Any, maximum: Callable[[Any, Any], Any]) -> Any:
    """The scores of rows, with NumPy's arrays or with tensors."""
    for layer in layers[:-1]:
        x = maximum(x @ layer, 0)
    return x @ layers[-1]


def application(predict: Predict) -> App:
    """An ASGI application without a framework."""

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError("only HTTP")
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        try:
            row = np.asarray(json.loads(body)["x"], np.float32)
        except ValueError:
            raise Problem(400, "Malformed JSON.") from None
        if row.shape != (64,) or not np.isfinite(row).all():
            raise Problem(422, "An item is 64 finite numbers.")
        answer = json.dumps({"digit": await predict(row)}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app


def row_by_row(width: int, *, in_a_thread: bool) -> App:
    layers = weights(width)

    def compute(row: Row) -> int:
        return int(forward(layers, row[None], np.maximum).argmax())

    async def predict(row: Row) -> int:
        return await asyncio.get_running_loop().run_in_executor(None, compute, row) if in_a_thread else compute(row)

    return application(predict)


class Batched:
    """The asyncsched server, and its statistics."""

    def __init__(self, width: int, max_bytes: str, **options: Any) -> None:
        self._host = weights(width)
        self._layers: list[asc.Tensor] = []
        self._lags: list[float] = []
        self._ticker: asyncio.Task[None] | None = None
        self.batcher: asc.Batcher[Row, int] = asc.Batcher(
            self._classify, max_batch_cost=BATCH, max_queue=options["max_requests"]
        )
        self.serving = Serving(
            application(self.batcher.__call__),
            functools.partial(asc.Scheduler, "cpu", max_bytes=max_bytes),
            batchers={"digits": self.batcher},
            endpoints={**ENDPOINTS, "/stats": self._stats},
            tenant=lambda scope: dict(scope["headers"]).get(b"x-tenant") or None,
            **options,
        )

    async def _classify(self, rows: list[Row]) -> list[int]:
        s = self.serving.scheduler
        if not self._layers:
            async with s.scope(name="weights"):
                self._layers = [await s.put(self._host.pop(0)) for _ in range(len(self._host))]
        scores = forward(self._layers, await s.put(np.stack(rows)), asc.maximum)
        return [int(digit) for digit in await asc.argmax(scores, axis=1).numpy()]

    async def _stats(self, serving: Serving, exchange: Exchange) -> None:
        """Numbers as JSON; the loop's lag is counted from one call to the next."""
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick())
        s, items = serving.scheduler.statistics(), self.batcher.statistics()
        found = {
            "lag": quantiles(self._lags),
            "rss": resident("VmRSS"),
            "peak_bytes": s.peak_bytes,
            "max_bytes": s.max_bytes,
            "completed": s.tasks_completed,
            "answered": items.answered,
            "batches": items.batches,
        }
        self._lags.clear()
        await exchange.respond(200, "application/json", json.dumps(found).encode())

    async def _tick(self) -> None:
        while True:
            now = perf_counter()
            await asyncio.sleep(TICK)
            self._lags.append(max(0.0, perf_counter() - now - TICK))


@asynccontextmanager
async def in_process(app: App) -> AsyncIterator[int]:
    """The application, served by this process at the given port."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=(port := free_port()), log_level="critical", backlog=BACKLOG))
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # it has no event
        await asyncio.sleep(0.01)
    yield port
    server.should_exit = True
    await running


def main(kind: str, port: str, options: str) -> None:
    many_files()
    found: dict[str, Any] = json.loads(options)
    import uvicorn

    if kind == "asyncsched":
        app: App = Batched(**found).serving
    else:
        app = row_by_row(found["width"], in_a_thread=kind == "executor")
    settings = {"log_level": "error", "access_log": False, "backlog": BACKLOG, "timeout_keep_alive": 120}
    uvicorn.run(app, host="127.0.0.1", port=int(port), **settings)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
