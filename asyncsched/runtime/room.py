"""The claims that wait for bytes to reserve, and how fast earlier ones got theirs.

Theory of operation. A scope keeps its reserve until it is left, whatever its tasks do meanwhile. So the rate at which
tasks end does not say when the next scope will be let in. The rate of earlier grants does: their bytes, over the time
in which anybody waited. That rate is measured only under full load, so idle times do not lower it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter

from .._core.admission import Admission
from .._core.model import DONE, Account, Scope, Task
from ..pictures.record import Bytes, Record, Seconds
from .rates import Meter


@dataclass(frozen=True, repr=False)
class WaitingForRoom(Record):
    """The claims of one kind that wait for bytes to reserve.

    Attributes:
        who: "priority 0" for new scopes of that class; "growing" for scopes that wait to grow.
        count: the number of claims.
        nbytes: the bytes they ask for.
        longest: how long the first of them has waited.
    """

    who: str
    count: int
    nbytes: Bytes
    longest: Seconds


@dataclass(slots=True, eq=False)
class Granted:
    """The number and bytes of an account's claims that were granted after a wait. A meter reads it."""

    ended_tasks: int = 0
    ended_bytes: int = 0


class Line:
    """How many claims wait for bytes of one account, and how fast they get them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.count: int = 0
        self._granted = Granted()
        self._meter = Meter(self._granted, clock)

    def begin(self) -> None:
        """Count one more waiting claim."""
        self.count += 1
        if self._meter.since is None:
            self._meter.since = self._meter.clock()

    def end(self, claim: Task) -> None:
        """Count one waiting claim less: it was granted, or waits no more."""
        self.count -= 1
        if claim.state == DONE:
            self._granted.ended_tasks += 1
            self._granted.ended_bytes += claim.cost
        self._meter.sample(self.count > 0)

    def seconds_for(self, nbytes: float) -> float | None:
        """How long it will take until `nbytes` come free; None if no claim was granted after a wait so far."""
        self._meter.sample(self.count > 0)
        rate = self._meter.rates()[1]
        return max(0.0, nbytes) / rate if rate else None


class Room:
    """The claims in one scheduler that wait for bytes to reserve: for a new scope, a growing scope, or a graph.

    Attributes:
        waiting: the claims, oldest first, each with the time when its wait began, and the line in which it waits.
    """

    def __init__(self, admission: Admission, clock: Callable[[], float] = perf_counter) -> None:
        self.waiting: dict[Task, tuple[float, Line]] = {}
        self._admission = admission
        self._clock = clock

    def begin(self, claim: Task) -> None:
        """Note a claim that begins to wait."""
        account = claim.scope.account
        if account.line is None:
            account.line = Line(self._clock)
        self.waiting[claim] = self._clock(), account.line
        account.line.begin()

    def end(self, claim: Task) -> None:
        """Note that a claim was granted, or waits no more."""
        if claim in self.waiting:
            self.waiting.pop(claim)[1].end(claim)

    def longest_growth(self, account: Account) -> float:
        """Seconds that the longest-waiting growth charged to an account has waited; 0 if there is none."""
        return self._longest(claim for claim in self.waiting if claim.scope.grows and claim.scope.account is account)

    def read(self) -> tuple[WaitingForRoom, ...]:
        """The waiting claims by kind; the ordinary class is included even if nobody waits."""
        now, found = self._clock(), {"priority 0": WaitingForRoom("priority 0", 0, 0, 0.0)}
        for claim, (since, _) in self.waiting.items():
            who = "growing" if claim.scope.grows else f"priority {claim.scope.queue.tenant.priority.level:g}"
            one = found.get(who, WaitingForRoom(who, 0, 0, 0.0))
            found[who] = WaitingForRoom(who, one.count + 1, one.nbytes + claim.cost, max(one.longest, now - since))
        return tuple(found.values())

    def estimated_wait(self, scope: Scope, nbytes: int) -> float | None:
        """Seconds until `nbytes` would be granted to a scope.

        None if they may be granted at once or never, or if the rate is unknown because no claim was granted after a
        wait.
        """
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
        """Seconds until all claims that wait now are granted, for the account that takes longest; 0 if none waits.

        Before the first grant, as long as the first claim has waited.
        """
        waits = [0.0]
        for account in {claim.scope.account for claim in self.waiting}:
            claims, seconds = [claim for claim in self.waiting if claim.scope.account is account], None
            if account.line is not None and account.limit is not None:
                seconds = account.line.seconds_for(sum([c.cost for c in claims]) + account.used - account.limit)
            waits.append(self._longest(claims) if seconds is None else seconds)
        return max(waits)

    def _longest(self, claims: Iterable[Task]) -> float:
        first = next(iter(claims), None)
        return 0.0 if first is None else self._clock() - self.waiting[first][0]
