"""A scheduler inside an ASGI application: the layers through which a request passes on its way to the application, and
the frameworks inside.

A framework turns an exception that it does not know into a 500, before `Serving` sees it. So handlers for those that
`Serving` answers are registered in the framework's own way: in Starlette and FastAPI (also where they are mounted in
another application), and Quart. For Litestar the log says, when the server starts, what to write. Handlers that the
application has registered itself stay.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from time import perf_counter
from typing import Any, Final

from .._arguments import check_int, check_number, check_plain, is_coroutine_function, parse_bytes
from .._blocks import asynccontextmanager, set_variable
from .._instead import naming_arguments
from .._system import Log
from ..flow.batcher.batcher import Batcher
from ..flow.batcher.stepper import Stepper
from ..flow.tasks import check_wait
from ..runtime.context import ambient, innermost
from ..scheduler import Scheduler
from .client import Cancelling, Client, Disconnected
from .endpoints import BUCKETS, ENDPOINTS, Metrics
from .http import (
    TABLE,
    App,
    ASGIScope,
    BodyRefused,
    Exchange,
    Instrument,
    Problem,
    Receive,
    Send,
    ShuttingDown,
    find_problem,
)  # fmt: skip
from .lifespan import run_lifespan
from .limiter import Limiter
from .service import Options, Service

Endpoint = Callable[["Serving", Exchange], Awaitable[None]]


class Serving(Service):
    """ASGI middleware: a scheduler for the application, and a scope for each request.

    The scheduler opens when the application starts, before the first request: on a GPU that imports CuPy and makes the
    context. Use `warm_up=` for other work that is slow at first. Handlers find the scheduler as the ambient one, and as
    `scheduler` in ASGI's state (`request.state.scheduler`). Each HTTP request is one scope: leaving it waits for its
    tasks, and a client that disconnects cancels it. WebSockets pass through. Add it below a framework's own error
    handler, as the frameworks' `add_middleware` does: exceptions that it knows become problem details, and the others
    pass. Around an application of Starlette, FastAPI or Quart (`Serving(app)`), and for those that are mounted in it,
    it registers handlers for these exceptions, where they have none, since they would answer 500. Add it last: around
    it, Starlette's `@app.middleware("http")` would report a client that left as an error, "No response returned".

    >>> import asyncio, functools, httpx
    >>> async def app(scope, receive, send):
    ...     answer = await scope["state"]["scheduler"].call(pow, 2, 10)
    ...     await send({"type": "http.response.start", "status": 200, "headers": []})
    ...     await send({"type": "http.response.body", "body": b"%d" % answer})
    >>> async def main():
    ...     serving = Serving(app, functools.partial(Scheduler, "cpu"), max_requests=100)
    ...     async with serving.open():  # which a server does, by ASGI's lifespan
    ...         async with httpx.AsyncClient(transport=httpx.ASGITransport(serving)) as client:
    ...             for path in ("/power", "/readyz"):
    ...                 print((await client.get(f"http://test{path}")).text.strip())
    >>> asyncio.run(main())
    1024
    ready

    Args:
        app: the application.
        scheduler: makes the scheduler, once per start: `functools.partial(asyncsched.Scheduler, max_bytes="2 GiB")`.
        max_requests: most requests in progress. One more is answered 503, with Retry-After from the measured rate.
        max_requests_per_tenant: most requests of one tenant in progress. One more is answered 429. Requests without a
            tenant have no such bound.
        tenant: a function of ASGI's scope that names the tenant, by a header say; or None for a request without one.
            `max_requests_per_tenant` needs it.
        deadline: seconds for one request, after which it is cancelled and answered 504; None for no bound. Or a
            function of ASGI's scope that gives them: use it if some answers are streams. A request whose answer would
            come later than that is refused with 503, mostly before its body is read: by the work of those that were let
            in, and the time for which requests of its route have kept streams busy. A function that runs in a
            thread cannot be ended: one of a task, or a `def` endpoint in a thread of anyio's. It keeps its request's
            place, reserve and thread until it ends, and is shown as adopted in metrics and status. Readiness fails
            while such functions hold every place, stream or thread. If the response has begun, it is cut off:
            DeadlineExceeded reaches the server, which logs it; a stream of server-sent events ends with an `event:
            error` instead, which has the problem, as after any other exception. Once the server has taken the last
            byte, for which it may wait until the client reads, nothing is cancelled any more: a background task may
            take longer.
        reserve: bytes that each request claims before its handler runs; see `Scheduler.scope`. Or a function of ASGI's
            scope that gives them, None for a request without. If the bytes depend on the body, let the handler open a
            scope of its own, `s.scope(reserve=, wait=)`, before its response begins.
        wait: most seconds for a request to wait for its reserve. If there is no room by then, or none is expected by
            then, it is answered 503, with Retry-After, and its handler does not begin. Without `wait`, requests wait
            for as long as it takes.
        max_body: most bytes of a request's body. A larger one is answered 413. None for no bound but `max_bodies`.
        max_bodies: most bytes of all bodies in memory. "auto" is a quarter of the scheduler's max_bytes, but at least
            one max_body; and no bound where max_bytes is None. A body is read when there is room for all of it, by its
            Content-Length, or max_body if it has none, and after the request has its `reserve`. The room is given back
            when the request's work has ended. A body without Content-Length is answered 411 if max_body is None. None
            for no bound.
        body_timeout: seconds for a body to arrive. After them, 408 is answered.
        drain_timeout: seconds for the requests in progress when the server shuts down. Requests that are left then are
            cancelled and answered 503. Of responses that have begun, streams of events are ended in order, and others
            are cut off. Where something kills the process after some time (gunicorn after its `graceful_timeout` of 30
            s), let this be 4 seconds less.
        batchers: to be shown in the metrics, by name. The start fails if the scheduler has no room for the reserves of
            a request and a batch.
        steppers: to be shown in the metrics, by name.
        instruments: watch requests, besides Prometheus's metrics (which need prometheus-client).
        endpoints: paths that are answered here: health, readiness, metrics, status.
        drain_on_sigterm: at SIGTERM (or Ctrl-C) hand the signal to the server only when the requests in progress are
            answered, or when it comes again. Those that come meanwhile are answered too, with `Connection: close`. Then
            uvicorn's socket is closed, and the requests of connections that it has taken are answered, for a second at
            most. Another server gets the signal then, and requests are answered until it ends the lifespan, for five
            seconds at most, and refused after that. False leaves signals alone. The process that runs the
            application must get the signal before the server does. Under hypercorn's own command it does not:
            hypercorn's first process keeps the signal and has the other close the socket at once, so later connections
            are reset. Nor does hypercorn's own handler give way to another. Start hypercorn in your program instead,
            with a trigger that is set afterwards:

                async def main():
                    stop, loop = asyncio.Event(), asyncio.get_running_loop()
                    signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(stop.set))
                    await hypercorn.asyncio.serve(app, config, shutdown_trigger=stop.wait)

        warm_up: a coroutine function of the scheduler, such as `lambda s: s.warm_up(model, np.zeros((1, 784),
            np.float32))`. It is awaited when the application has started, before the server is told so. If it raises,
            the start fails.
        buckets: the upper bounds of the metrics' histograms of seconds: of requests, of waits in batchers, and of
            steppers' outputs. They increase. Choose them around what you promise.

    Raises:
        ValueError, TypeError: for arguments that make no sense.
    """

    @naming_arguments
    def __init__(
        self,
        app: App,
        scheduler: Callable[[], Scheduler] = Scheduler,
        *,
        max_requests: int = 1024,
        max_requests_per_tenant: int | None = None,
        tenant: Callable[[ASGIScope], Hashable] | None = None,
        deadline: float | Callable[[ASGIScope], float | None] | None = None,
        reserve: int | str | Callable[[ASGIScope], int | str | None] | None = None,
        wait: float | None = None,
        max_body: int | str | None = "8 MiB",
        max_bodies: int | str | None = "auto",
        body_timeout: float | None = 30.0,
        drain_timeout: float = 30.0,
        batchers: Mapping[str, Batcher[Any, Any]] | None = None,
        steppers: Mapping[str, Stepper[Any, Any]] | None = None,
        instruments: Sequence[Instrument] = (),
        endpoints: Mapping[str, Endpoint] = ENDPOINTS,
        drain_on_sigterm: bool = True,
        warm_up: Callable[[Scheduler], Awaitable[object]] | None = None,
        buckets: Sequence[float] = BUCKETS,
    ) -> None:
        if not callable(scheduler) or is_coroutine_function(scheduler):
            raise TypeError(f"scheduler makes one, once per start: `lambda: Scheduler(...)`, not {scheduler!r}")
        if tenant is not None and not callable(tenant):
            raise TypeError(
                "tenant takes a function of ASGI's scope, such as `lambda scope: dict(scope['headers']).get(b'x-key')`,"
                f" not {tenant!r}"
            )
        for name, function in (("tenant", tenant), ("deadline", deadline), ("reserve", reserve)):
            check_plain(f"{name}=", function)
        for instrument in instruments:
            check_plain("an instrument", instrument)
            if not callable(instrument):
                raise TypeError(
                    f"an instrument is a function of the exchange that gives a context manager, not {instrument!r}"
                )
        if warm_up is not None and not callable(warm_up):
            raise TypeError(
                f"warm_up takes a function of the scheduler, such as `lambda s: s.warm_up(fn, x)`, not {warm_up!r}"
            )
        for name, shown, kind in (("batchers", batchers, Batcher), ("steppers", steppers, Stepper)):
            if not isinstance(shown, Mapping | None):
                raise TypeError(f"{name} takes them in a dict, by name, not in a {type(shown).__name__}")
            for one in (shown or {}).values():
                if not isinstance(one, kind):
                    raise TypeError(f"{name} takes instances of {kind.__name__}, not {one!r}")
        if not isinstance(endpoints, Mapping):
            raise TypeError(f"endpoints takes functions in a dict, by path, not in a {type(endpoints).__name__}")
        check_int("max_requests", max_requests)
        check_int("max_requests_per_tenant", max_requests_per_tenant, none="no bound")
        if max_requests_per_tenant is not None and tenant is None:
            raise ValueError("max_requests_per_tenant needs `tenant=`, which says whose a request is")
        if not callable(deadline):
            deadline = check_number("deadline", deadline, "seconds", none="no bound")
        body_timeout = check_number("body_timeout", body_timeout, "seconds", none="no bound")
        drain_timeout = check_number("drain_timeout", drain_timeout, "seconds", zero=True)
        most = None if max_body is None else parse_bytes(max_body, "max_body", none="no bound")
        in_all = max_bodies
        if max_bodies is not None and max_bodies != "auto":
            in_all = parse_bytes(max_bodies, "max_bodies", none="no bound")
            if in_all < (most or 0):
                raise ValueError(f"max_bodies must hold one body, of max_body={most:,} bytes, and is {max_bodies!r}")
        check_wait(wait, reserve)
        reserved = reserve if reserve is None or callable(reserve) else parse_bytes(reserve, "reserve")
        options = Options(
            deadline,
            reserved,
            wait,
            tenant,
            most,
            in_all,
            body_timeout,
            drain_timeout,
            drain_on_sigterm,
            warm_up,
        )
        super().__init__(scheduler, Limiter(max_requests, max_requests_per_tenant), options)
        self.app = app
        self.batchers: Mapping[str, Batcher[Any, Any]] = batchers or {}
        self.steppers: Mapping[str, Stepper[Any, Any]] = steppers or {}
        self._endpoints = endpoints
        self.shown: bool = bool(endpoints)
        if _prometheus():
            metrics = Metrics(self, buckets)
            self.render_metrics: Callable[[], tuple[str, bytes]] | None = metrics.render
            self.count: Callable[[Exchange, float, bool], None] | None = metrics.count
        self.instruments.extend(instruments)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Scheduler]:
        """Open the scheduler; at the end drain and close it. ASGI's lifespan does this; a test may.

        Raises:
            TaskTooLarge: if no request could ever be answered.
            RuntimeError: if it is open already.
        """
        register(self, self.app)
        async with super().open() as scheduler:
            yield scheduler

    def answer(self, error: Exception) -> tuple[int, dict[str, str], bytes]:
        """The status, headers and body with which an exception is answered: for an exception handler of a framework.

        >>> serving = Serving(app=None)
        >>> serving.answer(Problem(422, "A digit is 64 numbers."))[0]
        422

        Raises:
            Exception: the exception itself, if it is none of those that `Serving` answers.
        """
        return answer_to(self, error)

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await run_lifespan(self, self.app, scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, limiter=self.limiter)
        if endpoint := self._endpoints.get(scope["path"].removeprefix(scope.get("root_path", ""))):
            await self._answer(endpoint, exchange)
            return
        began, failed = perf_counter(), True
        try:
            await (_watched if self.instruments else _answered)(self, self.app, exchange)
            failed = False
        finally:  # it is counted, whatever becomes of it
            if self.count is not None:
                self.count(exchange, began, failed)

    async def _answer(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Answer GET and HEAD."""
        if exchange.scope["method"] not in ("GET", "HEAD"):
            await Problem(405, "Use GET.").answer(exchange, allow="GET, HEAD")
            return
        try:
            await endpoint(self, exchange)
        except Problem as problem:
            await problem.answer(exchange)


