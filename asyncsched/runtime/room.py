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


@dataclass(slots=True, eq=False)
class Granted:
    """The claims of an account that were granted after a wait, and their bytes, added up: what a meter reads."""

    ended_tasks: int = 0
    ended_bytes: int = 0


class Line:
    """Those who wait for bytes of one account, by number, and how fast they get them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.count: int = 0
        self._granted = Granted()
        self._meter = Meter(self._granted, clock)

    def begin(self) -> None:
        """One more waits."""
        self.count += 1
        if self._meter.since is None:
            self._meter.since = self._meter.clock()

    def end(self, claim: Task) -> None:
        """One was granted, or waits no more."""
        self.count -= 1
        if claim.state == DONE:
            self._granted.ended_tasks += 1
            self._granted.ended_bytes += claim.cost
        self._meter.sample(self.count > 0)

    def seconds_for(self, nbytes: float) -> float | None:
        """How long so many bytes will take to come free; None if nobody has waited until now for some."""
        self._meter.sample(self.count > 0)
        rate = self._meter.rates()[1]
        return max(0.0, nbytes) / rate if rate else None


class Room:
    """Those who wait for bytes to reserve in one scheduler, for a scope, for one that grows, or for a graph.

    Attributes:
        waiting: their claims, the first first, and since when each waits.
    """

    def __init__(self, admission: Admission, clock: Callable[[], float] = perf_counter) -> None:
        self.waiting: dict[Task, float] = {}
        self._lines: dict[Task, Line] = {}
        self._admission = admission
        self._clock = clock

    def begin(self, claim: Task) -> None:
        """A claim waits."""
        account = claim.scope.account
        if account.line is None:
            account.line = Line(self._clock)
        self.waiting[claim] = self._clock()
        self._lines[claim] = account.line
        account.line.begin()

    def end(self, claim: Task) -> None:
        """It was granted, or waits no more."""
        self.waiting.pop(claim, None)
        line = self._lines.pop(claim, None)
        if line is not None:
            line.end(claim)

    def longest_growth(self, account: Account) -> float:
        """Seconds for which the first has waited of those that grow, and whose bytes are charged to an account; 0 if
        none does."""
        return self._longest(claim for claim in self.waiting if claim.scope.grows and claim.scope.account is account)

    def read(self) -> tuple[WaitingForRoom, ...]:
        """Who waits, by kind; of the ordinary class also if nobody does."""
        now, found = self._clock(), {"priority 0": WaitingForRoom("priority 0", 0, 0, 0.0)}
        for claim, since in self.waiting.items():
            who = "growing" if claim.scope.grows else f"priority {claim.scope.queue.tenant.priority.level:g}"
            one = found.get(who, WaitingForRoom(who, 0, 0, 0.0))
            found[who] = WaitingForRoom(who, one.count + 1, one.nbytes + claim.cost, max(one.longest, now - since))
        return tuple(found.values())

    def estimated_wait(self, scope: Scope, nbytes: int) -> float | None:
        """Seconds until so many bytes would be granted to a scope; None if they may be at once, or never, or that
        cannot be told, since the first who waits shows how long it takes."""
        account = scope.account
        if account.line is None or not account.line.count or account.limit is None:
            return None
        if nbytes > account.limit or account.used + nbytes <= account.limit:
            return None
        seconds: float | None = account.line.seconds_for(
            self._admission.bytes_with(scope, nbytes) + account.used - account.limit
        )
        return seconds

    def estimated_wait_for_all(self) -> float:
        """Seconds until all who wait now are granted, of whichever account that takes longest; 0 if nobody waits. Until
        one was granted, as long as the first has waited."""
        waits = [0.0]
        for account in {claim.scope.account for claim in self.waiting}:
            claims, seconds = [claim for claim in self.waiting if claim.scope.account is account], None
            if account.line is not None and account.limit is not None:
                seconds = account.line.seconds_for(sum([c.cost for c in claims]) + account.used - account.limit)
            waits.append(self._longest(claims) if seconds is None else seconds)
        return max(waits)

    def _longest(self, claims: Iterable[Task]) -> float:
        first = next(iter(claims), None)
        return 0.0 if first is None else self._clock() - self.waiting[first]
