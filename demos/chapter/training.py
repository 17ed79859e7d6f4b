"""## Improving the memory footprint

Nothing keeps the front end from queueing a whole epoch: each minibatch takes it little time. The text trains a network
on mock data of 1,024 x 512 a minibatch, with a barrier after each and without. It asks `ps` for the resident set once,
when the epoch is over, and in its own outputs the loop without a barrier has grown less. So here a thread looks every
few milliseconds, and the peak counts. The minibatches have the same size. The network is smaller, so that there can be
more of them.

Three ways here: with a barrier, without one and without any limit, and without a barrier under a limit in bytes. The
last needs no barrier: `put` waits while there is no room. Without a limit the minibatches themselves wait, 2 MiB each.
"""

import threading
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
import psutil
from book import MEGABYTES_OF_2020, QUICK, SECONDS_OF_2020, duration, show

import asyncsched as asc
from asyncsched import nn

MINIBATCHES, MIB = 6 if QUICK else 300, 2**20
UNBOUNDED = {"max_ops": None, "max_bytes": None, "max_pending": None}
WAYS = {
    "barrier": UNBOUNDED,
    "at most 64 MiB": {"max_bytes": "64 MiB", "max_ops": None, "max_pending": None},
    "no barrier": UNBOUNDED,  # the last one, since the process may keep memory
}


async def training() -> None:
    print(f"{MINIBATCHES} minibatches{'issued':>16}{'finished':>12}{'peak of resident set':>24}")
    seen = {}
    for way, limits in WAYS.items():
        async with asc.Scheduler("cpu", **limits) as s:
            watch = Watch()
            async with asc.Timer(way) as t:
                await epoch(s, MINIBATCHES, way == "barrier")
            seen[way] = watch.stop()
        peak = f"{max(seen[way][1]):+.0f} MiB"
        print(f"{way:20}{duration(t.issue):>15}{duration(t.seconds):>12}{peak:>24}")
    print("\nThe text, 150 minibatches, the resident set measured once, at the end")
    for way, grown in MEGABYTES_OF_2020.items():
        issued, all_of_it = SECONDS_OF_2020.get(f"{way}, issued"), duration(SECONDS_OF_2020[way])
        print(f"{way:20}{duration(issued) if issued else '-':>15}{all_of_it:>12}{f'{grown:+.0f} MB':>24}")
    show(draw(seen), "training")


async def epoch(s: asc.Scheduler, minibatches: int, barrier: bool) -> None:
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.Linear(512, 256, rng=rng), nn.ReLU(), nn.Linear(256, 1, rng=rng))
    trainer = asc.optim.SGD(net.parameters(), lr=0.01)
    X, y = rng.standard_normal((1024, 512), np.float32), np.ones((1024, 1), np.float32)
    for _ in range(minibatches):
        loss = nn.mse_loss(net(await s.put(X)), await s.put(y))
        loss.backward()
        trainer.step()
        trainer.zero_grad()
        if barrier:
            await loss


class Watch:
    """Samples how much the resident set has grown, in a thread."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        self.ended, self.thread = threading.Event(), threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        resident = psutil.Process().memory_info
        started, before = perf_counter(), resident().rss
        while not self.ended.wait(0.005):
            self.samples.append((perf_counter() - started, (resident().rss - before) / MIB))

    def stop(self) -> np.ndarray:
        self.ended.set()
        self.thread.join()
        return np.array(self.samples).T


def draw(seen: dict[str, np.ndarray]) -> object:
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    for way, (times, grown) in seen.items():
        axes.plot(times, grown, label=f"{way}: {max(grown):.0f} MiB at most")
    axes.set(xlabel="time (s)", ylabel="growth of the\nresident set (MiB)", xlim=0, ylim=(0, None))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    asc.run(training)
