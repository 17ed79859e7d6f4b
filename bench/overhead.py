"""What one operation costs: issued, awaited, pending; bytes of what is pending; an import."""

from __future__ import annotations

from .harness.rows import OURS, Row, Target, alike, ours

COUNTS = (1_000, 10_000, 100_000, 1_000_000)
_FLAT = "a cost does not grow with the number of operations"
_HELD = {"`x + 1`, handle kept": "kept", "handle dropped": "dropped", "submit_nowait(fn, x)": "callables"}
_LARGER = {
    "8 KiB": "8 KiB awaited", "64 KiB": "64 KiB awaited", "128 KiB (a stream)": "128 KiB awaited", "s.call": "call",
}  # fmt: skip
_FIRST = {
    "NumPy, one": ("numpy", "graphs.a product"),
    "asyncsched, one": (OURS, "graphs.a product"),
    "first of ten": (OURS, "graphs.first of ten products"),
    "one stream, first of ten": ("asyncsched streams=1", "graphs.first of ten products"),
}


def _awaited(key: str, loop: str, words: str) -> Row:
    """Each awaited before the next; what is larger, too."""
    cells = alike("graphs.tiny awaited", "run_in_executor", "to_thread", "NumPy", OURS, words=words)
    cells |= {column: (OURS + words, f"graphs.{work}") for column, work in _LARGER.items()}
    third = ours(1 / 3, "no hop to a thread and back; 0.1x is aimed at")
    return Row(key, f"`x + 1` on (1, 2), each awaited, {loop}", "us", cells, third)


def _grown(key: str, title: str, work: str) -> Row:
    """Columns are numbers of operations, so that ratios are to the smallest."""
    cells = {f"{n:,}": (OURS, f"graphs.{work} {n}") for n in COUNTS}
    return Row(key, title, "us", cells, {f"{n:,}": Target(1.4, _FLAT) for n in COUNTS[1:]})


ROWS = (
    Row(
        "tiny", "`x + 1` on (1, 2), 10,000 issued, one barrier", "us",
        alike("graphs.tiny", "NumPy", OURS, "run_in_executor"), ours(6, "3x is aimed at"),
    ),
    _awaited("awaited", "asyncio", ""),
    _awaited("awaited-uvloop", "uvloop", " uvloop"),
    Row(
        "first", "the first of ten products of 1000 x 1000 that are queued; with several streams, as many run at once",
        "ms", _FIRST,
        dict.fromkeys(("asyncsched, one", "one stream, first of ten"), Target(1.2, "it waits for none of the others")),
    ),
    _grown("issued", "tiny operations: cost of one as their number grows", "issued"),
    _grown("pending-issued", "really pending: until issued", "pending, issued"),
    _grown("pending", "really pending: until all are done", "pending"),
    _grown("chain-issued", "a chain, pending: until issued", "chain, issued"),
    _grown("chain", "a chain, pending: until all are done", "chain"),
    _grown("no-gc-issued", "pending, without Python's collector: until issued", "no gc, issued"),
    _grown("no-gc", "pending, without Python's collector: until all are done", "no gc"),
    Row(
        "bytes", "bytes for each of 100,000 that are pending", "bytes",
        {column: (OURS, f"graphs.bytes, {work}") for column, work in _HELD.items()},
        {column: Target(1024, "1 KiB", absolute=True) for column in _HELD},
    ),
    Row("import", "import, processor time", "ms", alike("graphs.import", "NumPy", OURS), ours(2, "NumPy's own, again")),
)  # fmt: skip
