"""Training with autograd, layers and an optimiser: what a thousand steps leave behind."""

from __future__ import annotations

from .harness.contestant import Run, Work
from .harness.rows import OURS, Row, alike, ours
from .libraries import Library
from .perceptron import resident, training

SETTLED = 50  # steps, after which memory should not grow


async def growth(library: Library, n: int) -> Run:
    """Bytes by which the resident set grew from step 50 on, at its highest."""
    step = await training(library, 1)

    async def run(count: int) -> float:
        grown = []
        for i in range(n):
            await step(1)
            if i >= SETTLED:
                grown.append(resident("VmRSS"))
        return float(max(grown) - grown[0])

    return run


WORKS: dict[str, Work] = {"growth": Work(growth, 1_050, 60, once=True)}
ROWS = (
    Row(
        "growth", "growth of the process over 1,000 steps, after the first 50", "MiB", alike("training.growth", OURS),
        ours(16, "nothing is left behind", absolute=True), fresh=True,
    ),
)  # fmt: skip