_NOBODY = "no tenant"
_LINGERS = 2.0  # seconds, for most of what an honest client has still to send


async def _watched(service: Service, app: App, exchange: Exchange) -> None:
    with ExitStack() as instruments:
        for instrument in service.instruments:
            instruments.enter_context(instrument(exchange))
        await _answered(service, app, exchange)


async def _answered(service: Service, app: App, exchange: Exchange) -> None:
    """Exceptions of the library become problem details, unless a response has begun. Instruments see them too."""
    try:
        await _run(service, app, exchange)
    except Disconnected:
        pass  # no client is there to be answered
    except ShuttingDown as problem:  # no bug: raised on, the server would log a traceback for each request
        exchange.refusal = "draining"
        await (problem.answer(exchange) if exchange.status is None else exchange.end_events())
    except Exception as error:
        if not await (_told if exchange.status is None else _told_in_events)(service, exchange, error):
            raise


async def _run(service: Service, app: App, exchange: Exchange) -> None:
    """Let a request in, and give it to the application, in one scope that waits for its work.

    A request is refused before anything is read or waited for. A client that leaves, or does not send its body, ends
    the request.

    The work has an asyncio task of its own. A function that runs in a thread cannot be ended, nor can a handler that
    ignores its cancellation. So a request that is cut short is answered in time, and the service adopts the work that
    still runs.
    """
    options, limiter, bodies, name = service.options, service.limiter, service.body_room, exchange.name
    if options.tenant is not None:
        exchange.tenant = options.tenant(exchange.scope)
    seconds = options.deadline(exchange.scope) if callable(options.deadline) else options.deadline
    client = Client(exchange, max_body=options.max_body, max_bodies=bodies.limit, body_timeout=options.body_timeout)
    inside = limiter.admit(exchange, name, seconds, client.end)
    work = None
    try:
        scheduler = service.put_into(exchange.scope.setdefault("state", {}))
        reserve = options.reserve(exchange.scope) if callable(options.reserve) else options.reserve
        wait = None if reserve is None else options.wait
        whose, weight = exchange.tenant, None
        if whose is None and seconds is not None:  # as one tenant they go the oldest first, with a share for each
            whose, weight = _NOBODY, len(limiter)
        scope = scheduler.scope(name=name, reserve=reserve, wait=wait, deadline=seconds, tenant=whose, weight=weight)
        room, cancelling = client.needed(), Cancelling()

        async def in_scope() -> None:
            if ambient.get() is not None:  # a server may start a pipelined request in the context of the last one
                set_variable(ambient, None)
            scope._takes_turn = scope._cancels = False
            try:
                with cancelling:
                    if room:
                        await bodies.claim(room)
                    try:
                        async with scope:
                            assert scope._inner is not None
                            limiter.entered(exchange, inside, scope._inner)
                            if room:
                                client.begin()
                            exchange.on_late = cancelling.check
                            if seconds is not None:
                                exchange.on_taken = scope._lift_deadline
                            await app(exchange.scope, client.receive, exchange.send)
                    finally:
                        if room:
                            bodies.release(room)
            finally:
                client.ends()

        work = asyncio.create_task(in_scope())
        await client.attend(work, cancelling, seconds)
    finally:
        adopted = work is not None and not work.done()
        if work is not None and adopted:
            service.adopt(exchange, scope, work)
        limiter.leave(exchange, inside, adopted=adopted)
        del work  # avoids a cycle: its exception holds this frame


