"""A websocket feed with rolling statistics: a client sends rows, and gets the statistics of the last 1,000.

Each connection is a scope with a `reserve=`: others cannot stall it, and a new client waits while all bytes are
claimed. A server can run `feed:app`; here six clients speak ASGI to it: python demos/feed.py [MESSAGES]
"""

from __future__ import annotations

import asyncio
import sys

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

import asyncsched as asc
from asyncsched.serving import Serving

COLUMNS, ROWS, LIMIT = 16, 1000, "4 MiB"


async def feed(socket: WebSocket) -> None:
    async with socket.state.scheduler.scope(name="feed", reserve="1 MiB") as scope:
        await socket.accept()
        last = asc.zeros((0, COLUMNS))
        async for message in socket.iter_bytes():
            rows = await scope.put(np.frombuffer(message).reshape(-1, COLUMNS))
            last = asc.concat([last, rows])[-ROWS:].copy()  # a slice would keep the whole array
            await socket.send_bytes(np.stack(await asc.gather(last.mean(axis=0), last.std(axis=0))).tobytes())


app = Serving(Starlette(routes=[WebSocketRoute("/feed", feed)]), lambda: asc.Scheduler("cpu", max_bytes=LIMIT))


async def client(s: asc.Scheduler, messages: int, seed: int) -> None:
    sent, heard, rng, last = asyncio.Queue(), asyncio.Queue(), np.random.default_rng(seed), np.zeros((0, COLUMNS))
    socket = {"type": "websocket", "path": "/feed", "headers": [], "state": {"scheduler": s}}
    connection = asyncio.create_task(app(socket, sent.get, heard.put))  # as a server begins one
    await asyncio.gather(sent.put({"type": "websocket.connect"}), heard.get())
    for _ in range(messages):
        rows = rng.normal(seed, 1, (rng.integers(1, 300), COLUMNS))
        await sent.put({"type": "websocket.receive", "bytes": rows.tobytes()})
        told, last = np.frombuffer((await heard.get())["bytes"]), np.concatenate([last, rows])[-ROWS:]
        np.testing.assert_allclose(told, [*last.mean(axis=0), *last.std(axis=0)], rtol=1e-10, atol=1e-10)
    await asyncio.gather(connection, sent.put({"type": "websocket.disconnect", "code": 1000}))


async def main(messages: int) -> None:
    async with app.open() as s:  # as a server does it
        await asyncio.gather(*[client(s, messages, seed) for seed in range(6)])
    peak = s.statistics().peak_bytes / 2**20
    print(f"6 clients, {messages} answers each, as NumPy has them; peak {peak:.1f} MiB under a limit of {LIMIT}")


if __name__ == "__main__":
    asc.run(main(int(sys.argv[1]) if sys.argv[1:] else 20))
