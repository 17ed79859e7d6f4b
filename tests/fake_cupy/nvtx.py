"""`cupy.cuda.nvtx`: ranges that a profiler would show, kept in `Fake.ranges` while they are open.

`RangePush` and `RangePop` are missing on purpose: they nest by thread, of no use for what ends on another one.
"""

from __future__ import annotations

from .fake import current


def RangeStart(message: str, color: int | None) -> int:
    """A range that may end on any thread. There is no default colour, and the name must not be bytes."""
    fake = current()
    with fake.lock:
        number = fake.next_number()
        fake.ranges[number] = str.encode(message).decode()
        fake.statistics["ranges"] += 1
    return number


def RangeEnd(range_id: int) -> None:
    del current().ranges[range_id]
