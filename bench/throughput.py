"""The cost and the gain of bounds: for a training that is written by hand, and for large additions by `max_ops`."""

from __future__ import annotations

from .harness.rows import OURS, Row, alike, ours

MAX_OPS = (1, 2, 4, 16, 64, 256, None)
_BY_MAX_OPS = {
    str(most): (f"asyncsched streams=2 max_ops={'null' if most is None else most}", "graphs.large") for most in MAX_OPS
}
_BOTH, _ALL = ("unbounded", OURS), ("unbounded", OURS, "NumPy")
_STEP = "perceptron.by hand"
ROWS = (
    Row(
        "training", "a step of the perceptron, written by hand", "ms", alike(_STEP, *_ALL),
        ours(1, "a bound costs nothing"),
    ),
    Row(
        "tracked", "tracked bytes at the peak of 60 such steps", "MiB", alike(f"{_STEP}, tracked", *_BOTH), fresh=True,
    ),
    Row(
        "resident", "growth of the process at the peak of 60 such steps", "MiB", alike(f"{_STEP}, resident", *_ALL),
        fresh=True,
    ),
    Row(
        "max_ops", "`x + 1` on (1000, 1000), two streams, by `max_ops`", "us",
        alike("graphs.large", "NumPy") | _BY_MAX_OPS,
    ),
)  # fmt: skip
