"""Several models in one server, under one limit: none takes the bytes that another needs.

Each model has a batcher, whose `reserve=` is the most that one of its batches takes: so other models cannot stall it.
The weights stay, and fit under the limit beside the reserves. Batches take turns on the streams by their bytes: a flood
for the large model leaves the small one its share.  python demos/several_models.py [REQUESTS]
"""

import asyncio
import sys

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import httpx
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

import asyncsched as asc
from asyncsched import nn
from asyncsched.serving import Problem, Serving

LIMIT, WIDTHS, models = "8 MiB", {"small": 64, "medium": 256, "large": 512}, {}  # the models make ten numbers of 1,000


class Model:
    def __init__(self, s: asc.Scheduler, width: int) -> None:
        self.network = nn.Sequential(nn.Linear(1000, width, rng=0), nn.ReLU(), nn.Linear(width, 10, rng=1))
        self.ask, self.s = asc.Batcher(self.answers, max_batch_cost=16, reserve="512 KiB"), s

    async def answers(self, rows: list[np.ndarray]) -> np.ndarray:
        with asc.no_grad():
            return await self.network(await self.s.put(np.stack(rows))).numpy()


async def answer(scope: dict, receive: object, send: object) -> None:  # ASGI: POST /small, the numbers as float32
    row, name = np.frombuffer(await Request(scope, receive).body(), np.float32), scope["path"][1:]
    if name not in models or len(row) != 1000:
        raise Problem(422, f"Send 1,000 numbers in float32, not {len(row):,}, to one of {', '.join(models)}.")
    await Response((await models[name].ask(row)).tobytes())(scope, receive, send)


async def main(requests: int) -> None:
    rows = np.random.default_rng(0).standard_normal((requests, 1000), np.float32)
    app = Serving(answer, lambda: asc.Scheduler("cpu", max_bytes=LIMIT))
    async with app.open() as s, httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
        models.update({name: Model(s, width) for name, width in WIDTHS.items()})
        names = np.resize(["large", "large", "medium", "small"], requests)
        sent = [client.post(f"http://localhost/{names[i]}", content=rows[i].tobytes()) for i in range(requests)]
        heard = np.stack([np.frombuffer(reply.content, np.float32) for reply in await asyncio.gather(*sent)])
        for name, model in models.items():
            w, b, v, c = await asc.gather(*[p.numpy() for p in model.network.parameters()])
            mine, told = names == name, model.ask.statistics()
            np.testing.assert_allclose(heard[mine], np.maximum(rows[mine] @ w.T + b, 0) @ v.T + c, rtol=1e-4, atol=1e-5)
            print(f"{name:6}  {told.answered} answers in {told.batches} batches, as NumPy has them")
    print(f"peak {s.statistics().peak_bytes / 2**20:.1f} MiB under a limit of {LIMIT}")


if __name__ == "__main__":
    asc.run(main(int(sys.argv[1]) if sys.argv[1:] else 200))
