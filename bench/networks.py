"""How fast networks are trained, beside PyTorch with as many threads: layers forward and backward ("there and back"),
and steps with AdamW."""

from __future__ import annotations

from .harness.rows import Row, alike
from .layers import THERE_AND_BACK


def _row(key: str, title: str, work: str) -> Row:
    return Row(key, title, "ms", alike(f"layers.{work}", "PyTorch", "asyncsched", "with numba"))


ROWS = (
    *[_row(name, f"{name}, there and back", f"{name}, there and back") for name in THERE_AND_BACK],
    _row("mlp", "a training step of a perceptron, 512-2048-512-10, batch 1024", "mlp"),
    _row("cnn", "a training step of a small CNN, batch 64", "cnn"),
)
