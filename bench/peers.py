"""A user's alternatives, side by side. A peer that is not installed here gets an environment of its own, once. If it
cannot be installed, the reason is given.

Dask, distributed and Ray issue a tenth as many of the smallest operations. Ratios are of the time of one operation.
"""

from __future__ import annotations

from .harness.rows import OURS, Row, alike

PEERS = (
    "NumPy",
    OURS,
    "with numba",
    "one stream",
    "PyTorch",
    "JAX",
    "MXNet",
    "Dask",
    "distributed",
    "Ray",
    "run_in_executor",
    "to_thread",
)


ROWS = tuple(
    Row(key, title, unit, alike(work, *PEERS), fresh=key == "peak")
    for key, title, unit, work in (
        ("tiny", "`x + 1` on (1, 2): 10,000, one barrier", "us", "graphs.tiny"),
        ("large", "`x + 1` on (1000, 1000): 50, one barrier", "us", "graphs.large"),
        ("chain", "a chain of 1,000 `x + 1` on (1, 2)", "us", "graphs.chain"),
        ("diamonds", "a diamond: two products (256, 256) of one sum, their sum", "us", "graphs.diamonds"),
        ("fan-out", "fan-out: 10,000 products (64, 64) of one, all kept", "us", "graphs.fan-out"),
        ("awaited", "`x + 1` on (1, 2), each awaited", "us", "graphs.tiny awaited"),
        ("captured", "ten elementwise operations on 8 MiB, captured or compiled", "ms", "graphs.captured"),
        ("training", "a training step, 512-2048-512-1, batch 1024", "ms", "perceptron.training"),
        ("peak", "memory at the peak of 20 such steps", "MiB", "perceptron.peak"),
    )
)
