"""## What a profiler shows

For a closer look the text points to the tools of chip vendors, NVIDIA's Nsight and Intel's VTune. They draw a track for
each thread or stream, with a slice for each piece of work, and counters. `asc.Trace` writes the same for a scheduler,
with the names of operations, to a file. https://ui.perfetto.dev opens the file, `python -m asyncsched trace` sums it
up, and this cell reads it. Three training steps, at most two in flight: the host issues ahead (each tick a task), the
stream works through what is queued, and the queue grows and empties.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
from book import HERE, LIGHT, QUICK, show

import asyncsched as asc
from asyncsched import nn
from asyncsched.observe import Recording
from asyncsched.observe.report import describe, findings

BATCH, STEPS = 64 if QUICK else 1024, 3


async def profiler() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        async with asc.Scheduler("cpu") as s:
            net = nn.Sequential(nn.Linear(512, 512, rng=0), nn.ReLU(), nn.Linear(512, 1, rng=1))
            trainer = asc.optim.SGD(net.parameters(), lr=0.01)
            await steps(s, net, trainer)  # warm up
            async with asc.Trace(path):
                await steps(s, net, trainer)
        recording = Recording.read(path)
    print("\n".join(fill(line, 110) for line in describe(*findings(recording, path.name)).splitlines()))
    show(draw(recording), "profiler")


async def steps(s: asc.Scheduler, net: nn.Module, trainer: asc.optim.SGD) -> None:
    X, y, window = np.ones((BATCH, 512), np.float32), np.ones((BATCH, 1), np.float32), s.window(2)
    for _ in range(STEPS):
        async with window:
            nn.mse_loss(net(await s.put(X)), await s.put(y)).backward()
            trainer.step()
            trainer.zero_grad()
    await s.barrier()


def draw(recording: Recording) -> object:
    figure, (tracks, queue) = plt.subplots(
        2, 1, figsize=(9, 4), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    streams = sorted({(task.copies, task.stream) for task in recording.tasks if task.began is not None})
    names = [name for _, name in streams]
    for task in recording.tasks:
        tracks.plot(task.submitted * 1e3, -1, "|", color="black")
        if task.began is not None and task.ended is not None:
            lane, colour = names.index(task.stream), LIGHT if "linear" in task.name else HERE
            span = (task.began * 1e3, (task.ended - task.began) * 1e3)
            tracks.broken_barh([span], (lane - 0.4, 0.8), color=colour, edgecolor="white", linewidth=0.3)
    tracks.set_title("products of matrices in orange", fontsize="medium", loc="left")
    tracks.set(yticks=range(-1, len(names)), yticklabels=["issued", *names], ylim=(len(names) - 0.4, -1.6))
    changes = sorted([(task.submitted, 1) for task in recording.tasks] + [(task.done, -1) for task in recording.tasks])
    times, change = np.array(changes).T
    queue.step(times * 1e3, np.cumsum(change), where="post", color=HERE)
    queue.set(xlabel="time (ms)", ylabel="tasks unfinished", ylim=(0, None))
    for axes in (tracks, queue):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    asc.run(profiler)
