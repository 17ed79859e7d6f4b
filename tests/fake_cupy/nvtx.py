"""`cupy.cuda.nvtx`: ranges that a profiler would show, kept in `Fake.ranges` while they are open."""

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


def RangePush(message: str, id_color: int = -1) -> None:
    """Nested by thread: of no use for what ends on another one."""
    current().statistics["pushed_ranges"] += 1


def RangePop() -> None:
    current().statistics["pushed_ranges"] -= 1


def Mark(message: str, id_color: int = -1) -> None:
    current().statistics["marks"] += 1
