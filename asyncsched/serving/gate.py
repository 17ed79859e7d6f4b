"""Which requests are let in, and when others may come back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from time import perf_counter

from ..runtime.rates import Rate
from .exchange import Exchange
from .problems import Problem


class Gate:
    """Counts the requests in progress, and refuses beyond the limits. It never makes anyone wait.

    Args:
        most: requests in progress.
        most_of_tenant: requests in progress of one tenant; None for no bound but `most`.
    """

    def __init__(self, most: int, most_of_tenant: int | None) -> None:
        self.most = most
        self.most_of_tenant = most_of_tenant
        self.draining = False  # nobody is let in any more
        self.refused = 0
        self._inside: dict[Exchange, Callable[[Exception], None] | None] = {}
        self._of_tenant: Counter[Hashable] = Counter()
        self._rate = Rate()
        self._since = 0.0
        self._empty: asyncio.Event | None = None  # there while someone waits for it

    def __len__(self) -> int:
        return len(self._inside)

    def estimated_wait(self) -> float | None:
        """Seconds until what is in progress will be done, by the measured rate; None before the first is."""
        return self._rate.seconds_for(len(self._inside))

    @contextmanager
    def admit(self, exchange: Exchange) -> Iterator[None]:
        """Count a request while it is in progress.

        Raises:
            Problem: 503 or 429, if it is not let in.
        """
        self._check(exchange.tenant)
        self._of_tenant[exchange.tenant] += 1  # first, since it raises for a tenant that cannot be hashed
        if not self._inside:
            self._since = perf_counter()
        self._inside[exchange] = None
        try:
            yield
        finally:
            self._leave(exchange)

    def on_end(self, exchange: Exchange, end: Callable[[Exception], None]) -> None:
        """How to end a request that was let in before its time."""
        self._inside[exchange] = end

    def end_all(self, reason: Exception) -> None:
        """End every request in progress."""
        for end in list(self._inside.values()):
            if end is not None:
                end(reason)

    async def empty(self) -> None:
        """Wait until nothing is in progress."""
        if self._inside:
            self._empty = self._empty or asyncio.Event()
            await self._empty.wait()

    def _check(self, tenant: Hashable) -> None:
        if self.draining:
            self._refuse(503, "The server is shutting down.", close=True)
        if len(self._inside) >= self.most:
            self._refuse(503, "The server has as much to do as it takes on.")
        if tenant is not None and self.most_of_tenant is not None and self._of_tenant[tenant] >= self.most_of_tenant:
            self._refuse(429, f"There are {self.most_of_tenant:,} requests of yours in progress, which is the limit.")

    def _refuse(self, status: int, detail: str, *, close: bool = False) -> None:
        self.refused += 1
        raise Problem(status, detail, retry_after=self.estimated_wait() or 1.0, close=close)

    def _leave(self, exchange: Exchange) -> None:
        del self._inside[exchange]
        self._of_tenant[exchange.tenant] -= 1
        if not self._of_tenant[exchange.tenant]:
            del self._of_tenant[exchange.tenant]
        now = perf_counter()
        self._rate.add(1, now - self._since)
        self._since = now
        if not self._inside and self._empty is not None:
            self._empty.set()
            self._empty = None
