"""A web server for a model: JSON in and out, a stream of events, and a page that shows the server's state.

An MLP learns scikit-learn's handwritten digits in the first seconds, or is loaded from a file. Each request is a scope.
Requests that come at the same time are computed as one batch. A batch takes 50 ms longer than this small model needs,
to stand for a larger model. Beyond the limits requests are refused at once, with the time to come back. The page at /
draws digits, and charts the queue, bytes, batches and latency. Its button sends more requests than the server can
answer (`server_load.py`): the queue fills, and more requests are refused.

    python demos/server.py [--port 8000] [--max-bytes "64 MiB"] [--model digits.safetensors]
    curl -d '{"pixels": [0, 0, 5, 13, 9, 1, 0, 0, ... 64 numbers from 0 to 16]}' localhost:8000/predict
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

if __name__ == "__main__":
    print(__doc__.splitlines()[0], "Loading ...", flush=True)  # now, since the imports below take a while

import numpy as np
import uvicorn
from sklearn.datasets import load_digits
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.routing import Route

import asyncsched as asc
from asyncsched import nn
from asyncsched.serving import Exchange, Problem, Serving

PAGE = Path(__file__).with_suffix(".html")
LOAD = Path(__file__).with_name("server_load.py")
EVERY = 0.5  # seconds between two events of the stream
EPOCHS, SIZE = 15, 64
BATCH, QUEUE = 32, 128  # most digits that are computed together, and most that may wait


class Digits:
    """The model, behind a batcher."""

    def __init__(self, device: str, max_bytes: str, path: Path | None, batch_ms: float) -> None:
        self.device, self.max_bytes, self.path, self.longer = device, max_bytes, path, batch_ms / 1e3
        self.is_saved = path is not None and path.exists()
        self.batcher: asc.Batcher[Any, Any] = asc.Batcher(
            self._classify, max_batch_cost=BATCH, max_queue=QUEUE, isolate=True
        )

    def make_scheduler(self) -> asc.Scheduler:
        self.scheduler = asc.Scheduler(self.device, max_bytes=self.max_bytes)
        return self.scheduler

    async def open(self) -> float:
        """Load the model, or train it. Returns its accuracy on a fifth of the images, on which it was not trained."""
        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(images))
        test, training = np.split(order, [len(order) // 5])
        model = self.model = nn.Sequential(nn.Linear(64, 512, rng=0), nn.ReLU(), nn.Linear(512, 10, rng=1))
        if self.path is not None and self.is_saved:
            model.load_state_dict(await asc.load(self.path))
        else:
            await self._train(images[training], labels[training])
            if self.path is not None:
                await asc.save(self.path, model.state_dict())
        found = await self._classify(list(scaled(images[test])))
        return float(np.mean(np.argmax(found, axis=1) == labels[test]))

    async def _train(self, images: Any, labels: Any) -> None:
        s = self.scheduler
        optimizer, window = asc.optim.AdamW(self.model.parameters(), lr=2e-3), s.window(2)
        rng = np.random.default_rng(0)
        for _ in range(EPOCHS):
            for chosen in np.array_split(rng.permutation(len(images)), len(images) // SIZE):
                x, y = await s.put(scaled(images[chosen])), await s.put(labels[chosen])
                async with window:
                    nn.cross_entropy(self.model(x), y).backward()
                    optimizer.step()
                    optimizer.zero_grad()

    async def _classify(self, rows: list[Any]) -> Any:
        """The probabilities of a batch: rows of 64 pixels in, rows of 10 out."""
        await self.scheduler.call(time.sleep, self.longer)
        with asc.no_grad():
            scores = self.model(await self.scheduler.put(np.stack(rows)))
            return await nn.softmax(scores, axis=1).numpy()


def scaled(pixels: Any) -> Any:
    return np.asarray(pixels, np.float32) / 8 - 1


class Latencies:
    """An instrument: how long predictions took, lately."""

    def __init__(self) -> None:
        self.recent: deque[tuple[float, float]] = deque(maxlen=10_000)  # when, and milliseconds

    @contextmanager
    def __call__(self, exchange: Exchange) -> Iterator[None]:
        started = perf_counter()
        yield
        if exchange.status == 200 and exchange.scope["path"] == "/predict":
            self.recent.append((perf_counter(), 1e3 * (perf_counter() - started)))

    def since(self, when: float) -> list[float]:
        return [milliseconds for at, milliseconds in self.recent if at >= when]


class Site:
    """The answers, by path."""

    def __init__(self, digits: Digits, latencies: Latencies) -> None:
        self.digits = digits
        self.latencies = latencies
        self.loaded = False  # whether load is being sent
        self.routes = [
            Route("/", self.page),
            Route("/predict", self.predict, methods=["POST"]),
            Route("/live", self.live),
            Route("/load", self.load, methods=["POST"]),
        ]

    async def page(self, request: Request) -> FileResponse:
        return FileResponse(PAGE)

    async def predict(self, request: Request) -> JSONResponse:
        """{"pixels": 64 numbers from 0 to 16} gives {"digit": 3, "probabilities": 10 numbers}."""
        try:
            pixels = np.asarray((await request.json())["pixels"], np.float32)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # the last two: 10**400, and "[[[[..."
            raise Problem(400, 'Send JSON: {"pixels": [...]}, with 64 numbers from 0 to 16.') from None
        if pixels.shape != (64,) or not np.all((pixels >= 0) & (pixels <= 16)):
            raise Problem(422, f"A digit is 64 numbers from 0 to 16, in one list; these have the shape {pixels.shape}.")
        probabilities = await self.digits.batcher(scaled(pixels))
        return JSONResponse({"digit": int(probabilities.argmax()), "probabilities": probabilities.round(4).tolist()})

    async def live(self, request: Request) -> StreamingResponse:
        """The server's state as server-sent events, until the client leaves or the server drains."""
        events = self._events(request.state.serving)
        return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def load(self, request: Request) -> StreamingResponse:
        """Send load to this server, from a process of its own: lines of JSON with the answers so far, by status."""
        if self.loaded:
            raise Problem(409, "Load is being sent already.")
        self.loaded = True
        host, port = request.scope["server"]
        return StreamingResponse(self._answers(request.state.serving, host, port), media_type="application/x-ndjson")

    async def _answers(self, serving: Serving, host: str, port: int) -> AsyncIterator[bytes]:
        command = [sys.executable, str(LOAD), host, str(port)]
        try:
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            assert process.stdout is not None
            try:
                async for line in process.stdout:
                    yield line
                    if not serving.ready:
                        break
            finally:
                if process.returncode is None:
                    process.terminate()
        finally:
            self.loaded = False

    async def _events(self, serving: Serving) -> AsyncIterator[str]:
        before, when = self.digits.batcher.statistics(), perf_counter()
        while serving.ready:
            await asyncio.sleep(EVERY)
            now, took = self.digits.batcher.statistics(), self.latencies.since(when)
            state = state_of(serving, before, now, took)
            before, when = now, perf_counter()
            yield f"data: {json.dumps(state)}\n\n"


