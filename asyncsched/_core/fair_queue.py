"""Fair sharing: of those that have something waiting, who goes next, by cost over weight.

Theory of operation. A virtual clock: each member carries up to where it has `paid` for what it got, in cost over its
weight, and whoever has paid least goes next (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996). What goes
next need not be known before it goes, nor what it costs: a member that cannot go now is passed over, and is asked
first the next time. Three rules:

1. *Nobody saves up.* Who goes begins where the clock is, if it was passed over or away meanwhile.
2. *Nobody leaves a debt behind.* A member keeps what it paid when it leaves; if it comes back before the clock has
   got there, it goes on from there. An owner that drops a member, and with it what it paid, does so only when the
   member is next in line.
3. *Newcomers without end starve nobody.* Starting where the clock is, each would go before whoever has paid for
   something already, and the clock would stand still. So a newcomer starts half of what the present one gets behind
   it, and the next newcomer once the clock has got there. At its end, instead of in the middle, it would let who has
   just gone go twice, each time it comes with one thing after another.

So while two members always have something that can go, what they got, over their weights, differs by one item of each
and half of the largest item of any, or a quantum, if that is less.

Tried before: deficit round robin (Shreedhar and Varghese, SIGCOMM 1995), which finds the next in constant time, but
needs a quantum that suits the costs, rounds, and a way to skip rounds in which nobody may go; it is fair within two
quanta more, and newcomers without end starved those in debt. A heap instead of the sorted list: finding who can go
behind many who cannot takes all of these off the heap and puts them back; and moving a
thousand pointers is cheap.
"""

from __future__ import annotations

from bisect import bisect_left, insort_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar


@dataclass(slots=True, eq=False)
class Member:
    """Who shares. `weight` may change at any time, and holds for what goes from then on."""

    weight: float = 1.0
    paid: float = -inf  # up to where it has paid for what it got
    joined: bool = False


M = TypeVar("M", bound=Member)


@dataclass(slots=True, eq=False)
class FairQueue(Generic[M]):
    """The members that have something waiting, in the order in which they may go.

    Its owner walks it, finds the first that can go, takes something of it, and charges it:

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
        quantum: the cost, over a weight of 1, of what counts as small: a newcomer waits for half of that at most,
            however large what the others get is.
    """

    quantum: float = inf
    _clock: float = 0.0  # where who went last began
    _entry: float = 0.0  # where a newcomer starts
    # Sorted by what they paid, the next to be served last: a member may leave while it is visited by a walk.
    _line: list[M] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[M]:
        """The members in order. The one just given may leave meanwhile; after any other change, begin anew."""
        return reversed(self._line)

    def join(self, member: M) -> None:
        """A member has something waiting, again or still."""
        if member.joined:
            return
        member.joined = True
        if member.paid < self._clock:
            member.paid = self._entry
        insort_left(self._line, member, key=_order)

    def leave(self, member: M) -> None:
        """Take out a member that has nothing left to be served."""
        member.joined = False
        self._remove(member)

    def charge(self, member: M, cost: float) -> None:
        """A member goes, with something of this cost."""
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
