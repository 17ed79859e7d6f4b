"""Costs as work grows: with processors, with operations, with the width of a graph. `harness.pictures` draws them."""

from __future__ import annotations

from .harness.rows import CONTESTANTS, Row, alike
from .libraries import cpus

COUNTS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
WIDTHS = {n: f"graphs.width {n}" for n in (1, 10, 100, 1_000)} | {10_000: "graphs.fan-out"}
THREADS = ("NumPy", "run_in_executor", "to_thread", "asyncsched")
ON = ("NumPy", "PyTorch", "asyncsched")
SCALED = {
    "graphs.large": "`x + 1` on (1000, 1000)",
    "perceptron.training": "a training step",
    "layers.softmax": "softmax",
    "graphs.fan-out": "fan-out",
}
PROCESSORS = {f"{n} processor{'s' * (n > 1)}": f" processors={n}" for n in (1, 2, 4, 8) if n <= cpus()}


def _scaled(work: str, title: str, name: str) -> Row:
    """Columns are the processors, so that ratios are to one of them."""
    cells = {column: (CONTESTANTS.get(name, name) + words, work) for column, words in PROCESSORS.items()}
    return Row(f"{work.partition('.')[2]}-{name}", f"{title}, {name}", "ms", cells)


ROWS = (
    *[
        _scaled(work, title, name)
        for work, title in SCALED.items()
        for name in ON
        if (work, name) != ("layers.softmax", "NumPy")
    ],
    *[Row(f"issued-{n}", f"issued {n:,}", "us", alike(f"graphs.issued {n}", *ON)) for n in COUNTS],
    *[Row(f"pending-{n}", f"pending {n:,}", "us", alike(f"graphs.pending {n}", "asyncsched")) for n in COUNTS],
    *[Row(f"width-{n}", f"width {n:,}", "us", alike(work, *THREADS)) for n, work in WIDTHS.items()],
)
