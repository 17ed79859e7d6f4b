"""What one operation costs: issued, awaited, pending; bytes of what is pending; an import."""

from __future__ import annotations

from collections.abc import Mapping

from .harness.rows import Row, Target

COUNTS = (1_000, 10_000, 100_000, 1_000_000)
OURS = "asyncsched"
_FLAT = "a cost does not grow with the number of operations"


def _awaited(key: str, loop: str = "") -> Row:
    """Each awaited before the next; what is larger, too."""
    executor, ours = f"run_in_executor{loop}", f"asyncsched{loop}"
    cells = {
        "run_in_executor": (executor, "graphs.tiny awaited"),
        "to_thread": (f"to_thread{loop}", "graphs.tiny awaited"),
        "NumPy": (f"numpy{loop}", "graphs.tiny awaited"),
        OURS: (ours, "graphs.tiny awaited"),
        "8 KiB": (ours, "graphs.8 KiB awaited"),
        "64 KiB": (ours, "graphs.64 KiB awaited"),
        "128 KiB (a stream)": (ours, "graphs.128 KiB awaited"),
        "s.call": (ours, "graphs.call"),
    }
    targets = {OURS: Target(1 / 3, "no hop to a thread and back; 0.1x is aimed at")}
    return Row(key, f"`x + 1` on (1, 2), each awaited, {loop.strip() or 'asyncio'}", "us", cells, targets)


def _grown(key: str, title: str, work: str) -> Row:
    """Columns are numbers of operations, so that ratios are to the smallest."""
    cells = {f"{n:,}": (OURS, f"graphs.{work} {n}") for n in COUNTS}
    return Row(key, title, "us", cells, {f"{n:,}": Target(1.4, _FLAT) for n in COUNTS[1:]})


def _bytes() -> Row:
    works = {"`x + 1`, handle kept": "kept", "handle dropped": "dropped", "submit_nowait(fn, x)": "callables"}
    cells = {column: (OURS, f"graphs.bytes, {work}") for column, work in works.items()}
    targets: Mapping[str, Target] = {column: Target(1024, "1 KiB", absolute=True) for column in works}
    return Row("bytes", "bytes for each of 100,000 that are pending", "bytes", cells, targets)


ROWS = (
    Row(
        "tiny",
        "`x + 1` on (1, 2), 10,000 issued, one barrier",
        "us",
        {
            "NumPy": ("numpy", "graphs.tiny"),
            OURS: (OURS, "graphs.tiny"),
            "executor": ("run_in_executor", "graphs.tiny"),
        },
        {OURS: Target(6, "3x is aimed at")},
    ),
    _awaited("awaited"),
    _awaited("awaited-uvloop", " uvloop"),
    Row(
        "first",
        "the first of ten products of 1000 x 1000 that are queued; with several streams, as many run at once",
        "ms",
        {
            "NumPy, one": ("numpy", "graphs.a product"),
            "asyncsched, one": (OURS, "graphs.a product"),
            "first of ten": (OURS, "graphs.first of ten products"),
            "one stream, first of ten": ("asyncsched streams=1", "graphs.first of ten products"),
        },
        {
            name: Target(1.2, "it waits for none of the others")
            for name in ("asyncsched, one", "one stream, first of ten")
        },
    ),
    _grown("issued", "tiny operations: cost of one as their number grows", "issued"),
    _grown("pending-issued", "really pending: until issued", "pending, issued"),
    _grown("pending", "really pending: until all are done", "pending"),
    _grown("chain-issued", "a chain, pending: until issued", "chain, issued"),
    _grown("chain", "a chain, pending: until all are done", "chain"),
    _grown("no-gc-issued", "pending, without Python's collector: until issued", "no gc, issued"),
    _grown("no-gc", "pending, without Python's collector: until all are done", "no gc"),
    _bytes(),
    Row(
        "import",
        "import, processor time",
        "ms",
        {"NumPy": ("numpy", "graphs.import"), OURS: (OURS, "graphs.import")},
        {OURS: Target(2, "as much again as NumPy's own, and no more")},
    ),
)
