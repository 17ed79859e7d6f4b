"""Servers whose model waits, so that what they can do does not depend on processors: `python -m bench.serving.waiting
KIND PORT OPTIONS`, each a process of its own.

A request takes 50 ms of the only stream: in a batch of up to four, by `s.call`, in four calls on tensors, or in twenty
tokens of 10 ms with three others (ten to thirty, drawn evenly). "fastapi" has a semaphore, a thread, and a time-out.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from functools import partial
from typing import Any

import numpy as np

import asyncsched as asc
from asyncsched.serving import Serving
from asyncsched.serving.http import ASGIScope, Receive, Send

from .app import BACKLOG
from .load import many_files

ITEM = 0.05  # seconds
_lengths = random.Random(0)


def model(items: list[Any]) -> list[Any]:
    time.sleep(ITEM * len(items))
    return items


def quarter(x: Any) -> Any:
    time.sleep(ITEM / 4)
    return x + 1


def step(texts: list[list[int]]) -> list[Any]:
    time.sleep(ITEM / 5)
    for text in texts:
        text[0] -= 1
    return [text[0] or asc.Last(0) for text in texts]


batcher: asc.Batcher[Any, Any] = asc.Batcher(model, max_batch_cost=4)
stepper: asc.Stepper[Any, Any] = asc.Stepper(step, max_cost=4)


async def compute(kind: str) -> None:
    s = asc.current_scheduler()
    if kind == "batch":
        await batcher(0)
    elif kind == "call":
        await s.call(model, [0])
    elif kind == "tensors":
        x = await s.put(np.zeros((64, 64)))
        for _ in range(4):
            x = s.submit_nowait(quarter, x, shape=x.shape, dtype=x.dtype) * 2
        await x.sum().item()
    else:
        async with stepper.join([_lengths.randint(10, 30)]) as outputs:
            async for _ in outputs:
                pass


async def app(kind: str, scope: ASGIScope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        raise NotImplementedError("only HTTP")
    await compute(kind)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


def with_fastapi(max_requests: int, deadline: float | None) -> Any:
    from fastapi import FastAPI, HTTPException

    fastapi, one, inside = FastAPI(), asyncio.Semaphore(1), set[object]()

    @fastapi.post("/predict")
    async def predict() -> dict[str, int]:
        if len(inside) >= max_requests:
            raise HTTPException(503)
        inside.add(me := object())
        try:
            async with asyncio.timeout(deadline), one:
                await asyncio.to_thread(model, [0])
        except TimeoutError:
            raise HTTPException(504) from None
        finally:
            inside.discard(me)
        return {}

    return fastapi


def main(kind: str, port: str, options: str) -> None:
    many_files()
    import uvicorn

    found = json.loads(options)
    limits = {"max_requests": found["max_requests"], "deadline": found["deadline"]}
    scheduler = partial(asc.Scheduler, "cpu", streams=1, max_ops=2, max_bytes="1 GiB")
    served = with_fastapi(**limits) if kind == "fastapi" else Serving(partial(app, kind), scheduler, **limits)
    uvicorn.run(
        served, host="127.0.0.1", port=int(port), log_level="error", access_log=False, backlog=BACKLOG,
        timeout_keep_alive=120,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