def state_of(serving: Serving, before: Any, now: Any, took: list[float]) -> dict[str, Any]:
    """The numbers of the page: the present state, and the events since the last time."""
    s = serving.scheduler.statistics()
    answered, batches = now.answered - before.answered, now.batches - before.batches
    p50, p99 = np.percentile(took, (50, 99)) if took else (0, 0)
    return {
        "queue": now.waiting,
        "full": QUEUE,
        "bytes": serving.scheduler.tracked_bytes,
        "limit": s.max_bytes,
        "batch": answered / batches if batches else 0,
        "p50": float(p50),
        "p99": float(p99),
        "rate": answered / EVERY,
        "answered": now.answered,
        "dropped": now.dropped,
        "refused": now.refused + serving.limiter.refused,
    }


def application(options: argparse.Namespace) -> Starlette:
    digits = Digits(options.device, options.max_bytes, options.model, options.batch_ms)
    latencies = Latencies()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        accuracy = await digits.open()
        print(f"test accuracy {accuracy:.1%}; open http://{options.host}:{options.port}", flush=True)
        yield

    serving = Middleware(
        Serving,
        scheduler=digits.make_scheduler,
        max_requests=options.max_requests,
        max_body="16 KiB",
        body_timeout=5.0,
        deadline=lambda scope: 2.0 if scope["path"] == "/predict" else None,  # the stream has none
        drain_timeout=10.0,
        batchers={"digits": digits.batcher},
        instruments=[latencies],
    )
    return Starlette(routes=Site(digits, latencies).routes, middleware=[serving], lifespan=lifespan)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", default="cpu", help="the model's device (default %(default)s: the model is small)")
    parser.add_argument("--max-bytes", default="64 MiB", help="the limit on tracked bytes")
    parser.add_argument("--max-requests", type=int, default=512, help="the limit on requests in progress")
    parser.add_argument(
        "--batch-ms", type=float, default=50, help="milliseconds that a batch takes longer (default %(default)g)"
    )
    parser.add_argument("--model", type=Path, metavar="PATH", help="load the model from there, or save it there")
    options = parser.parse_args()
    uvicorn.run(application(options), host=options.host, port=options.port, log_level="warning", access_log=False)
