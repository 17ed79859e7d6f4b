"""The costs of the scheduler itself: microseconds of the loop's thread for one operation, whatever other threads do.

Pending operations wait behind callables that hold every slot of one stream, until all are issued.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import thread_time
from typing import Any

import numpy as np

from .graphs import add_in_a_row, add_repeatedly, await_each, keep_each, on, pending
from .harness.contestant import Run, Work
from .harness.rows import OURS, Row, Target, alike
from .libraries import Library

SMALL = (8,)
FRAMES = 10  # of each feed
BEHIND = "asyncsched streams=1 max_ops=4"


async def issue(library: Library, n: int) -> Run:
    """Operations, without the barrier on them."""
    x = await library.put(np.ones(SMALL, np.float32))

    async def run(count: int) -> float:
        spent = 0.0
        for _ in range(count):
            started = thread_time()
            add_repeatedly(x, n)
            spent += thread_time() - started
            await library.finish([])
        return spent

    return run


async def call(library: Any, n: int) -> Run:
    async def run(count: int) -> None:
        for _ in range(n * count):
            await library.call(_nothing)

    return run


def _nothing() -> None:
    pass


async def spans(library: Any, n: int, *, by_hand: bool = False) -> Run:
    """Calls that have a span each, of the same attributes and current in the call's body: made by `Spans`, or by hand
    around the call."""
    from opentelemetry import context, trace
    from opentelemetry.sdk.trace import TracerProvider

    provider, observe = TracerProvider(shutdown_on_exit=False), library.xp.observe
    tracer = provider.get_tracer("by hand")

    async def call_with_span() -> None:
        span = tracer.start_span("nothing", attributes={"asyncsched.bytes": 0, "asyncsched.line": __file__})
        token = context.attach(trace.set_span_in_context(span))
        await library.call(_nothing)
        context.detach(token)
        span.set_attributes(_AT_THE_END)
        span.end()

    async def run(count: int) -> None:
        instrument = observe.Instrument() if by_hand else observe.Spans(tracer_provider=provider)
        library.s.add_instrument(instrument)
        for _ in range(n * count):
            await (call_with_span() if by_hand else library.call(_nothing))
        library.s.remove_instrument(instrument)

    return run


_AT_THE_END = {
    "asyncsched.state": "done", "asyncsched.stream": "cpu stream 0", "asyncsched.wait_seconds": 1e-5,
    "asyncsched.stream_wait_seconds": 1e-5, "asyncsched.run_seconds": 1e-5,
}  # fmt: skip


async def training(library: Any, n: int) -> Run:
    """Steps of a network so small that all its operations run on the loop's thread."""
    nn, rng = library.xp.nn, np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = library.xp.optim.SGD(model.parameters(), lr=0.01)
    x, target = [await library.put(rng.standard_normal((8, width)).astype(np.float32)) for width in (32, 1)]

    async def run(count: int) -> None:
        for _ in range(count):
            for _ in range(n):
                ((model(x) - target) ** 2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            await library.finish([])

    return run


async def feeds(library: Any, n: int) -> Run:
    """Frames of many feeds at the same time. The scope of each holds two, so a put waits until one is dropped."""
    frame = np.ones(1024, np.float32)

    async def produce(queue: asyncio.Queue[Any], count: int) -> None:
        async with library.s.scope(reserve=2 * frame.nbytes):
            for _ in range(count):
                await queue.put(await library.put(frame))

    async def consume(queue: asyncio.Queue[Any], count: int) -> None:
        for _ in range(count):
            held = await queue.get()
            for _ in range(5):  # turns of the loop: meanwhile the scope is full
                await asyncio.sleep(0)
            del held

    async def run(count: int) -> None:
        queues = [asyncio.Queue[Any]() for _ in range(n // FRAMES)]
        await asyncio.gather(*[work(one, count * FRAMES) for one in queues for work in (produce, consume)])

    return run


async def reserves(library: Any, n: int) -> Run:
    """Scopes that wait for their reserves at the same time. Four have theirs."""
    frame = np.ones(1024, np.float32)

    async def request() -> None:
        async with library.s.scope(reserve=frame.nbytes):
            await library.put(frame)

    async def run(count: int) -> None:
        for _ in range(count):
            async with library.s.scope(reserve=4 * frame.nbytes):
                await asyncio.gather(*[request() for _ in range(n)])

    return run


_pending = partial(pending, clock=thread_time)
WORKS: dict[str, Work] = {
    "issue": Work(issue, 200),
    "await": Work(on(SMALL, await_each), 100, clock=thread_time),
    "call": Work(call, 30, clock=thread_time),
    "spans": Work(spans, 30, clock=thread_time),
    "spans by hand": Work(partial(spans, by_hand=True), 30, clock=thread_time),
    "training": Work(training, 10, clock=thread_time),
    **{f"pending {n}": Work(partial(_pending, issue=keep_each), n) for n in (1_000, 20_000, 1_000_000)},
    **{f"feeds {n}": Work(feeds, n * FRAMES, clock=thread_time) for n in (10, 200)},
    **{f"reserves {n}": Work(reserves, n, clock=thread_time) for n in (100, 2_000)},
    "chain": Work(partial(_pending, issue=add_in_a_row), 20_000),
}
_FEEDS = {"of ten": (OURS, "heart.feeds 10"), "of 200": (OURS, "heart.feeds 200")}
_RESERVES = {"of a hundred": (OURS, "heart.reserves 100"), "of 2,000": (OURS, "heart.reserves 2000")}
_SPANS = {"by hand": (OURS, "heart.spans by hand"), "Spans": (OURS, "heart.spans")}
_MILLION = {"of a thousand": (BEHIND, "heart.pending 1000"), "of a million": (BEHIND, "heart.pending 1000000")}
ROWS = (
    Row("issue", "`x + 1`, issued", "us", alike("heart.issue", OURS)),
    Row("await", "`await (x + 1)`", "us", alike("heart.await", OURS)),
    Row("call", "`await s.call(fn)` of a function that does nothing", "us", alike("heart.call", OURS)),
    Row("spans", "the same, with a span", "us", _SPANS, {"Spans": Target(1.05, "the same spans, made by hand")}),
    Row("training", "a training step of some thirty small operations", "us", alike("heart.training", OURS)),
    Row("pending", "`x + 1`, 20,000 pending, issue to done", "us", {OURS: (BEHIND, "heart.pending 20000")}),
    Row("chain", "`x = x + 1`, 20,000 pending, issue to done", "us", {OURS: (BEHIND, "heart.chain")}),
    Row("bytes", "what Python keeps for a pending `x + 1` and its handle", "bytes", alike("graphs.bytes, kept", OURS)),
    Row("feeds", "a frame through a scope that is full, of so many", "us", _FEEDS),
    Row("reserves", "a scope with a reserve and a `put`, of so many that wait", "us", _RESERVES),
    Row("million", "`x + 1` pending, of a thousand and of a million", "us", _MILLION),
)
