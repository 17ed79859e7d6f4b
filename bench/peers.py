"""What a user would pick instead, side by side. An environment is made, once, for each peer that is not installed here;
one that will not install is named with the reason.

Dask, distributed and Ray issue a tenth of the smallest operations: ratios are of the time of one.
"""

from __future__ import annotations

from typing import Any

from .harness.rows import Row

PEERS = {
    "NumPy": "numpy",
    "asyncsched": "asyncsched",
    "one stream": "asyncsched streams=1",
    "PyTorch": "torch",
    "JAX": "jax",
    "MXNet": "mxnet",
    "Dask": "dask",
    "distributed": "distributed",
    "Ray": "ray",
    "run_in_executor": "run_in_executor",
    "to_thread": "to_thread",
}


def _row(key: str, title: str, unit: str, work: str, **options: Any) -> Row:
    return Row(key, title, unit, {column: (contestant, work) for column, contestant in PEERS.items()}, **options)


ROWS = (
    _row("tiny", "`x + 1` on (1, 2): 10,000, one barrier", "us", "graphs.tiny"),
    _row("large", "`x + 1` on (1000, 1000): 50, one barrier", "us", "graphs.large"),
    _row("chain", "a chain of 1,000 `x + 1` on (1, 2)", "us", "graphs.chain"),
    _row("diamonds", "a diamond: two products (256, 256) of one sum, their sum", "us", "graphs.diamonds"),
    _row("fan-out", "fan-out: 10,000 products (64, 64) of one, all kept", "us", "graphs.fan-out"),
    _row("awaited", "`x + 1` on (1, 2), each awaited", "us", "graphs.tiny awaited"),
    _row("captured", "ten elementwise operations on 8 MiB, captured or compiled", "ms", "graphs.captured"),
    _row("training", "a training step, 512-2048-512-1, batch 1024", "ms", "perceptron.training"),
    _row("peak", "memory at the peak of 20 such steps", "MiB", "perceptron.peak", fresh=True),
)
