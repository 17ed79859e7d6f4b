"""Fair sharing: which of the waiting members goes next, by cost over weight.

Theory of operation. Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with a virtual clock. Each member has
a mark, `paid`: the sum of its costs over its weight. The member with the lowest mark goes next. Neither the next item
nor its cost need be known before it goes: a member that cannot go now is passed over, and is asked first the next time.
Three rules:

1. *Nobody saves up.* A member that was passed over or away begins where the clock is.
2. *Nobody leaves a debt behind.* A member keeps its mark when it leaves. If it comes back before the clock has got
   there, it goes on from its mark. An owner may drop a member, and its mark, only when the member is next in line.
3. *Newcomers without end starve nobody.* If each newcomer started at the clock, it would go before all members that
   have paid for something, and the clock would stand still. So a newcomer's mark is ahead of the clock, by half of the
   item that goes at present. This entry mark moves on once the clock has reached it. (If it were ahead by the whole
   item, the member that has just gone could go twice, each time it comes with one item after another.)

So while two members always have something that can go, their costs over their weights differ by one item of each and
half of the largest item of any member, or half a quantum, if that is less.

Tried before: deficit round robin (Shreedhar and Varghese, SIGCOMM 1995). It finds the next member in constant time, but
needs a quantum that suits the costs, rounds, and a way to skip rounds in which nobody may go. It is fair within two
quanta more, and endless newcomers starved members in debt. A heap instead of the sorted list: to find a member behind
many that cannot go, all of these leave the heap and return; moving a thousand pointers is cheap.
"""

from __future__ import annotations

from bisect import bisect_left, insort_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar


@dataclass(slots=True, eq=False)
class Member:
    """One of those that share. `weight` may change at any time, and holds for the items that go from then on."""

    weight: float = 1.0
    paid: float = -inf  # its mark: the sum of its costs over its weight
    joined: bool = False


M = TypeVar("M", bound=Member)


@dataclass(slots=True, eq=False)
class FairQueue(Generic[M]):
    """The members that have something waiting, in the order in which they may go.

    Its owner walks it, finds the first member that can go, takes an item from it, and charges it:

    >>> shares, names = FairQueue[Member](), {Member(weight=2): "heavy", Member(): "light"}
    >>> for member in names:
    ...     shares.join(member)
    >>> served = []
    >>> for _ in range(6):
    ...     member = next(iter(shares))
    ...     shares.charge(member, 1)
    ...     served.append(names[member])
    >>> served
    ['heavy', 'light', 'heavy', 'light', 'heavy', 'heavy']

    Args:
        quantum: the largest cost, over a weight of 1, that counts in full for newcomers: they wait for half of it at
            most, however large the others' items are.
    """

    quantum: float = inf
    _clock: float = 0.0  # where the last member that went began
    _entry: float = 0.0  # where a newcomer starts
    # Sorted by `paid`, the next member last: a member may leave while a walk visits it.
    _line: list[M] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[M]:
        """Yield the members in order. The one just yielded may leave; after any other change, begin anew."""
        return reversed(self._line)

    def join(self, member: M) -> None:
        """Add a member that has something waiting."""
        if member.joined:
            return
        member.joined = True
        if member.paid < self._clock:
            member.paid = self._entry
        insort_left(self._line, member, key=_order)

    def leave(self, member: M) -> None:
        """Remove a member that has nothing waiting any more."""
        member.joined = False
        self._remove(member)

    def charge(self, member: M, cost: float) -> None:
        """Charge a member that goes with an item of this cost."""
        share, start = cost / member.weight, member.paid
        if start < self._clock:
            start = self._clock
        self._clock = start
        if start >= self._entry:
            self._entry = start + (share if share < self.quantum else self.quantum) / 2
        self._remove(member)
        member.paid = start + share
        insort_left(self._line, member, key=_order)

    def _remove(self, member: M) -> None:
        line = self._line
        if line[-1] is member:
            line.pop()
        else:
            del line[line.index(member, bisect_left(line, -member.paid, key=_order))]


def _order(member: Member) -> float:
    return -member.paid
