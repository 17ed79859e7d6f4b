"""The state that requests share: the scheduler, the limits, and whether the server drains.

At SIGTERM and Ctrl-C the requests in progress are answered before the server gets the signal. A server that gets it
closes its socket at once, and gives the requests in progress as long as it likes. It also waits for the responses that
have begun before it tells the application to stop, so a stream of events would never end.

Other processes may share the socket, as the workers of gunicorn and uvicorn do. The system goes on giving this process
some of the new connections until it closes the socket. So what comes until then is answered as ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import anyio.to_thread

from .._blocks import asynccontextmanager, contextmanager
from .._core.audit import launched
from .._core.model import Lane, Task
from .._system import Log
from ..errors import DeadlineExceeded, TaskCancelled
from ..flow.batcher.batcher import Batcher
from ..flow.batcher.stepper import Stepper
from ..flow.scope import Scope
from ..flow.tasks import check_reserve
from ..observe.summary import Summary
from ..scheduler import Scheduler
from .client import BodyRoom
from .http import ASGIScope, Exchange, Instrument, ShuttingDown
from .limiter import Limiter

logger: Final = Log("asyncsched.serving")
_OTHERS: Final = (
    "the application keeps something of its own ({1}) as {0!r} in its state, where handlers find what `Serving` puts"
    " there: give it another name"
)
_LAST = 1.0  # seconds for requests to end after they were cancelled


@dataclass(frozen=True)
class Options:
    """The limits of requests, and of draining; see `Serving`."""

    deadline: float | Callable[[ASGIScope], float | None] | None
    reserve: int | Callable[[ASGIScope], int | str | None] | None
    wait: float | None
    tenant: Callable[[ASGIScope], Hashable] | None
    max_body: int | None
    max_bodies: int | str | None
    body_timeout: float | None
    drain_timeout: float
    drain_on_sigterm: bool
    warm_up: Callable[[Scheduler], Awaitable[object]] | None


class Service:
    """A scheduler that opens, drains and closes, and the requests that use it.

    Attributes:
        instruments: watch every request, from the outside in.
        batchers, steppers: by name.
        summary: adds up the work of the open scheduler; None while no scheduler is open, or if nothing would show it.
        adopted: work that still runs though its request was cut short and answered, with the scope of each.
        render_metrics: gives the content type and text of the metrics; None if Prometheus's client is not installed.
        count: counts an ended request in the metrics: when it began, and whether it failed. None likewise.
    """

    def __init__(self, make_scheduler: Callable[[], Scheduler], limiter: Limiter, options: Options) -> None:
        self.limiter = limiter
        self.body_room: BodyRoom = BodyRoom()
        self.options = options
        self.instruments: list[Instrument] = []
        self.shown = True  # whether anything shows a summary
        self.summary: Summary | None = None
        self.adopted: dict[asyncio.Task[None], Scope] = {}
        self.render_metrics: Callable[[], tuple[str, bytes]] | None = None
        self.count: Callable[[Exchange, float, bool], None] | None = None
        self.batchers: Mapping[str, Batcher[Any, Any]] = {}
        self.steppers: Mapping[str, Stepper[Any, Any]] = {}
        self._make_scheduler = make_scheduler
        self._scheduler: Scheduler | None = None
        self._state: dict[str, Any] = {}  # what is put into states; empty while there is no scheduler
        self._threads: anyio.CapacityLimiter | None = None  # those of `def` endpoints
        self._drained_by = 0.0  # in the loop's time, once draining has begun

    @property
    def ready(self) -> bool:
        """Whether requests are taken, and can be computed: the scheduler is open, the server does not drain, and work
        whose requests were cut short does not hold every place, every stream, or every thread of anyio's."""
        return self.is_open and not self.limiter.draining and not self._held_up()

    @property
    def is_open(self) -> bool:
        """Whether there is a scheduler."""
        return self._scheduler is not None

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, while it is open.

        Raises:
            RuntimeError: if there is none. Not SchedulerClosed: a client would get that as a server that shuts down.
        """
        if self._scheduler is None:
            raise RuntimeError(
                "the scheduler is not open: the server must run ASGI's lifespan (`uvicorn --lifespan on`), and a test"
                " `async with asyncsched.testing.lifespan(app)`. An application that is mounted in another gets no"
                " lifespan: add `Serving` to the outer one alone"
            )
        return self._scheduler

    def estimated_wait(self) -> float | None:
        """Seconds until requests in progress and tasks in the backlog are done, by the measured rates; None if
        unknown."""
        found = [self.limiter.estimated_wait(), self._scheduler.load().estimated_wait if self._scheduler else None]
        return max([seconds for seconds in found if seconds is not None], default=None)

    def adopt(self, exchange: Exchange, scope: Scope, work: asyncio.Task[None]) -> None:
        """Adopt the work of a request that is answered now. The work was cancelled, and keeps its place and its reserve
        until it ends."""
        exchange.left = True
        self.adopted[work] = scope
        work.add_done_callback(partial(self._release, exchange))

    def _release(self, exchange: Exchange, work: asyncio.Task[None]) -> None:
        del self.adopted[work]
        self.limiter.release(exchange)
        error = None if work.cancelled() else work.exception()
        if error is not None and not isinstance(error, DeadlineExceeded | TaskCancelled):
            logger.error("%s raised after it was cut short and answered", exchange.name, exc_info=error)

    def bodies(self) -> list[Task]:
        """The tasks that still run though their requests were cut short and answered: their own, and those of batches
        and steps that nobody waits for any more."""
        own = [task for scope in self.adopted.values() for task in scope._running()]
        if self._scheduler is None:
            return own
        return own + [task for answerer in self._scheduler._runtime.answerers for task in answerer.unwanted()]

    def _held_up(self) -> bool:
        """Whether work whose requests were cut short holds every place, thread or stream, so nothing else can run."""
        adopted, threads = self.limiter.adopted, self._threads
        if adopted >= self.limiter.max_requests:
            return True
        if threads is not None and adopted >= threads.total_tokens and threads.available_tokens <= 0:
            return True
        if self._scheduler is None or not (bodies := self.bodies()):
            return False
        runtime, first = self._scheduler._runtime, dict[Lane | None, Task]()
        for task in sorted(launched(runtime.engine.root), key=lambda task: task.number):  # as a stream runs them
            first.setdefault(task.lane, task)
        return all(first.get(lane) in bodies for lanes in runtime.lanes.values() for lane in lanes.compute)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Scheduler]:
        """Open the scheduler; at the end drain and close it. ASGI's lifespan does this; a test may.

        Raises:
            TaskTooLarge: if no request could ever be answered.
            RuntimeError: if it is open already.
        """
        async with self._make_scheduler() as scheduler:
            if self._scheduler is not None:
                raise RuntimeError("this Serving is open already: make one for each application that a server starts")
            self.limiter.draining = self.limiter.closed = False
            batch = max([batcher.reserve or 0 for batcher in self.batchers.values()], default=0)
            reserve = 0 if callable(self.options.reserve) else self.options.reserve or 0
            check_reserve(reserve + batch, scheduler.statistics().max_bytes, "a request with its batch (reserve=)")
            self.body_room.limit = self._most_for_bodies(scheduler.statistics().max_bytes)
            self._scheduler, self._state = scheduler, {"scheduler": scheduler, "serving": self}
            lanes = scheduler._runtime.lanes.values()
            self.limiter.streams = sum([len(one.compute) for one in lanes])
            scheduler.add_instrument(self.limiter)
            self._threads = anyio.to_thread.current_default_thread_limiter()
            if self.shown:
                self.summary = Summary()
                scheduler.add_instrument(self.summary)
            drain = Drain(self._answer_all, self._refuse)
            with drain_on_signals(drain) if self.options.drain_on_sigterm else contextlib.nullcontext():
                try:
                    yield scheduler
                    await self.drain()
                    await self._close(scheduler)
                finally:
                    self.limiter.draining = self.limiter.closed = True
                    self._scheduler = self.summary = None
                    self._state = {}

    def _most_for_bodies(self, max_bytes: int | None) -> int | None:
        given, most = self.options.max_bodies, self.options.max_body
        if not isinstance(given, str):
            return given
        return None if max_bytes is None else max(max_bytes // 4, most or 0)

    def put_into(self, state: MutableMapping[str, Any]) -> Scheduler:
        """Put the scheduler and this server into the state of a lifespan or a request. What another `Serving` has put
        there, or this one when it was open before, is replaced. Returns the scheduler.

        Raises:
            RuntimeError: if there is something of the application's by these names, or there is no scheduler.
        """
        for name, own in self._state.items():
            if name in state and not isinstance(state[name], Scheduler | Service):
                raise RuntimeError(_OTHERS.format(name, type(state[name]).__name__))
            state[name] = own
        return self.scheduler

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise RuntimeError if an application that has started has put something of its own into the state instead."""
        if isinstance(inner := state.get("serving"), Service) and inner is not self:  # a `Serving` of its own
            return
        for name, own in self._state.items():
            if state.get(name) is not own:
                raise RuntimeError(_OTHERS.format(name, type(state.get(name)).__name__))

    async def warm_up(self) -> None:
        """Await `warm_up`, if there is one. The application has started."""
        if self.options.warm_up is not None:
            await self.options.warm_up(self.scheduler)

    async def drain(self) -> None:
        """Wait for the requests in progress; after `drain_timeout` they are cancelled. Those that come meanwhile are
        answered too, and end their connections. Then refuse new ones, and wait for the last."""
        await self._answer_all()
        await self._refuse()

    async def _answer_all(self) -> None:
        if not self.limiter.draining:
            self.limiter.draining = True
            self._drained_by = asyncio.get_running_loop().time() + self.options.drain_timeout
        await self._finish(self._drained_by)

    async def _refuse(self) -> None:
        self.limiter.closed = True
        await self._finish(max(self._drained_by, asyncio.get_running_loop().time() + _LAST))

    async def _finish(self, until: float) -> None:
        """Wait for the requests that are in progress now, and cancel them if they take too long."""
        left = self.limiter.in_progress()
        try:
            async with asyncio.timeout_at(until):
                await self.limiter.answered(left)
        except TimeoutError:
            count = self.limiter.end(left, ShuttingDown())
            told = "1 request was" if count == 1 else f"{count:,} requests were"
            logger.warning("%s cancelled after %g s of draining", told, self.options.drain_timeout)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST):
                    await self.limiter.answered(left)

    async def _close(self, scheduler: Scheduler) -> None:
        """Wait for tasks that requests have left behind, such as a batch that nobody wants any more."""
        if self.adopted:
            await asyncio.wait(self.adopted, timeout=self._time_left())
        try:
            await scheduler.aclose(timeout=self._time_left())
        except TimeoutError as error:
            logger.warning("%s", error)

    def _time_left(self) -> float:
        return max(_LAST, self._drained_by - asyncio.get_running_loop().time())


SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LOOKS: Final = 20  # most, at connections that have sent nothing yet
_PAUSE: Final = 0.05  # seconds before each look
_CLOSING: Final = 5.0  # seconds, in which a server closes its socket: a worker of gunicorn looks once a second


class Drain(NamedTuple):
    """How a server drains."""

    answer_all: Callable[[], Awaitable[None]]  # answer the requests in progress, and go on taking requests
    refuse: Callable[[], Awaitable[None]]  # refuse new requests, and wait for the last


_drains: list[Drain] = []  # of the servers that wait for a signal, which is meant for the whole process


@contextmanager
def drain_on_signals(drain: Drain) -> Iterator[None]:
    """In the block, at the first SIGTERM or Ctrl-C, requests are answered before the handler that was there before gets
    the signal. A server that closes its socket only when it gets the signal gets it before requests are refused.

    A second signal goes to that handler at once. If several such blocks are open, all drain at the same time.

    Outside the main thread, where Python allows no signal handlers, nothing changes. Nor does it for a signal whose
    handler is not Python's: a program that embeds Python awaits `Serving.drain` itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []

    async def drain_and_pass_on(number: int) -> None:
        await asyncio.gather(*[drain.answer_all() for drain in _drains])
        last = await _stop_accepting(previous[number]) or previous[number] is signal.SIG_DFL  # which ends the process
        if not last:
            pass_on(number)
            await asyncio.sleep(_CLOSING)  # the end of the lifespan ends it
        await asyncio.gather(*[drain.refuse() for drain in _drains])
        if last:
            pass_on(number)

    def pass_on(number: int) -> None:
        signal.signal(number, previous[number])
        signal.raise_signal(number)

    def begin(number: int) -> None:
        if tasks:
            pass_on(number)
        else:
            tasks.append(loop.create_task(drain_and_pass_on(number)))

    def handler(number: int, frame: object) -> None:
        loop.call_soon_threadsafe(begin, number)  # which wakes the loop

    # A handler that is not Python's, as in a program that embeds Python, cannot be called from here, nor set again.
    previous = {int(number): found for number in SIGNALS if (found := signal.getsignal(number)) is not None}
    for number in previous:
        signal.signal(number, handler)
    _drains.append(drain)
    try:
        yield
    finally:
        _drains.remove(drain)
        for number in previous:
            if signal.getsignal(number) is handler:
                signal.signal(number, previous[number])
        for task in tasks:
            task.cancel()


async def _stop_accepting(handler: Any) -> bool:
    """Have uvicorn take no more connections, if `handler` is its own for a signal, and let those that it has taken send
    their requests. uvicorn itself would close such connections unanswered. Of other servers nothing is known here.
    Returns whether it is uvicorn."""
    server = getattr(handler, "__self__", None)
    listening, state = getattr(server, "servers", None), getattr(server, "server_state", None)
    if not listening or state is None:
        return False
    for one in listening:
        one.close()
    for _ in range(_LOOKS):
        await asyncio.sleep(_PAUSE)
        if all(getattr(connection, "cycle", state) is not None for connection in state.connections):
            break
    return True
