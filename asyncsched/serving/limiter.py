"""Requests are let in, or refused at once: those beyond the limits, and those that would come too late.

Theory of operation. A request beyond a limit is refused before its body is read, with an estimate of when to come back:
the number of requests in progress over the rate at which requests ended lately, but at most what a request took lately.
(Where a server was not full, that rate is what its clients asked for, and not what it can do.) No request waits to be
let in. A queue in front of the scheduler's own would hold bodies without a bound, and under overload would answer each
request just when its client has given up. The estimate leaves out other refused clients, so clients that come back
together may be refused again.

Each request is charged the time for which requests of its route have kept streams busy. The time that all requests
inside have still to come, divided by the number of streams, is the *wait* of one more, since the oldest goes first. A
request is let in if its wait and its own time fit into its deadline. What batchers and steppers compute for it does not
count: they refuse by queues of their own. Five rules:

1. *Nothing is refused without a measurement*, nor while there is no wait, nor if it keeps no stream busy.
2. *Long requests do not starve.* One of 1 s, say, fits in only after a short wait, and waits are never short while
   shorter requests fill up the server. So all hold to the shortest wait that any route has needed in the last minute.
3. *No route is barred for ever.* One that is too slow for its deadline gets in if there is no wait, and once a minute,
   so that a single stall is forgotten.
4. *Tenants share.* A tenant waits for as much work of each other tenant as of its own, at most.
5. *A request that can no longer be in time is refused*, unless half of it is done: routes become slower, and streams
   stall. The last request is not refused if there is no wait.

A route is known from the framework, once a request is routed. So paths are remembered with their routes; a path that
was never seen is charged what requests take on average. Without a framework the path is the route.

Alternatives. To estimate the wait by the number of requests in progress and the rate of answers: that refuses requests
that keep no stream busy. To let all in, and only not begin what would be late: then most that begin are just in time,
or just late.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Final, NoReturn

from .._core.instrument import Instrument
from .._core.model import Scope, Task
from ..runtime.rates import SAFE, Rate, Spent, Took
from .http import Exchange, Problem, route_of

_SLOW: Final = 0.75  # the share of that from which on a route is too slow: then rule 2 does not hold for it
_REMEMBERED: Final = 60.0  # seconds for rules 2 and 3
_PATHS: Final = 1024  # the most that are remembered
_NOTHING: Final = 1e-9  # seconds: sums are rounded
_BATCHES: Final = object()  # the name of what is no request's own work
_LOOKS: Final = 0.01  # seconds between two looks for requests that will be late
_NOTED: Final = 256  # ended bodies are noted when there are so many: no request may come or leave while other work runs


class TooLate(Problem):
    """The end of a request that could not be answered in time."""


class Route(Took):
    """The seconds for which a request of a route keeps streams busy."""

    tried: float = -inf  # when one was last let in, or measured


@dataclass(slots=True, eq=False)
class Inside:
    """A request that was let in."""

    path: str
    route: Route
    tenant: Hashable
    since: float
    until: float  # its deadline
    # Ends it early, for a reason. As an attribute of the exchange it would make a cycle.
    end: Callable[[Exception], None]
    left: float  # seconds for which it will keep streams busy; bodies that have ended and are not noted yet included
    seconds: float = 0.0  # for which it has kept streams busy
    core: Scope | None = None  # its scope, once that is entered
    refusal: str = ""  # the class of the exception that its framework answered


class Limiter(Instrument):
    """Lets requests in, and refuses those beyond the limits, and those that would come too late. No request waits.

    Args:
        max_requests: most requests in progress.
        max_requests_per_tenant: most requests of one tenant in progress; None for no bound but `max_requests`.
    """

    def __init__(self, max_requests: int, max_requests_per_tenant: int | None) -> None:
        self.max_requests = max_requests
        self.max_requests_per_tenant = max_requests_per_tenant
        self.streams: int = 1  # of the scheduler that is open
        self.draining = False  # the server is about to stop: answers end their connections
        self.closed = False  # no request is let in any more
        self.refused: int = 0
        self.adopted: int = 0  # answered, but they hold their places until all their work has ended
        self._inside: dict[Exchange, Inside] = {}  # those that are not answered yet, the oldest first
        self._of_tenant: defaultdict[Hashable, int] = defaultdict(int)
        self._rate, self._taken = Rate(), Rate()
        self._since = 0.0
        self._waited_for: list[tuple[set[Exchange], asyncio.Event]] = []
        self._routes: OrderedDict[str, Route] = OrderedDict()  # by name, and by the paths that led there
        self._any = Route()  # of a path that was never seen
        self._scopes: dict[Scope, Inside] = {}
        self._left: defaultdict[Hashable, float] = defaultdict(float)  # seconds that are left, by tenant
        self._shortest, self._needed = inf, -inf  # the wait of rule 2, and when a route last needed it
        self._spent = Spent()  # by tenant, and by batches and steps
        self._looked = -inf
        # Streams' threads set, delete and append, each in one step.
        self._running: dict[Task, float] = {}
        self._ended: deque[tuple[Scope, float]] = deque()

    def __len__(self) -> int:
        return len(self._inside) + self.adopted

    def estimated_wait(self) -> float | None:
        """Seconds until the requests in progress will be done, by the measured rate; None before the first is done."""
        wait, taken = self._rate.seconds_for(len(self)), self._taken.seconds_for(1)
        return wait if wait is None or taken is None else min(wait, taken)

    def body_began(self, task: Task) -> None:
        """On a stream's thread."""
        self._running[task] = perf_counter()

    def body_ended(self, task: Task, began: float, ended: float) -> None:
        """On a stream's thread."""
        self._running.pop(task, None)
        self._ended.append((task.scope, ended - began))

    def task_ended(self, task: Task) -> None:
        if len(self._ended) >= _NOTED:
            self._note(perf_counter())

    def admit(self, exchange: Exchange, path: str, seconds: float | None, end: Callable[[Exception], None]) -> Inside:
        """Let a request in, if it can be answered in so many seconds. It must `leave`. `end` ends it before its time.

        Raises:
            Problem: 503 or 429, if it is not let in.
        """
        now, count = perf_counter(), len(self._inside) + self.adopted
        tenant, quota = exchange.tenant, self.max_requests_per_tenant
        if self.closed:
            self._refuse(exchange, "draining", "The server is shutting down.", close=True)
        if count >= self.max_requests:
            told = f"There are {self.max_requests:,} requests in progress, which is the limit."
            self._refuse(exchange, "max_requests", told)
        if tenant is not None and quota is not None and self._of_tenant.get(tenant, 0) >= quota:
            told = f"There are {quota:,} requests of yours in progress, which is the limit."
            self._refuse(exchange, "max_requests_per_tenant", told, 429)
        known = self._routes.get(path)
        route = known or self._any
        if seconds is not None and (known is None or known.mean):
            likely = 0.0 if known is None else known.likely
            if likely > _SLOW * SAFE * seconds and now - route.tried > _REMEMBERED:
                route, likely = Route(), 0.0  # as if it had never been measured
            most = self._longest_wait(likely, SAFE * seconds, now)
            if self._inside:
                done = _done(self._note(now))
                wait = self._wait(tenant, self._left.get(tenant, 0.0) - done, route.mean, sum(self._left.values()), now)
                if wait > most and wait > _NOTHING:
                    raise self._too_late(wait - most)
        self._of_tenant[tenant] += 1  # first, since it raises for a tenant that cannot be hashed
        if known is not None:
            known.tried = now
        if not count:
            self._since = now
        until = inf if seconds is None else now + seconds
        self._inside[exchange] = inside = Inside(path, route, tenant, now, until, end, route.mean)
        self._left[tenant] += inside.left
        return inside

    def entered(self, exchange: Exchange, inside: Inside, core: Scope) -> None:
        """The scope of a request is entered."""
        if exchange in self._inside:
            inside.core, self._scopes[core] = core, inside

    def answered_by_framework(self, core: Scope, error: Exception) -> None:
        """The framework of a request that is in this scope answers an exception in the handler's place."""
        if (inside := self._find(core)) is not None:
            inside.refusal = type(error).__name__

    def leave(self, exchange: Exchange, inside: Inside, *, adopted: bool) -> None:
        """A request is answered, or ended. Its bodies may still run. If it is adopted, it keeps its place until
        `release`."""
        now = perf_counter()
        spent = self._note(now).get(inside, 0.0) if self._running or self._ended else 0.0
        exchange.refusal = inside.refusal
        del self._inside[exchange]
        if inside.core is not None:
            del self._scopes[inside.core]
        self._left[inside.tenant] -= inside.left
        if exchange.route is None:
            exchange.route = route_of(exchange.scope)
        measured = self._route(exchange, inside) if spent or exchange.complete else None
        if adopted:
            self.adopted += 1
        else:
            self._free_place(exchange, now)
        self._taken.add(1, now - inside.since)
        if measured is not None:
            measured.tried = now
            if spent:
                measured.at_least(inside.seconds + spent)
            else:
                measured.add(inside.seconds)
                self._any.add(inside.seconds)
        if not self._inside:
            self._left.clear()  # and rounding errors
        elif now - self._looked >= _LOOKS:
            self._looked = now
            self._look(now)
        for exchanges, event in self._waited_for:
            exchanges.discard(exchange)
            if not exchanges:
                event.set()

    def release(self, exchange: Exchange) -> None:
        """All work of a request that was adopted has ended."""
        self.adopted -= 1
        self._free_place(exchange, perf_counter())

    def _free_place(self, exchange: Exchange, now: float) -> None:
        self._of_tenant[exchange.tenant] -= 1
        if not self._of_tenant[exchange.tenant]:
            del self._of_tenant[exchange.tenant]
        self._rate.add(1, now - self._since)
        self._since = now

    def in_progress(self) -> set[Exchange]:
        """The requests that are not answered yet."""
        return set(self._inside)

    def end(self, exchanges: set[Exchange], reason: Exception) -> int:
        """End these requests, unless they are answered. Returns how many there were."""
        found = [inside for exchange, inside in self._inside.items() if exchange in exchanges]
        for inside in found:
            inside.end(reason)
        return len(found)

    async def answered(self, exchanges: set[Exchange]) -> None:
        """Wait until these requests are answered, which takes them out of the set."""
        waiting = exchanges, asyncio.Event()
        self._waited_for.append(waiting)
        try:
            if exchanges:
                await waiting[1].wait()
        finally:
            self._waited_for.remove(waiting)

    def _longest_wait(self, likely: float, seconds: float, now: float) -> float:
        """The longest wait with which a request is let in: one with so many `seconds`, of which it is `likely` to keep
        streams busy for some. See rule 2."""
        if likely > _SLOW * seconds:
            return seconds - likely
        if now - self._needed > _REMEMBERED:
            self._shortest = inf
        if likely and seconds - likely <= self._shortest:
            self._shortest, self._needed = seconds - likely, now
        return min(seconds - likely, self._shortest)

    def _wait(self, tenant: Hashable, before: float, own: float, work: float, now: float) -> float:
        """Seconds until a request begins, by work in seconds.

        Args:
            before: its tenant's work in front of it. It gets the streams that others left idle lately, or its share.
            own: its own work: it waits for as much of each other tenant, at most.
            work: the work left of all tenants.
        """
        others = len(self._left) - (tenant in self._left)
        streams = max(self.streams / (2 + others), self.streams - self._spent.by_others(tenant, now))
        return max(0.0, before) / streams + min(work - self._left.get(tenant, 0.0), own * others) / self.streams

    def _look(self, now: float) -> None:
        """Charge the requests inside by the last measurements, and refuse those that can no longer be in time."""
        running = self._note(now)
        self._left.clear()
        for exchange, inside in self._inside.items():
            if inside.route is self._any:
                told = route_of(exchange.scope)
                name = _name_of(exchange, told) if told else inside.path
                inside.route = self._routes.get(name, self._any)
            inside.left = max(0.0, inside.route.mean - inside.seconds)
            if inside.left > _NOTHING:
                self._left[inside.tenant] += inside.left
        before, last = defaultdict[Hashable, float](float), next(reversed(self._inside))
        done, work = _done(running), sum(self._left.values())
        for exchange, inside in list(self._inside.items()):
            left, tenant = inside.left, inside.tenant
            begun = inside.seconds > left or inside in running or exchange.status is not None
            if not begun and left > _NOTHING:
                wait = self._wait(tenant, before[tenant] - done, left, work, now)
                if wait > _NOTHING:
                    late = now + SAFE * (wait + left) > inside.until  # leniently, since that time is far off
                else:
                    late = now + left > inside.until and exchange is not last
                if late:
                    inside.end(self._too_late(now + wait + left - inside.until))
                    inside.route, inside.left = Route(), 0.0
                    self._left[tenant] -= left
                    work -= left
                    continue
            before[tenant] += left

    def _note(self, now: float) -> dict[Inside, float]:
        """Note bodies that have ended. Returns the requests with running bodies, and for how long these have run."""
        while self._ended:
            scope, seconds = self._ended.popleft()
            inside = self._find(scope)
            if scope.queue.tenant.priority.level >= 0:
                self._spent.add(_BATCHES if inside is None else inside.tenant, seconds, now)
            if inside is not None:
                inside.seconds += seconds
                self._left[inside.tenant] -= min(seconds, inside.left)
                inside.left -= min(seconds, inside.left)
        found: dict[Inside, float] = {}
        for task, since in self._running.copy().items() if self._running else ():
            if (inside := self._find(task.scope)) is not None:
                found[inside] = found.get(inside, 0.0) + now - since
        return found

    def _find(self, scope: Scope | None) -> Inside | None:
        while scope is not None and scope not in self._scopes:
            scope = scope.parent
        return None if scope is None else self._scopes[scope]

    def _route(self, exchange: Exchange, inside: Inside) -> Route:
        """The route of a request that has been routed. It is remembered by its path, too."""
        routes = self._routes
        name = _name_of(exchange, exchange.route) if exchange.route else inside.path
        route = routes.setdefault(name, inside.route if inside.route is not self._any else Route())
        routes.move_to_end(name)
        if name != inside.path:
            routes[inside.path] = route
            routes.move_to_end(inside.path)
        while len(routes) > _PATHS:
            routes.popitem(last=False)
        return route

    def _too_late(self, seconds: float) -> TooLate:
        self.refused += 1
        return TooLate(503, "The answer would not be ready in time.", retry_after=seconds)

    def _refuse(self, exchange: Exchange, why: str, detail: str, status: int = 503, *, close: bool = False) -> NoReturn:
        self.refused, exchange.refusal = self.refused + 1, why
        raise Problem(status, detail, retry_after=self.estimated_wait() or 1.0, close=close)


def _done(running: dict[Inside, float]) -> float:
    """Seconds of the charged work that running bodies have already done."""
    return sum([min(inside.left, seconds) for inside, seconds in running.items()])


def _name_of(exchange: Exchange, route: str) -> str:
    scope = exchange.scope
    return f"{scope['method']} {scope.get('root_path', '')}{route}"
