"""On a card, against plain CuPy: the cost of issuing small operations, the time of large ones, copies that overlap, the
time from the end of a kernel to the end of its await, training within bounds, the loop's lag, captured steps.

Times are the host's, around a synchronise. Limits depend on the free memory. The last line says what was not checked.
The table is kept in bench/results/gpu-<name of the card>.json, each part when it is measured. Each part fails alone.
Without a card only `--quick` runs, on a fake: it shows that the programs work.
"""

from __future__ import annotations

from ..harness.subjects import Together
from .card import around
from .copies import copies
from .latency import lag, latency
from .loops import fused, large, small
from .training import run_ahead, sanitize, train

__all__ = ["ROWS", "around"]

ROWS = tuple(
    Together(part.__name__, part) for part in (small, large, copies, latency, train, run_ahead, lag, fused, sanitize)
)
