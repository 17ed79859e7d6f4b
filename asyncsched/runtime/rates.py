"""Measured rates and times, from which waits are estimated: of tasks and bytes, of grants of reserves, of batches.

Theory of operation. *Reserves* (`Room`, `Line`). A scope keeps its reserve until it is left, whatever its tasks do
meanwhile. So the rate at which tasks end does not say when the next scope will be let in. The rate of earlier grants
does: their bytes, over the time in which anybody waited. That rate is measured only under full load, so idle times do
not lower it.

*Batches* (`Pace`). A batch of one item may take as long as one of a hundred, or a hundredth of it. So there is a time
for each size, in powers of two. A size that was never seen takes as long as the nearest one that was. The time per item
is at most that of smaller batches that were computed later: else a size that was slow once would never be tried again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from .._core.admission import Admission
from .._core.ledger import Ledger
from .._core.model import DONE, Account, Scope, Task
from ..pictures.record import Bytes, Record, Seconds

SAFE: Final = 0.9  # the share of the time to a deadline that waiting and computing may take, since times vary
TIME_CONSTANT: Final = 1.0  # seconds
_LATELY: Final = 2.0  # seconds
_MANY: Final = 1024
FOLD: Final = 0.05  # seconds of work that make one sample


class Rate:
    """Items per second of busy time: an exponentially weighted mean, which idle time does not lower.

    The weights are exp(-(now - t) / tau), where t counts only busy time. The rate is the weighted sum of the items over
    the integral of the weights, so it is right from the first sample on. A sample of `d` seconds is taken as even: the
    old sums shrink by exp(-d / tau), and the sample adds its mean rate times tau * (1 - exp(-d / tau)).
    """

    __slots__ = ("_count", "_weight")

    def __init__(self) -> None:
        self._count = 0.0
        self._weight = 0.0

    def add(self, count: float, seconds: float) -> None:
        """Count `count` items for the last `seconds` of busy time."""
        kept = math.exp(-seconds / TIME_CONSTANT)
        weight = TIME_CONSTANT * (1 - kept)
        self._count = self._count * kept + count * (weight / seconds if seconds else 1.0)
        self._weight = self._weight * kept + weight

    @property
    def per_second(self) -> float:
        """The rate; 0 before anything was measured."""
        return self._count / self._weight if self._weight else 0.0

    def seconds_for(self, count: float) -> float | None:
        """The seconds that `count` items will take; None before anything was measured."""
        return count * self._weight / self._count if self._count else None


class Took:
    """How long something takes: an exponentially weighted mean of the last times, and how far they lie from it.

    Args:
        weight: of the last time, where it is shorter than the mean. The first few have more.
        longer: of one that is longer. By default more, since work whose time is underestimated is begun in vain. But
            the first that is far beyond all others counts no more than twice the mean: mostly it is a single stall.
            After a second one in a row, the mean is at least the shorter of both.
    """

    __slots__ = ("_count", "_last", "_longer", "_off", "_weight", "at", "mean")

    def __init__(self, weight: float = 1 / 8, longer: float = 1 / 2) -> None:
        self._weight, self._longer = weight, longer
        self._count = 0
        self.mean: float = 0.0  # 0 before the first
        self.at: float = 0.0  # when the last was measured, where the owner sets it
        self._off = 0.0
        self._last = 0.0  # the last time, if it was far beyond all others

    def add(self, seconds: float) -> bool:
        """Add a time. Returns whether it takes longer from now on: this was the second time far beyond all others."""
        self._count += 1
        if not self.mean:
            self.mean = seconds
            return False
        weight, off = max(self._weight, 1 / self._count), seconds - self.mean
        far = max(self.mean, 4 * self._off)
        self.mean += min(off, far) * max(self._longer, weight) if off > 0 else off * weight
        self._off += (abs(off) - self._off) * weight
        again, self._last = min(seconds, self._last), seconds if off > far else 0.0
        slower = again > self.mean
        self.mean = max(self.mean, again)
        return slower

    def at_least(self, seconds: float) -> None:
        """Take note that it was cut short after so long: it takes at least that."""
        self.mean = max(self.mean, seconds)

    @property
    def likely(self) -> float:
        """A time that few exceed."""
        return self.mean + 2 * self._off


class Pace:
    """The time that batches take, by their cost, and the batches that are computed now.

    Args:
        most: the most that a batch may cost.
        concurrency: how many batches are computed at a time.
        weights: of the last time, and of one that is longer: see `Took`.
    """

    def __init__(self, most: float, concurrency: int, *weights: float) -> None:
        self.full: float = most  # the mean cost of a full batch, one that leaves items behind
        self.running: dict[int, tuple[float, float]] = {}  # the cost of each batch, and when it began
        self._concurrency = concurrency
        self._weights = weights
        self._took: dict[int, Took] = {}  # of each size, for a cost of 1

    def add(self, cost: float, seconds: float, now: float) -> None:
        """A batch took so long."""
        if cost:
            took = self._took.setdefault(_size(cost), Took(*self._weights))
            if took.add(seconds / cost):
                self._took = {_size(cost): took}  # the times of other sizes are out of date, too
            took.at = now

    def formed(self, cost: float, leaves: bool) -> None:
        """A batch of this cost begins. `leaves`: it leaves items behind."""
        if cost and (leaves or cost > self.full):
            self.full += (cost - self.full) / 8

    def seconds(self, cost: float) -> float:
        """How long a batch of this cost takes; 0 before the first."""
        if not self._took:
            return 0.0
        size = _size(cost)
        known = size if size in self._took else min(self._took, key=lambda one: abs(one - size))
        each, at = self._took[known].mean, self._took[known].at
        if len(self._took) > 1:
            each = min([each, *[one.mean for size, one in self._took.items() if size < known and one.at > at]])
        return each * min(max(cost, 2.0 ** (known - 1)), 2.0**known)

    def expected(self, cost: float, now: float) -> float:
        """Seconds until all items of this total cost are computed; 0 before the first measurement."""
        running = sum([max(0.0, self.seconds(one) - (now - began)) for one, began in self.running.values()])
        before = math.ceil(cost / self.full) - 1
        if before <= 0:
            return running / self._concurrency + self.seconds(cost)
        full = self.seconds(self.full)
        return (running + before * full) / self._concurrency + full


def _size(cost: float) -> int:
    return math.frexp(cost)[1]


class Spent:
    """The seconds that each of many, such as tenants, has spent lately, per second: exponentially weighted means."""

    def __init__(self) -> None:
        self._sums: OrderedDict[Hashable, float] = OrderedDict()  # as if all had been spent at `_at`
        self._all = self._began = self._at = 0.0

    def add(self, who: Hashable, seconds: float, now: float) -> None:
        """Somebody has spent so much."""
        if not self._sums:
            self._began = now
        if not self._sums or now - self._at > 50 * _LATELY:  # before the numbers become too large
            kept = math.exp((self._at - now) / _LATELY)
            self._sums = OrderedDict({one: amount * kept for one, amount in self._sums.items()})
            self._all, self._at = self._all * kept, now
        amount = seconds * math.exp((now - self._at) / _LATELY)
        self._sums[who] = self._sums.pop(who, 0.0) + amount
        self._all += amount
        if len(self._sums) > _MANY:
            self._all -= self._sums.popitem(last=False)[1]

    def by_others(self, who: Hashable, now: float) -> float:
        """What all others spend per second."""
        span = _LATELY * (1 - math.exp((self._began - now) / _LATELY))
        return (self._all - self._sums.get(who, 0.0)) * math.exp((self._at - now) / _LATELY) / span if span else 0.0


@dataclass(slots=True, eq=False)
class Granted:
    """The number and bytes of an account's claims that were granted after a wait."""

    began: float | None = None  # when they began to wait, if that is not metered yet; None at rest
    worked: float = 0.0
    ended_tasks: int = 0
    ended_bytes: int = 0


