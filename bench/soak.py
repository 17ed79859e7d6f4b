"""The growth of a process in hours of work: a server beside a training, with all kinds of failures.

Requests come over real sockets: some are answered, others fail, are too large, too slow or cut short, and clients
leave. Steps fail and are cancelled. Pipelines, captures, scopes, reserves and short-lived schedulers are cancelled at
any moment. A sample is taken every few seconds. Growth is a line through the medians of tenths of the samples after the
first five minutes, with its standard error. The process is slowed down to an eighth of a processor. `--minutes` says
how long it runs.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import numpy as np

import asyncsched as asc
from asyncsched import nn, optim
from asyncsched.serving import Serving

from .harness.rows import ROOT, Result
from .harness.subjects import Together
from .harness.turns import Turns
from .perceptron import resident
from .serving.app import in_process
from .serving.load import connect, request
from .serving.servers import counted

SHARE, SETTLED, EVERY, SHOWN = 0.12, 300.0, 5.0, 400  # of one processor; seconds; seconds; samples that are kept
LIMIT, SMALL, LARGE = "4 MiB", np.ones((64, 64), np.float32), np.ones(1 << 16, np.float32)
PATHS = ("/batch", "/fails", "/slow", "/stream", "/metrics", "/statusz")
REQUESTS = [request(path, method="GET" if path in PATHS[-2:] else "POST") for path in PATHS]
REQUESTS += [request(body=b"x" * 100_000), request()[:-99]]
GROWS = {"resident": ("KiB", 2**-10, 1024.0), "objects": ("count", 1, 500), "blocks": ("count", 1, 5000)}
GROWS |= dict.fromkeys(("tasks", "threads", "files"), ("count", 1, 2))
"""The values that must not grow: unit, scale, and how much each may grow in an hour."""
KEPT = ("seconds", *GROWS, "bytes reserved", "in flight")
Doing = Callable[[asc.Scheduler], Awaitable[None]]


class Boom(Exception):
    """A failure on purpose."""


def boom(x: Any) -> Any:
    raise Boom


async def computing(s: asc.Scheduler) -> None:
    x, large = await s.put(SMALL), await s.put(LARGE)
    tasks = [await s.submit(np.matmul, x, x) for _ in range(8)]
    tasks[3].cancel()
    y = (await s.capture(lambda a: (a * 2 + 1) @ a, x))(x)
    for _ in range(50):
        y = y @ x
    await asyncio.gather(y[y > 0].numpy(), (large + 1).sum().item(), s.call(time.sleep, 0.003), *tasks)


async def scoping(s: asc.Scheduler) -> None:
    async with s.scope(reserve="2 MiB", deadline=0.02, tenant=random.randrange(9)) as scope, s.scope(reserve="1 MiB"):
        x = await scope.put(SMALL)
        bad = scope.submit_nowait(boom, x, shape=x.shape, dtype=x.dtype)
        await asyncio.gather((bad + x).sum().item(), scope.call(time.sleep, 0.01))


async def locking(s: asc.Scheduler) -> None:
    """More than the reserve: it gets the error, unless it was cancelled before."""
    async with s.scope(reserve="384 KiB"):
        await (await s.put(LARGE) + await s.put(LARGE))


async def piping(s: asc.Scheduler) -> None:
    pipe = s.pipeline(range(100)).map(lambda i: SMALL[0] * i if i % 50 < 49 else boom(i), workers=2).map(np.sqrt)
    async with pipe.batch(4).to_device().open() as batches:
        async for batch in batches:
            await batch.sum().item()


async def opening(s: asc.Scheduler) -> None:
    async with asc.Scheduler("cpu", streams=2, max_bytes=LIMIT) as other:
        await computing(other)
        await scoping(other)


async def cut_short(s: asc.Scheduler, *doings: Doing) -> None:
    """One of the activities, if there is time, cancelled by asyncio or by anyio."""
    doing, seconds = random.choice(doings), random.choice((None, 0.0, 0.001, 0.005, 0.02, 0.1))
    if random.random() < 0.5:
        await asyncio.wait_for(doing(s), seconds)
    else:
        with anyio.move_on_after(seconds):
            await doing(s)


class Soak:
    """The process, for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.every, self.began = seconds, min(EVERY, seconds / 20), time.monotonic()
        self.spent, self.left, self.counts = time.process_time(), dict[str, float](), Counter[str]()
        self.samples = np.full((int(seconds / self.every) + 1, len(KEPT)), np.nan)  # it grows by itself no more
        self.batcher: asc.Batcher[Any, float] = asc.Batcher(self.batch, max_batch_cost=8, max_queue=16, isolate=True)
        self.serving = Serving(
            self.app, partial(asc.Scheduler, "cpu", max_bytes=LIMIT), max_requests=16, max_requests_per_tenant=8,
            tenant=lambda _: random.randrange(3), deadline=0.1, reserve="64 KiB", max_body=50_000, body_timeout=0.2,
            batchers={"rows": self.batcher}, drain_on_sigterm=False,
        )  # fmt: skip

    async def run(self) -> None:
        gc.collect()
        gc.freeze()
        before, doings = self.sample(), [computing, scoping, piping, opening] * 8
        async with in_process(self.serving) as port:
            s = self.serving.scheduler
            self.model = nn.Sequential(nn.Linear(64, 64, rng=0), nn.Tanh(), nn.Linear(64, 1, rng=1))
            each = [*[partial(self.client, port)] * 4, *[partial(cut_short, s, *doings, locking)] * 3]
            async with asyncio.TaskGroup() as group:
                for doing in (*each, partial(cut_short, s, self.train)):
                    group.create_task(self.again_and_again(doing))
                for row in self.samples:
                    found = self.sample() | self.ledgers() | self.counts
                    row[:] = [found[key] for key in KEPT]
                    print(json.dumps(found), file=sys.stderr, flush=True)
                    await asyncio.sleep(self.every)
                    if not self.going():
                        break
            for _ in range(100):  # until abandoned tasks have ended
                await asyncio.sleep(0.1)
                gc.collect()
                self.left = self.ledgers()
                if not any(self.left.values()):
                    break
        gc.collect()
        after = self.sample()
        self.left |= {key: after[key] - before[key] for key in ("tasks", "threads", "files")}
        self.left["unexpected"] = self.counts["unexpected"]

    def going(self) -> bool:
        return time.monotonic() < self.began + self.seconds

    async def again_and_again(self, doing: Callable[[], Awaitable[None]]) -> None:
        """Pauses, so that the process takes its share."""
        while self.going():
            try:
                await doing()
                self.counts["done"] += 1
            except* (Boom, OSError, asc.errors.AsyncSchedError) as found:  # a TimeoutError is an OSError
                self.counts.update({type(error).__name__ for error in found.exceptions})
            except* BaseException as found:  # also a cancellation that nobody asked for
                print(f"unexpected: {found!r}", file=sys.stderr, flush=True)
                self.counts["unexpected"] += 1
            late = (time.process_time() - self.spent) / SHARE - (time.monotonic() - self.began)
            await asyncio.sleep(max(0.01, late) * random.uniform(0.5, 1.5))

    def sample(self) -> dict[str, float]:
        return {
            "seconds": time.monotonic() - self.began, "resident": resident("VmRSS"), "objects": len(gc.get_objects()),
            "blocks": sys.getallocatedblocks(), "tasks": len(asyncio.all_tasks()), "threads": threading.active_count(),
            "files": len(os.listdir("/dev/fd")),
        }  # fmt: skip

    def ledgers(self) -> dict[str, float]:
        """Charged bytes and waiting tasks, without the model's parameters."""
        now, items, model = self.serving.scheduler.statistics(), self.batcher.statistics(), self.model.parameters()
        return {
            "pending": now.tasks_pending, "in flight": now.tasks_in_flight, "bytes in flight": now.bytes_in_flight,
            "bytes retained": now.bytes_retained - sum(p.nbytes for p in model), "bytes reserved": now.bytes_reserved,
            "bytes pending": self.serving.scheduler.load().bytes_pending, "requests": len(self.serving.limiter),
            "adopted": len(self.serving.adopted), "items": items.waiting + items.computing,
        }  # fmt: skip

    # -- the server, its clients, and the training ---------------------------------------------------------------------

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse, StreamingResponse

        row = np.asarray(json.loads(await Request(scope, receive).body())["x"], np.float32)
        response: Any = PlainTextResponse("ok")
        match scope["path"]:
            case "/fails":
                await self.serving.scheduler.call(boom, 1)
            case "/slow":
                await self.serving.scheduler.call(time.sleep, random.choice((0.01, 0.3)))
            case "/stream":
                response = StreamingResponse(self.numbers(row), media_type="text/event-stream")
            case _:
                await self.batcher(row)
        await response(scope, receive, send)

    async def batch(self, rows: list[Any]) -> list[float]:
        y = self.model(await self.serving.scheduler.put(np.stack(rows)))
        return [float(number) for number in await y.sum(axis=1).numpy()]

    async def numbers(self, row: Any) -> AsyncIterator[str]:
        for _ in range(20):
            yield str(await self.batch([row]))
            await asyncio.sleep(0.005)

    async def client(self, port: int) -> None:
        """A connection with some requests. It may leave before the last answer."""
        connection, asked = await connect(port), None
        for _ in range(random.randrange(4)):
            if asked is None or asked.done():
                asked = asyncio.ensure_future(connection.ask(random.choice(REQUESTS)))
                await asyncio.wait([asked], timeout=random.choice((0.0, 0.001, 0.01, 0.5)))
                self.counts[str(asked.result()) if asked.done() else "left"] += 1
        random.choice((connection.transport.close, connection.transport.abort))()

    async def train(self, s: asc.Scheduler) -> None:
        """Some steps. Some of them fail or are cancelled."""
        rng, window, optimizer = np.random.default_rng(0), s.window(2), optim.Adam(self.model.parameters(), lr=1e-3)
        async with s.scope(name="training", priority=-1) as scope:
            for kind in random.choices(range(8), k=random.randrange(10)):
                with suppress(Boom, ExceptionGroup, asc.errors.AsyncSchedError):
                    async with window:
                        x = await scope.put(rng.standard_normal((64, 64), np.float32))
                        if kind == 0:
                            x = scope.submit_nowait(boom, x, shape=x.shape, dtype=x.dtype)
                        loss = nn.mse_loss(self.model(x), x[:, :1])
                        loss.backward()
                        if kind in (1, 2):
                            (loss if kind == 1 else self.model[0].weight.grad).cancel()
                        optimizer.step()
                        optimizer.zero_grad()
                        assert np.isfinite(await loss.item())
                        self.counts["steps"] += 1
                await asyncio.sleep(0.005)


