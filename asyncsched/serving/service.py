"""What requests share: the scheduler, the limits, and whether the server drains."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..devices.host.log import Log
from ..observe.summary import Summary
from ..scheduler import Scheduler
from .http import ASGIScope, Instrument, ShuttingDown
from .limiter import Limiter
from .signals import drain_on_signals

logger = Log("asyncsched.serving")
_LAST = 1.0  # seconds for requests to end after they were cancelled


@dataclass(frozen=True)
class Options:
    """What a request may take, and how long draining may; see `Serving`."""

    deadline: float | Callable[[ASGIScope], float | None] | None
    reserve: int | None
    tenant: Callable[[ASGIScope], Hashable] | None
    max_body: int | None
    body_timeout: float | None
    drain_timeout: float
    drain_on_sigterm: bool


class Service:
    """A scheduler that opens, drains and closes, and the requests that use it.

    Attributes:
        instruments: watch every request, from the outside in.
        summary: adds up what the open scheduler does; None while there is none, or where nothing would show it.
        render_metrics: gives their content type and text; None where Prometheus's client is not installed.
    """

    def __init__(self, make_scheduler: Callable[[], Scheduler], limiter: Limiter, options: Options) -> None:
        self.limiter = limiter
        self.options = options
        self.instruments: list[Instrument] = []
        self.shown = True  # whether anything shows a summary
        self.summary: Summary | None = None
        self.render_metrics: Callable[[], tuple[str, bytes]] | None = None
        self._make_scheduler = make_scheduler
        self._scheduler: Scheduler | None = None
        self._drained_by = 0.0  # in the loop's time, once draining has begun

    @property
    def ready(self) -> bool:
        """Whether requests are taken: the scheduler is open, and nothing drains."""
        return self._scheduler is not None and not self.limiter.draining

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, while it is open.

        Raises:
            RuntimeError: otherwise. No SchedulerClosed, which a client would be told as a server that shuts down.
        """
        if self._scheduler is None:
            raise RuntimeError(
                "the scheduler is not open: the server must run ASGI's lifespan (`uvicorn --lifespan on`), and a test"
                " `async with asyncsched.testing.lifespan(app)`"
            )
        return self._scheduler

    def estimated_wait(self) -> float | None:
        """Seconds that what is in progress and in the backlog will take, by the measured rates; None if unknown."""
        found = [self.limiter.estimated_wait(), self._scheduler.load().estimated_wait if self._scheduler else None]
        return max([seconds for seconds in found if seconds is not None], default=None)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Scheduler]:
        """Open the scheduler; at the end drain and close it. ASGI's lifespan does this; a test may."""
        self.limiter.draining = False
        async with self._make_scheduler() as scheduler:
            self._scheduler = scheduler
            if self.shown:
                self.summary = Summary()
                scheduler.add_instrument(self.summary)
            with drain_on_signals(self.drain) if self.options.drain_on_sigterm else contextlib.nullcontext():
                try:
                    yield scheduler
                    await self.drain()
                    await self._close(scheduler)
                finally:
                    self.limiter.draining = True
                    self._scheduler = self.summary = None

    async def drain(self) -> None:
        """Refuse new requests, and wait for those in progress. After `drain_timeout` they are cancelled."""
        seconds = self.options.drain_timeout
        if not self.limiter.draining:
            self.limiter.draining = True
            self._drained_by = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(self._drained_by):
                await self.limiter.empty()
        except TimeoutError:
            logger.warning("%d requests were cancelled after %g s of draining", len(self.limiter), seconds)
            self.limiter.end_all(ShuttingDown())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST):
                    await self.limiter.empty()

    async def _close(self, scheduler: Scheduler) -> None:
        """Wait for what requests have left behind, such as a batch that nobody wants any more."""
        left = self._drained_by - asyncio.get_running_loop().time()
        try:
            await scheduler.aclose(timeout=max(left, _LAST))
        except TimeoutError as error:
            logger.warning("%s", error)
