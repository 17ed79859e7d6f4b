"""Every kind of work beside a user's alternatives, with targets."""

from __future__ import annotations

from collections.abc import Mapping

from .harness.rows import OURS, Row, Target, alike, ours

FEW, NUMBA = "itself at 1,000", "with numba"


def _row(key: str, title: str, unit: str, work: str, peers: str, targets: Mapping[str, Target]) -> Row:
    """A work that all do in the same way."""
    return Row(key, title, unit, alike(work, *peers.split("; "), *targets), targets)


def _against_executor(key: str, title: str, work: str, target: Target, loop: str = "") -> Row:
    return Row(key, title, "us", alike(work, "run_in_executor", OURS, words=loop), {OURS: target})


def _ours(limit: float, why: str, numba: float | None = None, why_numba: str = "") -> dict[str, Target]:
    return ours(limit, why) | ({} if numba is None else {NUMBA: Target(numba, why_numba or _LOOP)})


_ISSUED = "NumPy; PyTorch; JAX; JAX, jit"
_BOTH = "PyTorch; JAX; one stream"
_NO_HOP = "what takes less than a hop does not hop: issuing and entering a result is all that is added"
_LOOP = "a loop compiled for the whole row, on as many threads: level with PyTorch's kernels"
_BLOCKS = "NumPy's passes over blocks that fit the second-level cache, on two threads, as prototypes had it"
_COLUMNS = "windows as columns, in blocks that fit the cache, and one product, which alone took 0.9x where this was set"
_POOLS = "as without numba, but for the gradient of a pool in one loop"
_PENDING = "twice the time of values that waited without a task: one way for all of them is worth that"
_COLLECTED = "the collector goes over a task and its value for each, some five times while the backlog grows"
_WAITING = "`x + 1` that really is pending, issue to done: {:,}"
_FLAT = _ours(1.4, _COLLECTED)
_PRODUCTS = "its products alone, in halves on two threads, took 0.79 to 0.85x where this was set"
ROWS = (
    _row("tiny", "`x + 1` on (1, 2): issued, one barrier", "us", "graphs.tiny", _ISSUED, _ours(3, "ahead of PyTorch")),
    _row("8KiB", "`x + 1` on 8 KiB: issued, one barrier", "us", "graphs.8 KiB", _ISSUED, _ours(2.7, _NO_HOP)),
    _row("64KiB", "`x + 1` on 64 KiB: issued, one barrier", "us", "graphs.64 KiB", _ISSUED, _ours(1.9, _NO_HOP)),
    _against_executor("awaited-8KiB", "`x + 1` on 8 KiB, each awaited", "graphs.8 KiB awaited", Target(0.22, _NO_HOP)),
    _against_executor(
        "awaited-64KiB", "`x + 1` on 64 KiB, each awaited", "graphs.64 KiB awaited", Target(0.25, _NO_HOP),
    ),
    _against_executor(
        "awaited-beside", "`x + 1` on 8 KiB, each awaited, beside a callable of 1 s", "graphs.8 KiB awaited beside",
        Target(0.3, "a long callable elsewhere does not switch it off"),
    ),
    _against_executor("call", "`s.call` of a tiny function, asyncio", "graphs.call", Target(1, "it is the same hop")),
    _against_executor(
        "call-uvloop", "`s.call` of a tiny function, uvloop", "graphs.call",
        Target(1.2, "it is the same hop, and uvloop's own pipe is quicker than ours"), " uvloop",
    ),
    Row(
        "pending", _WAITING.format(1_000), "us",
        {OURS: (OURS, "graphs.pending 1000")}, {OURS: Target(11, _PENDING, absolute=True)},
    ),
    *[
        Row(
            f"pending-{n}", _WAITING.format(n), "us",
            {FEW: (OURS, "graphs.pending 1000"), OURS: (OURS, f"graphs.pending {n}")}, _FLAT,
        )
        for n in (50_000, 1_000_000)
    ],
    _row(
        "large", "`x + 1` on (1000, 1000): issued, one barrier", "us", "graphs.large", f"NumPy; {_BOTH}",
        _ours(0.57, "the memory's limit is 0.54x"),
    ),
    _row(
        "captured", "tanh-GELU, ten operations on 8 MiB, captured", "ms", "graphs.captured", f"NumPy; {_BOTH}",
        _ours(0.35, "a run of operations in blocks, on two threads: 0.33x by hand", 0.12, "one loop: 0.11x by hand"),
    ),
    _row("layer_norm", "layer_norm, 4096 x 768", "ms", "layers.layer_norm", _BOTH, _ours(3.2, _BLOCKS, 0.9)),
    _row("gelu", "exact gelu, 1024 x 2048", "ms", "layers.gelu", _BOTH, _ours(4.5, _BLOCKS, 1.0)),
    _row("softmax", "softmax, 4096 x 1024", "ms", "layers.softmax", _BOTH, _ours(1.9, _BLOCKS, 1.0)),
    _row("cross_entropy", "cross_entropy, 4096 x 1024", "ms", "layers.cross_entropy", _BOTH, _ours(1.5, _BLOCKS, 1.0)),
    _row(
        "attention", "attention, 8 x 8 x 256 x 64", "ms", "layers.attention", _BOTH,
        _ours(0.65, "by heads on two threads: 0.63x by hand where this was set", 0.9, "one loop for exponentials"),
    ),
    _row(
        "conv2d", "conv2d, 32 x 32 x 32 x 32 by 64 x 3 x 3", "ms", "layers.conv2d", "PyTorch; one stream",
        _ours(1.3, _COLUMNS),
    ),
    _row(
        "cnn", "a training step of a small CNN", "ms", "layers.cnn", "PyTorch; one stream",
        _ours(1.3, "as its convolutions", 1.3, _POOLS),
    ),
    _row(
        "perceptron", "a step of the perceptron 512-2048-512-1, data on the device", "ms",
        "perceptron.training, data on the device", f"NumPy; {_BOTH}", _ours(0.86, _PRODUCTS),
    ),
    _row(
        "perceptron-fresh", "a step of that perceptron, each batch new from the host", "ms",
        "perceptron.training", f"NumPy; {_BOTH}",
        _ours(0.75, f"{_PRODUCTS}, and a batch is copied beside them"),
    ),
    _row(
        "svd", "`s.call(np.linalg.svd, x)`, 200 x 200", "ms",
        "graphs.svd", "run_in_executor", _ours(1.05, "LAPACK's time alone"),
    ),
    _row(
        "to_thread", "`np.dot` in `to_thread`, beside an idle scheduler", "ms",
        "graphs.dot in to_thread", "run_in_executor", _ours(1.05, "an idle scheduler takes no BLAS threads away"),
    ),
    _row(
        "import", "import, processor time", "ms",
        "graphs.import", "NumPy", _ours(2, "as much again as NumPy's own, and no more"),
    ),
)  # fmt: skip
