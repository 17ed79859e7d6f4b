"""## Exercise 2: overlap by exactly one minibatch

Batch $b_t$ shall be finished before $b_{t+2}$ begins, and may overlap with $b_{t+1}$. That is `s.window(2)` around the
body of the loop. The host prepares each minibatch for a while, and notes when it begins. A task that needs the loss,
and so runs after it, notes when the minibatch is finished. With `s.window(1)` nothing overlaps; without a window the
host runs ahead as far as it can.
"""

import asyncio
from contextlib import nullcontext
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
from book import show

import asyncsched as asc
from asyncsched import nn

MINIBATCHES = 8
DEPTHS = (1, 2, None)


async def overlap_by_one() -> None:
    figure, panels = plt.subplots(1, 3, figsize=(10, 2.8), sharey=True, layout="constrained")
    for axes, depth in zip(panels, DEPTHS, strict=True):
        name = f"window({depth})" if depth else "no window"
        began, ended = min([await epoch(depth) for _ in range(3)], key=lambda epoch: epoch[1][-1])  # the quickest
        ahead = max(int(np.sum(ended[:t] > began[t])) for t in range(MINIBATCHES))
        in_order = bool(np.all(ended[:-2] < began[2:]))
        print(f"{name:10} {ended[-1] * 1e3:4.0f} ms; b(t) finished before b(t+2) began: {in_order!s:5}", end="; ")
        print(f"unfinished when another began: at most {ahead}")
        axes.barh(range(MINIBATCHES), (ended - began) * 1e3, left=began * 1e3, color="tab:blue")
        axes.set(title=name, xlabel="time (ms)", xlim=0)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("minibatch")
    panels[0].invert_yaxis()
    show(figure, "overlap_by_one")


async def epoch(depth: int | None) -> tuple[np.ndarray, np.ndarray]:
    """When each minibatch began and when it was finished, in seconds."""
    began, ended = np.zeros(MINIBATCHES), np.zeros(MINIBATCHES)
    async with asc.Scheduler("cpu") as s:
        net = nn.Sequential(nn.Linear(512, 512, rng=0), nn.ReLU(), nn.Linear(512, 1, rng=1))
        trainer = asc.optim.SGD(net.parameters(), lr=0.01)
        X, y = await s.put(np.ones((1024, 512), np.float32)), await s.put(np.ones((1024, 1), np.float32))
        await net(X)  # warm up
        window, start = s.window(depth) if depth else nullcontext(), perf_counter()

        def finished(t: int, loss: np.ndarray) -> None:
            ended[t] = perf_counter() - start

        for t in range(MINIBATCHES):
            async with window:
                began[t] = perf_counter() - start
                await asyncio.sleep(0.005)  # the host prepares it
                loss = nn.mse_loss(net(X), y)
                loss.backward()
                trainer.step()
                trainer.zero_grad()
                s.submit_nowait(finished, t, loss, nbytes=0)
    return began, ended


if __name__ == "__main__":
    asc.run(overlap_by_one)
