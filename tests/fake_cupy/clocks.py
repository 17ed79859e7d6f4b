"""Vector clocks: which launches are known to come before which, and the races that this proves.

A launch is a pair: the number of its stream, and its count on that stream. A clock holds, for each stream, the count up
to which everything is known to be over. A stream has one, and all host threads together have one, of what the host has
seen complete. Recording an event copies the stream's clock, waiting for one merges it, and so does seeing it complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .blocks import Block

Clock = dict[int, int]


class Access(NamedTuple):
    """A launch reads or writes the bytes from `low` to `high`."""

    low: int
    high: int
    writes: bool
    stream: int
    count: int
    what: str

    def __str__(self) -> str:
        return f"{self.what!r} ({'writes' if self.writes else 'reads'}, stream {self.stream}, launch {self.count})"


def merge(clock: Clock, other: Clock) -> None:
    """Learn all that `other` knows."""
    for stream, count in other.items():
        if clock.get(stream, 0) < count:
            clock[stream] = count


def before(access: Access, clock: Clock) -> bool:
    """Whether the launch is known to be over."""
    return clock.get(access.stream, 0) >= access.count


def conflicts(block: Block, access: Access, clock: Clock) -> list[Access]:
    """Earlier accesses to the same bytes, one of the two being a write, that are not known to be over."""
    return [
        earlier
        for earlier in block.accesses
        if earlier.low < access.high
        and access.low < earlier.high
        and (earlier.writes or access.writes)
        and earlier.stream != access.stream
        and not before(earlier, clock)
    ]


def note(block: Block, access: Access) -> None:
    """Remember an access, and forget what it stands for from now on."""
    block.accesses = [earlier for earlier in block.accesses if not _covered(earlier, access)]
    block.accesses.append(access)


def _covered(earlier: Access, later: Access) -> bool:
    inside = later.low <= earlier.low and earlier.high <= later.high
    return inside and (later.writes or (earlier.stream == later.stream and not earlier.writes))
