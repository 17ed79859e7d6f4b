"""A server beside a training, in one process and under one limit: it answers while the model learns.

The training is a scope of a lower priority, so requests go before pending steps. Each request claims its bytes, so the
training cannot stall it. A step moves all parameters at once, so an answer is of one step, never of half of one. The
training does not suffer: its losses are those of a training alone.  python demos/serve_and_train.py [STEPS]
"""

import asyncio
import sys

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import httpx
import numpy as np
from starlette.responses import JSONResponse

import asyncsched as asc
from asyncsched import nn, optim
from asyncsched.serving import Serving

POINT, X, LIMIT = np.ones((1, 1), np.float32), np.linspace(-3, 3, 4000, dtype=np.float32).reshape(-1, 1), "4 MiB"


async def train(s: asc.Scheduler, model: nn.Module, steps: int) -> list[list[float]]:
    optimizer, window, losses, said = optim.Adam(model.parameters(), lr=0.01), s.window(2), [], []
    async with s.scope(name="training", priority=-1) as scope:
        x, y, point = await scope.put(X), await scope.put(np.sin(X)), await scope.put(POINT)
        for _ in range(steps):
            async with window:
                said.append(model(point).detach())  # of a point, before this step
                losses.append(nn.mse_loss(model(x), y))
                losses[-1].backward()
                optimizer.step()
                optimizer.zero_grad()
        said.append(model(point).detach())
        return [await asc.gather(*[number.item() for number in numbers]) for numbers in (losses, said)]


async def main(steps: int) -> None:
    async def answer(scope: dict, receive: object, send: object) -> None:  # ASGI
        with asc.no_grad():
            y = model(await scope["state"]["scheduler"].put(POINT))
        await JSONResponse(await y.item())(scope, receive, send)

    app = Serving(answer, lambda: asc.Scheduler("cpu", max_bytes=LIMIT), reserve="256 KiB")
    async with app.open() as s, httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
        before, model = (nn.Sequential(nn.Linear(1, 32, rng=0), nn.Tanh(), nn.Linear(32, 1, rng=1)) for _ in range(2))
        alone, said = await train(s, before, steps)
        training, heard = asyncio.create_task(train(s, model, steps)), []
        while not training.done():
            heard.append((await client.get("http://localhost/")).json())
    assert await training == [alone, said]
    assert set(heard) <= set(said)
    print(f"loss {alone[0]:.3f} to {alone[-1]:.4f} in {steps} steps, as alone; {len(heard)} answers, each of one step")
    print(f"peak {s.statistics().peak_bytes / 2**20:.1f} MiB under a limit of {LIMIT}")


if __name__ == "__main__":
    asc.run(main(int(sys.argv[1]) if sys.argv[1:] else 200))
