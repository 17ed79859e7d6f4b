"""Every kind of work beside what a user would pick instead, held against targets: `python -m bench.beside`.

Ratios are to the first column that has a number in its row; what misses its target is listed. `--growth` instead tells
how costs grow: with processors, with operations, with the width of a graph.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import growth
from .picture import draw
from .results import add_options, measured, number, print_table
from .turns import Row, Target

OURS, ONE_STREAM, NUMBA = "asyncsched", "one stream", "with numba"
TITLE, OURS_ALL = "Beside what one would pick instead", (OURS, ONE_STREAM, NUMBA)
FEW, ALONE = "itself at 1,000", "its products alone"
COLUMNS = ("NumPy", "PyTorch", "JAX", "JAX, jit", "run_in_executor", FEW, ALONE, OURS, ONE_STREAM, NUMBA)
_CONTESTANTS = {
    "NumPy": "numpy",
    "PyTorch": "torch",
    "JAX": "jax",
    "JAX, jit": "jax jit",
    ONE_STREAM: "asyncsched one stream",
    NUMBA: "asyncsched numba",
}


def _row(title: str, unit: str, work: str, peers: str, targets: Mapping[str, Target], alone: str = "") -> Row:
    """A work that all do alike, and what NumPy takes for its products alone."""
    taking = [*peers.split("; "), *targets]
    cells = {column: (_CONTESTANTS.get(column, column), work) for column in taking}
    return Row(title, unit, cells | ({ALONE: ("numpy", f"products of {alone}")} if alone else {}), targets)


def _against_executor(title: str, work: str, target: Target, loop: str = "") -> Row:
    return Row(title, "us", {name: (f"{name}{loop}", work) for name in ("run_in_executor", OURS)}, {OURS: target})


def _ours(limit: float, why: str, numba: float | None = None, why_numba: str = "") -> dict[str, Target]:
    return {OURS: Target(limit, why)} | ({} if numba is None else {NUMBA: Target(numba, why_numba or _LOOP)})


_ISSUED = "NumPy; PyTorch; JAX; JAX, jit"
_BOTH = f"PyTorch; JAX; {ONE_STREAM}"
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
    _row("`x + 1` on (1, 2): issued, one barrier", "us", "tiny", _ISSUED, _ours(3, "ahead of PyTorch")),
    _row("`x + 1` on 8 KiB: issued, one barrier", "us", "8 KiB", _ISSUED, _ours(2.7, _NO_HOP)),
    _row("`x + 1` on 64 KiB: issued, one barrier", "us", "64 KiB", _ISSUED, _ours(1.9, _NO_HOP)),
    _against_executor("`x + 1` on 8 KiB, each awaited", "8 KiB awaited", Target(0.22, _NO_HOP)),
    _against_executor("`x + 1` on 64 KiB, each awaited", "64 KiB awaited", Target(0.25, _NO_HOP)),
    _against_executor(
        "`x + 1` on 8 KiB, each awaited, beside a callable of 1 s",
        "8 KiB awaited beside",
        Target(0.3, "a long callable elsewhere does not switch it off"),
    ),
    _against_executor("`s.call` of a tiny function, asyncio", "call", Target(1, "it is the same hop")),
    _against_executor(
        "`s.call` of a tiny function, uvloop",
        "call",
        Target(1.2, "it is the same hop, and uvloop's own pipe is quicker than ours"),
        " uvloop",
    ),
    Row(_WAITING.format(1_000), "us", {OURS: (OURS, "pending 1000")}, {OURS: Target(11, _PENDING, absolute=True)}),
    *[
        Row(_WAITING.format(n), "us", {FEW: (OURS, "pending 1000"), OURS: (OURS, f"pending {n}")}, _FLAT)
        for n in (50_000, 1_000_000)
    ],
    _row(
        "`x + 1` on (1000, 1000): issued, one barrier", "us", "large", f"NumPy; {_BOTH}",
        _ours(0.57, "the memory's limit is 0.54x"),
    ),
    _row(
        "tanh-GELU, ten operations on 8 MiB, captured", "ms", "captured", f"NumPy; {_BOTH}",
        _ours(0.35, "a run of operations in blocks, on two threads: 0.33x by hand", 0.12, "one loop: 0.11x by hand"),
    ),
    _row("layer_norm, 4096 x 768", "ms", "layer_norm", _BOTH, _ours(3.2, _BLOCKS, 0.9)),
    _row("exact gelu, 1024 x 2048", "ms", "gelu", _BOTH, _ours(4.5, _BLOCKS, 1.0)),
    _row("softmax, 4096 x 1024", "ms", "softmax", _BOTH, _ours(1.9, _BLOCKS, 1.0)),
    _row("cross_entropy, 4096 x 1024", "ms", "cross_entropy", _BOTH, _ours(1.5, _BLOCKS, 1.0)),
    _row(
        "attention, 8 x 8 x 256 x 64", "ms", "attention", _BOTH,
        _ours(0.65, "by heads on two threads: 0.63x by hand where this was set"), "attention",
    ),
    _row(
        "conv2d, 32 x 32 x 32 x 32 by 64 x 3 x 3", "ms", "conv2d", f"PyTorch; {ONE_STREAM}",
        _ours(1.3, _COLUMNS), "conv2d",
    ),
    _row(
        "a training step of a small CNN", "ms", "cnn", f"PyTorch; {ONE_STREAM}",
        _ours(1.3, "as its convolutions", 1.3, _POOLS),
    ),
    _row(
        "a step of the perceptron 512-2048-512-1, data on the device", "ms", "training, data on the device",
        f"NumPy; {_BOTH}", _ours(0.86, _PRODUCTS), "the perceptron",
    ),
    _row(
        "a step of that perceptron, each batch new from the host", "ms", "training", f"NumPy; {_BOTH}",
        _ours(0.75, f"{_PRODUCTS}, and a batch is copied beside them"), "the perceptron",
    ),
    _row("`s.call(np.linalg.svd, x)`, 200 x 200", "ms", "svd", "run_in_executor", _ours(1.05, "LAPACK's time alone")),
    _row(
        "`np.dot` in `to_thread`, beside an idle scheduler", "ms", "dot in to_thread", "run_in_executor",
        _ours(1.05, "an idle scheduler takes no BLAS threads away"),
    ),
    _row("import, processor time", "ms", "import", "NumPy", _ours(2, "as much again as NumPy's own, and no more")),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.beside", description=__doc__)
    add_options(parser, "beside")
    parser.add_argument("--growth", action="store_true", help="costs as work grows, into growth.json")
    options = parser.parse_args(arguments)
    name, rows = ("growth", growth.rows()) if options.growth else ("beside", ROWS)
    result = measured(name, rows, options)
    if options.growth:
        growth.print_result(result)
    else:
        print_table(result, COLUMNS)
        print("\n".join(missed(result)))
    if options.json and not options.quick:
        picture = Path(options.json).with_suffix(".png")
        growth.draw(picture, result) if options.growth else draw(picture, result, TITLE, OURS_ALL)


def missed(result: Mapping[str, Any]) -> list[str]:
    """The cells that miss their target, each with its ratio and what the target rests on; then how many were met."""
    held = [(row, column, t) for row in result["rows"] for column, t in row["targets"].items() if t["met"] is not None]
    lines = [
        f"missed: {row['work']}, {column}: {number(t['measured'])} against {number(t['limit'])}"
        f"{' ' + row['unit'] if t['absolute'] else 'x'} ({t['why']})"
        for row, column, t in held
        if not t["met"]
    ]
    return [*lines, f"targets met: {len(held) - len(lines)} of {len(held)}"]


if __name__ == "__main__":
    main()