class Meter:
    """The rates of tasks and bytes, over the time with unfinished work.

    Args:
        source: counts `ended_tasks` and `ended_bytes`, and sets `began`. It may see the end of its work before `sample`
            is called: then it adds the seconds to `worked`.
        clock: gives seconds.
    """

    def __init__(self, source: Ledger | Granted, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._source = source
        self._counted = (0, 0)  # tasks and bytes of folded work
        self._tasks, self._bytes = Rate(), Rate()

    def sample(self, busy: bool) -> None:
        """Count the work since the last call. `busy`: is anything left to do?"""
        source = self._source
        if source.began is not None:
            now = self._clock()
            source.worked += now - source.began
            source.began = now if busy else None
        if source.worked >= FOLD:
            self._fold()

    def rates(self) -> tuple[float, float]:
        """Tasks and bytes per second; 0 until a task has ended. They go down while none ends."""
        self._fold()
        tasks, nbytes = self._tasks.per_second, self._bytes.per_second
        slower = max(1.0, tasks * self._source.worked)
        return tasks / slower, nbytes / slower

    def _fold(self) -> None:
        """Take in the work so far, if a task has ended. Otherwise the rates would go to 0 while a long task runs."""
        tasks, nbytes, seconds = self._source.ended_tasks, self._source.ended_bytes, self._source.worked
        if seconds <= 0 or tasks == self._counted[0]:
            return
        self._tasks.add(tasks - self._counted[0], seconds)
        self._bytes.add(nbytes - self._counted[1], seconds)
        self._counted, self._source.worked = (tasks, nbytes), 0.0


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


class Line:
    """How many claims wait for bytes of one account, and how fast they get them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.count: int = 0
        self._clock = clock
        self._granted = Granted()
        self._meter = Meter(self._granted, clock)

    def begin(self) -> None:
        """Count one more waiting claim."""
        self.count += 1
        if self._granted.began is None:
            self._granted.began = self._clock()

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
