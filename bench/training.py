"""Training with autograd, layers and an optimiser: `python -m bench.training`.

a  a step of the synthetic perceptron, beside hand-written NumPy and PyTorch at as many threads
b  growth of the resident set over 1,000 steps, after the first 50
c  how many tries it takes to find a limit that works, by following the limits that the errors suggest
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import asyncsched as asc
from asyncsched import nn, optim

from . import synthetic
from .measure import ROOT, Asked, Contestant, Report, Row, compare, on_loop, run_bench, timed

NO_TORCH = "PyTorch: not installed, skipped (`pip install torch`)"


def perceptron(size: str) -> nn.Sequential:
    """The layers of `bench.synthetic`. Biases start at 0 there, too."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(synthetic.SIZES[size].widths):
        layers += [nn.Linear(inputs, outputs, rng=0), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


async def train(
    steps: int, size: str, each: Callable[[int], None] = lambda _: None, *, warm_up: int = 0, **limits: Any
) -> tuple[float, int]:
    """Seconds of that many steps after the first few, and the peak of tracked bytes."""
    data = synthetic.batches(size)
    async with asc.Scheduler("cpu", **limits) as s:
        model, window = perceptron(size), s.window(2)
        optimizer = optim.SGD(model.parameters(), lr=synthetic.RATE)
        started = 0.0
        for i in range(warm_up + steps):
            if i == warm_up:
                await s.barrier()
                started = perf_counter()
            async with window:
                x, target = data[i % len(data)]
                nn.mse_loss(model(await s.put(x)), await s.put(target)).backward()
                optimizer.step()
                optimizer.zero_grad()
            each(i)
        await s.barrier()
        return perf_counter() - started, s.statistics().peak_bytes


# -- a: a step ----------------------------------------------------------------------------------------------------


def steps(quick: bool, report: Report) -> None:
    n, size = 2 if quick else 10, synthetic.size(quick)
    contestants = [
        Contestant("a NumPy, by hand", lambda: synthetic.inline(n, size), n, "ms"),
        Contestant("a asyncsched", on_loop(partial(_seconds, n, size)), n, "ms", asked=Asked(ratio=1.0)),
    ]
    if importlib.util.find_spec("torch") is None:
        report.notes.append(NO_TORCH)
    else:
        contestants.append(Contestant("a PyTorch", _torch(n, size), n, "ms"))
        ours, asked = on_loop(partial(_seconds, n, size)), Asked(ratio=1.3)
        contestants.append(Contestant("a asyncsched, against PyTorch", ours, n, "ms", to="a PyTorch", asked=asked))
    report.rows += compare(contestants, 1 if quick else 11)


async def _seconds(n: int, size: str) -> float:
    # A scheduler's first steps touch memory that is new to the process; NumPy's and PyTorch's is not after one run.
    return (await train(n, size, warm_up=2))[0]


def _torch(n: int, size: str) -> Callable[[], float]:
    import torch
    from threadpoolctl import threadpool_info

    torch.set_num_threads(max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"))
    layers: list[Any] = []
    for inputs, outputs in pairwise(synthetic.SIZES[size].widths):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=synthetic.RATE)
    data = synthetic.batches(size)

    def run() -> None:
        for i in range(n):
            x, target = (torch.tensor(array) for array in data[i % len(data)])  # copied, as `put` does
            torch.nn.functional.mse_loss(model(x), target).backward()
            optimizer.step()
            optimizer.zero_grad()

    return lambda: timed(run)


# -- b: memory over time ------------------------------------------------------------------------------------------


def growth(quick: bool, report: Report) -> None:
    count = 60 if quick else 1050
    command = [sys.executable, "-m", "bench.training", "--child", str(count), synthetic.size(quick)]
    grown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)
    report.rows.append(Row("b resident growth", grown, "MiB", [grown / 16], "16 MiB", Asked(median=16.0)))


def grown(count: int, size: str) -> float:
    """MiB by which the resident set grew from step 50 on, at its highest."""
    import psutil

    process, resident = psutil.Process(), [0]
    asyncio.run(train(count, size, lambda i: resident.append(process.memory_info().rss if i >= 50 else 0)))
    settled = [size for size in resident if size]
    return (max(settled) - settled[0]) / 2**20


# -- c: limits ----------------------------------------------------------------------------------------------------


def limits(quick: bool, report: Report) -> None:
    steps, size = 2 if quick else 20, synthetic.size(quick)
    _, unlimited = asyncio.run(train(steps, size))
    for name, start in (("half of what it takes unlimited", unlimited // 2), ("1 MiB", 2**20)):
        tried, peak = follow(start, steps, size)
        path = " -> ".join(f"{limit / 2**20:.1f}" for limit in tried)
        kept = "within" if peak <= tried[-1] else "NOT within"
        report.notes.append(f"c limits tried, in MiB: {path}; peak {peak / 2**20:.1f} MiB, {kept} the last")
        report.rows.append(Row(f"c tries, from {name}", len(tried), "tries", [len(tried)], "1"))


def follow(limit: int, steps: int, size: str) -> tuple[list[int], int]:
    """The limits tried, of which the last worked, and the peak of tracked bytes under that."""
    tried = [limit]
    while True:
        try:
            return tried, asyncio.run(train(steps, size, max_bytes=tried[-1]))[1]
        except (asc.AsyncSchedError, BaseExceptionGroup) as error:
            tried.append(max(suggested(error)))


def suggested(error: BaseException) -> list[int]:
    """The limits that errors suggest."""
    if isinstance(error, BaseExceptionGroup):
        return [limit for member in error.exceptions for limit in suggested(member)]
    if isinstance(error, asc.TaskTooLarge | asc.MemoryDeadlockError) and error.suggested_limit is not None:
        return [error.suggested_limit]
    raise error


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(grown(int(sys.argv[2]), sys.argv[3])))
    else:
        run_bench("training", {"a": steps, "b": growth, "c": limits})
