"""The requests that are let in, and when others may come back; and room in memory for their bodies.

Theory of operation. A request beyond a limit is refused at once, before its body is read, with an estimate of when to
come back: the number of requests in progress over the rate at which requests ended lately, but at most what a request
took lately. For the rate of a server that was not full is what its clients asked for, not what it can do. There is no
semaphore to wait at. A queue in front of the scheduler's own would hold bodies without a bound, and under overload
would answer each request just when its client has given up. The estimate leaves out other refused clients, so clients
that come back together may be refused again.

The room for a whole body is claimed before its first byte is read. If it were claimed piece by piece, bodies that have
been read in part could wait for each other. It is also claimed before a reserve of the scheduler's, and the body is
read after that: whoever has bytes of the scheduler's waits for no other's body. Claims are granted in their order. The
room is given back when all work of the request has ended, since handlers keep the bodies.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import NoReturn

from ..runtime.rates import Rate
from .http import Exchange, Problem


class Limiter:
    """Counts the requests in progress, and refuses those beyond the limits. No request waits.

    Args:
        max_requests: most requests in progress.
        max_requests_per_tenant: most requests of one tenant in progress; None for no bound but `max_requests`.
    """

    def __init__(self, max_requests: int, max_requests_per_tenant: int | None) -> None:
        self.max_requests = max_requests
        self.max_requests_per_tenant = max_requests_per_tenant
        self.draining = False  # the server is about to stop: answers end their connections
        self.closed = False  # no request is let in any more
        self.refused: int = 0
        self.adopted: int = 0  # answered, but they hold their places until all their work has ended
        # For each request, a function that ends it early. As an attribute of the exchange it would make a cycle.
        self._in_progress: dict[Exchange, Callable[[Exception], None]] = {}
        self._of_tenant: Counter[Hashable] = Counter()
        self._rate, self._taken = Rate(), Rate()
        self._since = 0.0
        self._waited_for: list[tuple[set[Exchange], asyncio.Event]] = []

    def __len__(self) -> int:
        return len(self._in_progress) + self.adopted

    def estimated_wait(self) -> float | None:
        """Seconds until the requests in progress will be done, by the measured rate; None before the first is done."""
        wait, taken = self._rate.seconds_for(len(self)), self._taken.seconds_for(1)
        return wait if wait is None or taken is None else min(wait, taken)

    def admit(self, exchange: Exchange, end: Callable[[Exception], None]) -> float:
        """Count a request, which is in progress until it leaves. `end` ends it before its time, for a reason.

        Returns:
            When it came, for `leave`.

        Raises:
            Problem: 503 or 429, if it is not let in.
        """
        self._check(exchange.tenant)
        self._of_tenant[exchange.tenant] += 1  # first, since it raises for a tenant that cannot be hashed
        began = perf_counter()
        if not len(self):
            self._since = began
        self._in_progress[exchange] = end
        return began

    def leave(self, exchange: Exchange, began: float) -> None:
        """A request is answered, or ended."""
        if exchange in self._in_progress:
            self._answered(exchange)
            self._ended(exchange)
        self._taken.add(1, perf_counter() - began)

    def adopt(self, exchange: Exchange) -> None:
        """A request in progress is answered now, and keeps its place until `release`."""
        self.adopted += 1
        self._answered(exchange)

    def release(self, exchange: Exchange) -> None:
        """All work of a request that was adopted has ended."""
        self.adopted -= 1
        self._ended(exchange)

    def in_progress(self) -> set[Exchange]:
        """The requests that are not answered yet."""
        return set(self._in_progress)

    def end(self, exchanges: set[Exchange], reason: Exception) -> int:
        """End these requests, unless they are answered. Returns how many there were."""
        ends = [end for exchange, end in self._in_progress.items() if exchange in exchanges]
        for end in ends:
            end(reason)
        return len(ends)

    async def answered(self, exchanges: set[Exchange]) -> None:
        """Wait until these requests are answered, which takes them out of the set."""
        waiting = exchanges, asyncio.Event()
        self._waited_for.append(waiting)
        try:
            if exchanges:
                await waiting[1].wait()
        finally:
            self._waited_for.remove(waiting)

    def _check(self, tenant: Hashable) -> None:
        quota = self.max_requests_per_tenant
        if self.closed:
            self._refuse(503, "The server is shutting down.", close=True)
        if len(self) >= self.max_requests:
            self._refuse(503, f"There are {self.max_requests:,} requests in progress, which is the limit.")
        if tenant is not None and quota is not None and self._of_tenant[tenant] >= quota:
            self._refuse(429, f"There are {quota:,} requests of yours in progress, which is the limit.")

    def _refuse(self, status: int, detail: str, *, close: bool = False) -> NoReturn:
        self.refused += 1
        raise Problem(status, detail, retry_after=self.estimated_wait() or 1.0, close=close)

    def _answered(self, exchange: Exchange) -> None:
        del self._in_progress[exchange]
        for exchanges, event in self._waited_for:
            exchanges.discard(exchange)
            if not exchanges:
                event.set()

    def _ended(self, exchange: Exchange) -> None:
        self._of_tenant[exchange.tenant] -= 1
        if not self._of_tenant[exchange.tenant]:
            del self._of_tenant[exchange.tenant]
        now = perf_counter()
        self._rate.add(1, now - self._since)
        self._since = now


class BodyRoom:
    """Bytes that are claimed for bodies.

    Attributes:
        limit: most of them; None for no limit.
        claimed: those that are.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self.claimed: int = 0
        self._waiting = deque[tuple[int, asyncio.Future[None]]]()

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    async def claim(self, nbytes: int) -> None:
        """Claim room, and wait for it. It is at most the limit."""
        claim = nbytes, asyncio.get_running_loop().create_future()
        self._waiting.append(claim)
        self._grant()
        try:
            await claim[1]
        except asyncio.CancelledError:
            if claim in self._waiting:
                self._waiting.remove(claim)
                self._grant()
            else:
                self.release(nbytes)
            raise

    def release(self, nbytes: int) -> None:
        """Give room back."""
        self.claimed -= nbytes
        self._grant()

    def _grant(self) -> None:
        while self._waiting and (self.limit is None or self.claimed + self._waiting[0][0] <= self.limit):
            nbytes, granted = self._waiting.popleft()
            self.claimed += nbytes
            if not granted.done():  # one that was cancelled gives it back
                granted.set_result(None)