async def _told(service: Service, exchange: Exchange, error: Exception) -> bool:
    """Answer an exception, if there is an answer to it. Returns whether there was.

    It is a function of its own, since no frame that the exception passed may hold the answer, which may be the same
    object: that would be a cycle, and under overload the collector would stop the loop to collect such cycles.
    """
    problem = find_problem(error, service.estimated_wait)
    if isinstance(problem, BodyRefused) and problem.sending:
        await _discard(exchange.receive)
    if problem is not None:
        exchange.refusal = exchange.refusal or type(error).__name__
        await problem.answer(exchange)
    return problem is not None


async def _told_in_events(service: Service, exchange: Exchange, error: Exception) -> bool:
    """Send an exception as the last event, if the response is a stream of events. Returns whether the exception is
    answered by that: a bug is raised all the same."""
    problem = find_problem(error, service.estimated_wait)
    # Starlette's words for an exception that has a handler, after the response has begun
    if problem is None and error.__cause__ and str(error).startswith("Caught handled exception"):
        problem = find_problem(error.__cause__, service.estimated_wait)
    told = await exchange.end_events((problem or Problem(500, "The server failed.")).as_event())
    return told and problem is not None


async def _discard(receive: Receive) -> None:
    """Read the rest of a body, for a while. If a connection closes while its client still sends, it is reset, and the
    answer is lost."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGERS):
            while (await receive()).get("more_body"):
                pass


ANSWERED: Final[tuple[type[Exception], ...]] = (Problem, *[row.error for row in TABLE], ExceptionGroup)
"""The exceptions that `Serving` answers, if they leave a handler. A group only if all of its parts are among them."""

_TOLD: Final = (
    "%s answers exceptions itself, so a Problem or QueueFull in a handler becomes a 500: register a handler of its for"
    " `asyncsched.serving.ANSWERED` that returns what `serving.answer(error)` gives: the status, the headers, the body"
)
_logger: Final = Log("asyncsched.serving")


def register(service: Service, app: Any) -> None:
    """Have the applications in `app` answer the exceptions of the library."""

    async def in_starlette(request: Any, error: Exception) -> Any:
        if request.scope["type"] != "http":  # a websocket passes through, and so does its error
            raise error
        problem = _answer_of_framework(service, error)

        async def answer(scope: ASGIScope, receive: Receive, send: Send) -> None:
            await problem.answer(Exchange(scope, receive, send))

        return answer

    async def in_quart(error: Exception) -> tuple[bytes, int, dict[str, str]]:
        status, headers, body = answer_to(service, error)
        return body, status, headers

    starlette: Any = getattr(sys.modules.get("starlette.applications"), "Starlette", ())
    for one in _applications(app):
        if isinstance(one, starlette):
            for kind in _unanswered(one.exception_handlers):
                one.add_exception_handler(kind, in_starlette)
        elif (framework := type(one).__module__.partition(".")[0]) == "quart":
            for kind in _unanswered(one.error_handler_spec[None][None]):
                one.register_error_handler(kind, in_quart)
        elif framework == "litestar" and type(one).__name__ == "Litestar":
            _logger.warning(_TOLD, "Litestar")


def _unanswered(handlers: Iterable[Any]) -> list[type[Exception]]:
    """The exceptions of the library for which an application has no handler of its own, nor for what they derive from.
    One for `Exception` does not count: it answers the application's bugs."""
    own = {*handlers} - {Exception}
    return [kind for kind in ANSWERED if own.isdisjoint(kind.__mro__)]


def answer_to(service: Service, error: Exception) -> tuple[int, dict[str, str], bytes]:
    """The status, headers and body with which an exception is answered. Raises the exception if it is none of them."""
    return _answer_of_framework(service, error).rendered()


def _answer_of_framework(service: Service, error: Exception) -> Problem:
    """The answer that a framework gives to an exception. It counts as one of `Serving`. Raises the exception if there
    is none."""
    problem = find_problem(error, service.estimated_wait)
    if problem is None:
        raise error
    if (here := innermost()) is not None:
        service.limiter.answered_by_framework(here.core, error)
    return problem


def _applications(app: Any) -> Iterator[Any]:
    """An application, and those in it: in middleware, or mounted."""
    todo, seen = [app], set[int]()
    for one in todo:
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            routes = getattr(one, "routes", None)
            todo += [getattr(one, "app", None), *(routes if isinstance(routes, list | tuple) else ())]


@cache
def _prometheus() -> bool:
    """Whether Prometheus's client is installed. If so, it is imported."""
    try:
        importlib.import_module("prometheus_client.core")
    except ImportError:
        return False
    return True


_prometheus()  # now, since it takes some tenths of a second, which would block a loop that makes a `Serving`
