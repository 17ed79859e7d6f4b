"""Who waits for bytes to reserve, and how fast those who waited got theirs.

Theory of operation. A scope keeps its reserve until it is left, whatever its tasks do meanwhile. So the rate at which
tasks end says nothing of when the next will be let in. What says it is how fast those who waited before were: their
bytes, over the time for which anybody waited. That is a rate under full load alone, whatever went on before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter

from .._core.admission import Admission
from .._core.model import DONE, Account, Scope, Task
from .rates import Meter
from .record import Bytes, Record, Seconds


@dataclass(frozen=True, repr=False)
class WaitingForRoom(Record):
    """Those of one kind who wait for bytes to reserve.

    Attributes:
        who: "priority 0", a class in which they come new; "growing", scopes that have some.
        count: how many.
        nbytes: what they ask for.
        longest: for how long the first of them has waited.
    """

    who: str
    count: int
    nbytes: Bytes
    longest: Seconds


class Room:
    """Those who wait for bytes to reserve in one scheduler, for a scope, for one that grows, or for a graph.

    Attributes:
        waiting: their claims, the first first, and since when each waits.
        ended_tasks, ended_bytes: the claims that were granted after a wait, and their bytes, added up.
    """

    def __init__(self, admission: Admission, clock: Callable[[], float] = perf_counter) -> None:
        self.waiting: dict[Task, float] = {}
        self.ended_tasks: int = 0
        self.ended_bytes: int = 0
        self._admission = admission
        self._meter = Meter(self, clock)

    def begin(self, claim: Task) -> None:
        """A claim waits."""
        self.waiting[claim] = now = self._meter.clock()
        if self._meter.since is None:
            self._meter.since = now

    def end(self, claim: Task) -> None:
        """It was granted, or waits no more."""
        if self.waiting.pop(claim, None) is not None and claim.state == DONE:
            self.ended_tasks += 1
            self.ended_bytes += claim.cost
        self._meter.sample(bool(self.waiting))

    def longest(self) -> float:
        """Seconds for which the first of them has waited by now; 0 if nobody waits."""
        return self._waited(self.waiting)

    def longest_growth(self, account: Account) -> float:
        """The same of those that grow, and whose bytes are charged to an account."""
        return self._waited(claim for claim in self.waiting if claim.scope.grows and claim.scope.account is account)

    def _waited(self, claims: Iterable[Task]) -> float:
        first = next(iter(claims), None)
        return 0.0 if first is None else self._meter.clock() - self.waiting[first]

    def read(self) -> tuple[WaitingForRoom, ...]:
        """Who waits, by kind; of the ordinary class also if nobody does."""
        now, found = self._meter.clock(), {"priority 0": WaitingForRoom("priority 0", 0, 0, 0.0)}
        for claim, since in self.waiting.items():
            who = "growing" if claim.scope.grows else f"priority {claim.scope.queue.tenant.priority.level:g}"
            one = found.get(who, WaitingForRoom(who, 0, 0, 0.0))
            found[who] = WaitingForRoom(who, one.count + 1, one.nbytes + claim.cost, max(one.longest, now - since))
        return tuple(found.values())

    def seconds_for(self, nbytes: float) -> float | None:
        """How long so many bytes will take to come free; None if nobody has waited until now for some."""
        self._meter.sample(bool(self.waiting))
        rate = self._meter.rates()[1]
        return max(0.0, nbytes) / rate if rate else None

    def estimated_wait(self, scope: Scope, nbytes: int) -> float | None:
        """Seconds until so many bytes would be granted to a scope; None if they may be at once, or never, or that
        cannot be told: the first who waits shows how long it takes, and what is within a reserve is not measured."""
        account = scope.account
        if not self.waiting or account.limit is None or account.parent is not None:
            return None
        if nbytes > account.limit or account.used + nbytes <= account.limit:
            return None
        return self.seconds_for(self._admission.bytes_with(scope, nbytes) + account.used - account.limit)