def rows(samples: Any, seconds: float, counts: Mapping[str, int], left: Mapping[str, float]) -> Iterator[Result]:
    """The results, with the samples in the last row."""
    samples = samples[~np.isnan(samples[:, 0])]
    settled = samples[samples[:, 0] >= min(SETTLED, seconds / 4)]
    parts = np.array([np.median(part, axis=0) for part in np.array_split(settled, 10)])
    for key, (unit, scale, most) in GROWS.items():
        line, covariance = np.polyfit(parts[:, 0] / 3600, parts[:, KEPT.index(key)] * scale, 1, cov=True)
        note = f"standard error {covariance[0, 0] ** 0.5:.2g}"
        yield counted(key, f"{key}: growth an hour", float(line[0]), "nothing is left", note, most=most, unit=unit)
    told = ", ".join(f"{key}: {count:,}" for key, count in sorted(counts.items()))
    note = f"in {seconds / 60:g} minutes {told}; left {dict(left)}"
    found = counted("ledgers", "left in the ledgers", sum(map(abs, left.values())), "nothing leaks", note)
    thin = samples[:: -(-len(samples) // SHOWN)].T.tolist()
    yield found | {"samples": dict(zip(KEPT, thin, strict=True))}


def soak(turns: Turns) -> Iterator[Result]:
    """In a process of its own, with one arena. glibc has more by default, which keep memory that ended threads have
    freed."""
    command = (sys.executable, "-m", "bench.soak", str(4.0 if turns.quick else turns.minutes * 60))
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    yield from json.loads(done.stdout)


ROWS = (Together("soak", soak),)

if __name__ == "__main__":
    one = Soak(float(sys.argv[1]))
    asyncio.run(one.run())
    print(json.dumps([*rows(one.samples, one.seconds, one.counts, one.left)]))
