"""How far may the host run ahead? One training, four ways, with the time and the memory of each.

Minibatches are made on the host one after another, put on the device, and train a multi-layer perceptron by SGD:

    barrier     a barrier after each minibatch: the host never runs ahead
    window(2)   at most two minibatches in flight
    bounded     at most 64 operations in flight, and at most --max-bytes tracked
    unbounded   no limit at all: the host queues a whole epoch as fast as it can

The loop is the same for all four. Losses stay on the device and are read once per epoch. Each way runs in a process of
its own, so that resident sets compare. Tracked bytes count from the moment at which a task is admitted. On the CPU its
buffer is taken only when the task starts, so there the resident set grows less: by the minibatches that wait. BLAS
leaves one processor to the host unless --blas-threads says otherwise. Its threads wait for each other, so if one of
them shared its processor with the host, all would be slow.

    python demos/bounded_vs_unbounded.py [--data synthetic|digits] [--max-bytes "64 MiB"] [--plot PATH]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

if __name__ == "__main__" and "--way" not in sys.argv:
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np
import psutil
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from tqdm import tqdm

import asyncsched as asc
from asyncsched import nn

WAYS = ("barrier", "window(2)", "bounded", "unbounded")
MIB = 2**20
Batches = Iterator[tuple[NDArray[np.float32], NDArray[Any]]]
Result = dict[str, Any]


class Digits:
    """Images of handwritten digits, 8 x 8. A fifth of them is held out."""

    sizes, rate, size = (64, 512, 256, 10), 0.2, 64
    epochs, max_bytes = 20, "5 MiB"

    def __init__(self, batches: int | None) -> None:
        from sklearn.datasets import load_digits

        self.images, self.labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(self.images))
        self.test, self.train = np.split(order, [len(order) // 5])
        self.count = min(batches or sys.maxsize, len(self.train) // self.size)

    def batches(self, rng: np.random.Generator) -> Batches:
        order = rng.permutation(self.train)
        for i in range(self.count):
            chosen = order[i * self.size : (i + 1) * self.size]
            yield self.normalised(chosen), self.labels[chosen]

    def normalised(self, chosen: NDArray[np.intp]) -> NDArray[np.float32]:
        return np.asarray(self.images[chosen] / 8 - 1, np.float32)

    loss = staticmethod(nn.cross_entropy)

    async def accuracy(self, s: asc.Scheduler, model: nn.Module) -> float | None:
        with asc.no_grad():
            guessed = asc.argmax(model(await s.put(self.normalised(self.test))), axis=1)
        right = asc.sum(guessed == await s.put(self.labels[self.test]))
        return float(await right.item() / len(self.test))


class Synthetic:
    """Random vectors, and a function of them to learn: 8 MiB a batch, at hardly any cost for the host."""

    sizes, rate, size = (512, 256, 1), 0.003, 4096
    epochs, max_bytes = 1, "64 MiB"

    def __init__(self, batches: int | None) -> None:
        rng = np.random.default_rng(0)
        self.direction = rng.standard_normal((512, 1), np.float32) / np.float32(512**0.5)
        self.vectors = rng.standard_normal((2 * self.size, 512), np.float32)
        self.count = batches or 50

    def batches(self, rng: np.random.Generator) -> Batches:
        for begin in rng.integers(0, self.size, self.count):
            x = self.vectors[begin : begin + self.size]
            yield x, np.tanh(x @ self.direction)

    loss = staticmethod(nn.mse_loss)

    async def accuracy(self, s: asc.Scheduler, model: nn.Module) -> float | None:
        return None


async def train(way: str, data: Digits | Synthetic, epochs: int, max_bytes: str) -> Result:
    """Train one way. Returns its times, its peaks, samples of its memory, and how well it learned."""
    no_limits = {"max_ops": None, "max_bytes": None, "max_pending": None}
    rng = np.random.default_rng(0)
    async with asc.Scheduler(**({"max_ops": 64, "max_bytes": max_bytes} if way == "bounded" else no_limits)) as s:
        window = s.window(2) if way == "window(2)" else nullcontext()
        model = perceptron(data.sizes, rng)
        optimizer = asc.optim.SGD(model.parameters(), lr=data.rate)
        memory = Memory(s, tqdm(total=epochs * data.count, desc=f"{way:9}", unit="batch", miniters=0, disable=None))
        seconds = []
        for _ in range(epochs):
            begun, losses = perf_counter(), []
            for images, targets in data.batches(rng):
                async with window:
                    loss = data.loss(model(await s.put(images)), await s.put(targets))
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(loss.detach())
                if way == "barrier":
                    await s.barrier()
                memory.bar.update()
            await s.barrier()
            final = float(np.mean(await asc.stack(losses[-10:]).numpy()))
            seconds.append(perf_counter() - begun)
        result = await memory.stop()
        result |= {"peak": s.statistics().peak_bytes, "limit": s.statistics().max_bytes}
        result |= {"seconds": median(seconds)}
        return result | {"loss": final, "accuracy": await data.accuracy(s, model)}


def perceptron(sizes: tuple[int, ...], rng: np.random.Generator) -> nn.Sequential:
    """Linear layers of these sizes, with a ReLU between each two."""
    layers: list[nn.Module] = []
    for n, m in pairwise(sizes):
        layers += [nn.Linear(n, m, rng=rng), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Memory:
    """Samples the resident set in a thread, and tracked bytes on the event loop: only the loop's thread may ask the
    scheduler."""

    def __init__(self, s: asc.Scheduler, bar: tqdm[Any]) -> None:
        self.s, self.bar = s, bar
        self.resident: list[tuple[float, int]] = []
        self.tracked: list[tuple[float, int]] = []
        self.process, self.ended = psutil.Process(), threading.Event()
        self.begun, self.before = perf_counter(), self.process.memory_info().rss
        self.thread = threading.Thread(target=self._sample_resident, daemon=True)
        self.thread.start()
        self.task = asyncio.create_task(self._sample_tracked())

    async def stop(self) -> Result:
        self.ended.set()
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        self.thread.join()
        self.bar.close()
        return {"growth": max(n for _, n in self.resident), "resident": self.resident, "tracked": self.tracked}

    def _sample_resident(self) -> None:
        while True:
            self.resident.append((perf_counter() - self.begun, self.process.memory_info().rss - self.before))
            if self.ended.wait(0.01):
                return

    async def _sample_tracked(self) -> None:
        while True:
            now = perf_counter()
            nbytes = self.s.tracked_bytes
            self.tracked.append((now - self.begun, nbytes))
            self.bar.set_postfix_str(f"{mib(nbytes)} tracked", refresh=False)
            self.bar.update(0)
            await asyncio.sleep(0.01)


def main(options: argparse.Namespace) -> None:
    data = DATA[options.data]
    epochs, max_bytes = options.epochs or data.epochs, options.max_bytes or data.max_bytes
    if options.way:
        with threadpool_limits(options.blas_threads, user_api="blas"):
            result = asc.run(train(options.way, data(options.batches), epochs, max_bytes))
        print(json.dumps(result))
        return
    results = {}
    for way in WAYS:
        child = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        results[way] = json.loads(subprocess.run(child, stdout=subprocess.PIPE, check=True).stdout)
    table(results)
    sentence(results)
    draw(results, f"The same training ({options.data} data), four ways", options.plot)


def table(results: dict[str, Result]) -> None:
    tested = results["barrier"]["accuracy"] is not None
    heads = f"{'time per epoch':>16}{'peak tracked':>16}{'resident growth':>18}{'loss':>11}"
    print(f"{'way':12}{heads}{'test accuracy':>16}" if tested else f"{'way':12}{heads}")
    for way, r in results.items():
        accuracy = f"{r['accuracy']:>16.1%}" if tested else ""
        sizes = f"{mib(r['peak']):>16}{mib(r['growth']):>18}"
        print(f"{way:12}{r['seconds']:14.3f} s{sizes}{r['loss']:11.5f}{accuracy}")
    print()


def mib(nbytes: float) -> str:
    return f"{nbytes / MIB:.1f} MiB"


def sentence(results: dict[str, Result]) -> None:
    """The result in words."""
    bounded, unbounded = results["bounded"], results["unbounded"]
    more = unbounded["growth"] - bounded["growth"]
    same = len({r["loss"] for r in results.values()}) == 1
    print(
        f"The losses are {'the same to the last bit' if same else 'NOT the same'}."
        f" Without a bound the process took {mib(abs(more))} {'more' if more > 0 else 'less'} memory;"
        f" bounded stayed {'within' if bounded['peak'] <= bounded['limit'] else 'NOT within'}"
        f" its limit of {mib(bounded['limit'])} tracked."
    )


def draw(results: dict[str, Result], title: str, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    end = max(r["resident"][-1][0] for r in results.values())
    for axes, (kind, peak, what) in zip(panels, PANELS, strict=True):
        peaks = sorted(r[peak] / MIB for r in results.values())
        top, at = 1.1 * peaks[-1], peaks[-2] - peaks[-1] / 20
        for way, r in sorted(results.items(), key=lambda item: item[1][peak]):
            times, sizes = np.array(r[kind]).T
            axes.plot(times, sizes / MIB, color=COLOURS[way], linewidth=2 if "bounded" in way else 1.2)
            at = max(r[peak] / MIB, at + top / 15)  # labels stand above each other, below the curve
            risen = times[np.argmax(sizes >= 0.93 * sizes.max())]
            where = max(risen / end, 0.5) - 0.05 if way == "unbounded" else 0.85
            label = {"color": COLOURS[way], "ha": "right", "va": "center" if way == "unbounded" else "bottom"}
            axes.text(where * end, at, f"{way}: {mib(r[peak])}", **label)
        axes.set(xlim=(0, end), ylim=(0, top), xlabel="time since training began (s)", ylabel="MiB: lower is better")
        axes.set_title(what, fontsize="medium")
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
    print(f"plot: {path}")


COLOURS = {"barrier": "0.45", "window(2)": "0.3", "bounded": "tab:blue", "unbounded": "tab:red"}
PANELS = (
    ("resident", "growth", "memory of the process, beyond that at the start"),
    ("tracked", "peak", "tracked: all arrays, and those of admitted tasks"),
)
DATA: dict[str, type[Digits] | type[Synthetic]] = {"synthetic": Synthetic, "digits": Digits}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=DATA, default="synthetic")
    parser.add_argument("--epochs", type=int, help="default 20 of digits, 1 of synthetic")
    parser.add_argument("--batches", type=int, help="minibatches per epoch; default all of digits, 50 of synthetic")
    parser.add_argument("--max-bytes", help="the limit of `bounded`; default 5 MiB for digits, 64 MiB for synthetic")
    parser.add_argument("--blas-threads", type=int, default=max(1, (os.cpu_count() or 1) - 1), metavar="N")
    parser.add_argument("--plot", metavar="PATH", default="bounded_vs_unbounded.png")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    main(parser.parse_args())
