"""Training with autograd, layers and an optimiser: a step, growth over a thousand, tries to find a limit that works."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .harness.contestant import Run, Work
from .harness.rows import Row, Target
from .libraries import Library
from .perceptron import RATE, batches, network, resident, size

SETTLED = 50  # steps, after which memory should not grow


async def train(library: Library, s: Any, steps: int, each: Callable[[int], None] = lambda _: None) -> None:
    nn, made = library.xp.nn, size(library.quick)
    data, model, window = batches(made), network(nn, made, rng=0), s.window(2)
    optimizer = library.xp.optim.SGD(model.parameters(), lr=RATE)
    for i in range(steps):
        async with window:
            x, target = data[i % len(data)]
            nn.mse_loss(model(await s.put(x)), await s.put(target)).backward()
            optimizer.step()
            optimizer.zero_grad()
        each(i)
    await s.barrier()


async def growth(library: Any, n: int) -> Run:
    """Bytes by which the resident set grew from step 50 on, at its highest."""

    async def run(count: int) -> float:
        grown: list[int] = []
        await train(library, library.s, n, lambda i: grown.append(resident("VmRSS")) if i >= SETTLED else None)
        return float(max(grown) - grown[0])

    return run


async def tries(library: Library, n: int, *, unlimited: bool) -> Run:
    """How many limits are tried until one works, each the one that the last error suggested.

    Args:
        unlimited: Begin with half of what it takes without a limit; else with 1 MiB.
    """

    async def peak(limit: int | None) -> int:
        async with library.xp.Scheduler("cpu", max_bytes=limit) as s:
            await train(library, s, n)
            peak: int = s.statistics().peak_bytes
        return peak

    async def run(count: int) -> tuple[float, str]:
        tried = [await peak(None) // 2 if unlimited else 2**20]
        while True:
            try:
                most = await peak(tried[-1])
            except (library.xp.AsyncSchedError, BaseExceptionGroup) as error:
                tried.append(max(suggested(library.xp, error)))
                continue
            path = " -> ".join(f"{limit / 2**20:.1f}" for limit in tried)
            kept = "within" if most <= tried[-1] else "NOT within"
            return float(len(tried)), f"tried, in MiB: {path}; peak {most / 2**20:.1f} MiB, {kept} the last"

    return run


def suggested(asc: Any, error: BaseException) -> list[int]:
    """The limits that errors suggest."""
    if isinstance(error, BaseExceptionGroup):
        return [limit for member in error.exceptions for limit in suggested(asc, member)]
    if isinstance(error, asc.TaskTooLarge | asc.MemoryDeadlockError) and error.suggested_limit is not None:
        return [error.suggested_limit]
    raise error


WORKS: dict[str, Work] = {
    "growth": Work(growth, 1_050, 60, once=True),
    "tries, from half": Work(partial(tries, unlimited=True), 20, 2, once=True),
    "tries, from 1 MiB": Work(partial(tries, unlimited=False), 20, 2, once=True),
}
ROWS = (
    Row(
        "step",
        "a step of the perceptron 512-2048-512-1, each batch new from the host",
        "ms",
        {name: (name.lower(), "perceptron.training") for name in ("NumPy", "asyncsched")}
        | {"PyTorch": ("torch", "perceptron.training")},
        {"asyncsched": Target(1.0, "as what is written by hand")},
    ),
    Row(
        "growth",
        "growth of the process over 1,000 steps, after the first 50",
        "MiB",
        {"asyncsched": ("asyncsched", "training.growth")},
        {"asyncsched": Target(16, "nothing is left behind", absolute=True)},
        fresh=True,
    ),
    *[
        Row(
            f"tries-from-{key}",
            f"limits tried, from {what}",
            "count",
            {"asyncsched": ("asyncsched", f"training.{work}")},
        )
        for key, what, work in (
            ("half", "half of what it takes without one", "tries, from half"),
            ("1MiB", "1 MiB", "tries, from 1 MiB"),
        )
    ],
)
