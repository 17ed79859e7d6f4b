"""Costs as work grows: with processors, with operations, with the width of a graph. `harness.pictures` draws them."""

from __future__ import annotations

from .harness.rows import Row
from .libraries import cpus

COUNTS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
WIDTHS = {n: f"graphs.width {n}" for n in (1, 10, 100, 1_000)} | {10_000: "graphs.fan-out"}
ON = {"NumPy": "numpy", "PyTorch": "torch", "asyncsched": "asyncsched"}
SCALED = {
    "graphs.large": "`x + 1` on (1000, 1000)",
    "perceptron.training": "a training step",
    "layers.softmax": "softmax",
    "graphs.fan-out": "fan-out",
}
THREADS = {name: name.lower() for name in ("NumPy", "run_in_executor", "to_thread", "asyncsched")}


def _processors() -> list[Row]:
    """Each library on 1, 2, 4, 8 processors: columns are the processors, so that ratios are to one of them."""
    counts = [n for n in (1, 2, 4, 8) if n <= cpus()]
    found = []
    for work, title in SCALED.items():
        for name, who in ON.items():
            if not (name == "NumPy" and work == "layers.softmax"):
                cells = {f"{n} processor{'s' * (n > 1)}": (f"{who} processors={n}", work) for n in counts}
                found.append(Row(f"{work.partition('.')[2]}-{name}", f"{title}, {name}", "ms", cells))
    return found


ROWS = (
    *_processors(),
    *[
        Row(f"issued-{n}", f"issued {n:,}", "us", {name: (who, f"graphs.issued {n}") for name, who in ON.items()})
        for n in COUNTS
    ],
    *[
        Row(f"pending-{n}", f"pending {n:,}", "us", {"asyncsched": ("asyncsched", f"graphs.pending {n}")})
        for n in COUNTS
    ],
    *[
        Row(f"width-{n}", f"width {n:,}", "us", {name: (who, work) for name, who in THREADS.items()})
        for n, work in WIDTHS.items()
    ],
)
