"""## Exercise 3: CPU and GPU at once

Should one still insist on a barrier after every minibatch? No: each device would wait for the other. The quicker device
of each minibatch would be idle, and an epoch would take the sum of the slower times. The host's lead has to be bounded,
and that can be done for each device by itself: here by a loop for each, with its own window. The minibatches are uneven
on purpose: in turn, one is heavy on one device and light on the other.

Without a GPU the devices are `["cpu", "cpu"]`. Their work is to sleep, longer for heavy work, so they do not share
processors, as a GPU and a CPU would not. That shows which device waits for which, and nothing of a GPU's speed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter, sleep

import matplotlib.pyplot as plt
import numpy as np
from book import HERE, LIGHT, QUICK, duration, show

import asyncsched as asc
from asyncsched.devices.cuda.device import usable

MINIBATCHES, SIZE, ROUNDS = (4, 10_000, 1) if QUICK else (12, 8_000_000, 3)
UNIT = 0.002  # seconds of sleep
Spans = tuple[list[tuple[float, float]], ...]  # for each device, when each minibatch was worked on


async def two_devices() -> None:
    names = ["cuda", "cpu"] if usable() else ["cpu", "cpu"]
    print("devices:", names, "" if usable() else "(no GPU here)")
    figure, panels = plt.subplots(2, 1, figsize=(8, 3.4), sharex=True, layout="constrained")
    async with asc.Scheduler(names) as s:
        inputs = [await s.put(np.ones(SIZE, np.float32), device=device) for device in s.devices]
        for axes, way in zip(panels, (in_step, each_alone), strict=True):
            seconds, spans = min([await run(s, inputs, way) for _ in range(ROUNDS)])  # the quickest counts
            begin = min(start for of_one in spans for start, _ in of_one)
            for lane, of_one in enumerate(spans):
                drawn = [((start - begin) * 1e3, (end - start) * 1e3) for start, end in of_one]
                axes.broken_barh(drawn, (lane - 0.4, 0.8), color=(HERE, LIGHT)[lane], edgecolor="white")
            title = f"{way.__name__.replace('_', ' ')}: {duration(seconds)}"
            print(title)
            axes.set(title=title, yticks=(0, 1), yticklabels=names, ylim=(1.6, -0.6))
            axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("time (ms)")
    show(figure, "two_devices")


async def run(s: asc.Scheduler, inputs: list[asc.Tensor], way: Callable[..., Awaitable[None]]) -> tuple[float, Spans]:
    spans: Spans = ([], [])
    async with asc.Timer() as t:
        await way(s, inputs, spans)
    return t.seconds, spans


async def in_step(s: asc.Scheduler, inputs: list[asc.Tensor], spans: Spans) -> None:
    for t in range(MINIBATCHES):
        await asyncio.gather(*[note(issue(s, inputs[lane], lane, t), spans[lane]) for lane in (0, 1)])
        await s.barrier()


async def each_alone(s: asc.Scheduler, inputs: list[asc.Tensor], spans: Spans) -> None:
    async def loop(lane: int) -> None:
        window = s.window(2)
        async with asyncio.TaskGroup() as noting:
            for t in range(MINIBATCHES):
                async with window:
                    noting.create_task(note(issue(s, inputs[lane], lane, t), spans[lane]))

    await asyncio.gather(loop(0), loop(1))


def issue(s: asc.Scheduler, x: asc.Tensor, lane: int, t: int) -> tuple[float, Awaitable[object]]:
    """A minibatch's work on a device: heavy for one, light for the other. Returns when it was issued, and its last
    task."""
    begun, units = perf_counter(), 6 if t % 2 == lane else 1
    if not usable():
        return begun, s.submit_nowait(sleep, units * UNIT, device=x.device)
    for _ in range(units):
        x = asc.sin(x)
    return begun, x


async def note(work: tuple[float, Awaitable[object]], spans: list[tuple[float, float]]) -> None:
    """The time of the work on it: since it was issued, or since the one before was done."""
    begun, last = work
    await last
    spans.append((max(begun, spans[-1][1]) if spans else begun, perf_counter()))


if __name__ == "__main__":
    asc.run(two_devices)
