"""The layers through which a request passes on its way to the application, and the frameworks inside.

A framework turns an exception that it does not know into a 500, before `Serving` sees it. So it is told of those that
`Serving` answers, by the framework's own way to register handlers: Starlette and FastAPI (also where they are mounted
in another application), Quart. Others are named when the server starts, with what to write. What the application has
registered itself stays.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from time import perf_counter
from typing import Any, Final

from .._blocks import set_variable
from .._system import Log
from ..runtime.context import ambient
from .client import Cancelling, Client, Disconnected
from .http import TABLE, App, ASGIScope, BodyRefused, Exchange, Problem, Receive, Send, ShuttingDown, find_problem
from .service import Service

_NOBODY = "no tenant"
_LINGERS = 2.0  # seconds, for most of what an honest client has still to send


async def handle(service: Service, app: App, exchange: Exchange) -> None:
    """Answer a request. It is counted, whatever becomes of it."""
    began, failed = perf_counter(), True
    try:
        await (_watched if service.instruments else _answered)(service, app, exchange)
        failed = False
    finally:
        if service.count is not None:
            service.count(exchange, began, failed)


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
        await (problem.answer(exchange) if exchange.status is None else exchange.end_events())
    except Exception as error:
        if not await (_told if exchange.status is None else _told_in_events)(service, exchange, error):
            raise


async def _run(service: Service, app: App, exchange: Exchange) -> None:
    """Let a request in, and give it to the application, in one scope that waits for its work.

    One that is refused is so before anything is read or waited for. A client that leaves, or does not send its body,
    ends the request.

    The work has an asyncio task of its own. A function that runs in a thread cannot be ended, nor can a handler that
    ignores its cancellation. So a request that is cut short is answered in time, and the service adopts the work that
    still runs.
    """
    options, limiter, bodies, name = service.options, service.limiter, service.body_room, exchange.name
    if options.tenant is not None:
        exchange.tenant = options.tenant(exchange.scope)
    seconds = options.deadline(exchange.scope) if callable(options.deadline) else options.deadline
    client = Client(exchange, max_body=options.max_body, max_bodies=bodies.limit, body_timeout=options.body_timeout)
    inside, exchange.limiter = limiter.admit(exchange, name, seconds, client.end), limiter
    work = None
    try:
        scheduler = service.scheduler
        service.put_into(exchange.scope.setdefault("state", {}))
        reserve = options.reserve(exchange.scope) if callable(options.reserve) else options.reserve
        wait = None if reserve is None else options.wait
        whose, weight = exchange.tenant, None
        if whose is None and seconds is not None:  # as one tenant they go the oldest first, with a share for each
            whose, weight = _NOBODY, len(limiter)
        scope = scheduler.scope(name=name, reserve=reserve, wait=wait, deadline=seconds, tenant=whose, weight=weight)
        room, cancelling = client.needed(), Cancelling()

        async def in_scope() -> None:
            if ambient.get() is not None:  # a server starts a pipelined request within the last one
                set_variable(ambient, None)
            scope._takes_turn = scope._cancels = False
            try:
                with cancelling:
                    if room:
                        await bodies.claim(room)
                    try:
                        async with scope:
                            limiter.entered(exchange, inside, scope._entered())
                            if room:
                                client.begin()
                            exchange.on_taken, exchange.on_late = scope._lift_deadline, cancelling.check
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
    """Answer an exception, if there is an answer to it. A function of its own, since no frame that the exception passed
    may hold it: that would be a cycle, and under overload the collector would stop the loop to collect refusals."""
    problem = find_problem(error, service.estimated_wait)
    if isinstance(problem, BodyRefused) and problem.sending:
        await _discard(exchange.receive)
    if problem is not None:
        exchange.refusal = type(error).__name__
        await problem.answer(exchange)
    return problem is not None


async def _told_in_events(service: Service, exchange: Exchange, error: Exception) -> bool:
    """Tell an exception as the last event, where a response of events has begun. Returns whether that is all there is
    to do with it: not with a bug."""
    problem = find_problem(error, service.estimated_wait)
    if problem is None and error.__cause__ and str(error).startswith("Caught handled exception"):  # Starlette's words
        problem = find_problem(error.__cause__, service.estimated_wait)
    told = await exchange.end_events((problem or Problem(500, "The server failed.")).as_event())
    return told and problem is not None


async def _discard(receive: Receive) -> None:
    """Read the rest of a body, for a while. A connection that closes while its client still sends is reset, and the
    answer lost."""
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
        problem = find_problem(error, service.estimated_wait)
        if problem is None:
            raise error

        async def answer(scope: ASGIScope, receive: Receive, send: Send) -> None:
            await problem.answer(Exchange(scope, receive, send))

        return answer

    async def in_quart(error: Exception) -> tuple[bytes, int, dict[str, str]]:
        status, headers, body = answer_to(service, error)
        return body, status, headers

    starlette: Any = getattr(sys.modules.get("starlette.applications"), "Starlette", ())
    for one in _applications(app):
        if isinstance(one, starlette):
            for kind in ANSWERED:
                if kind not in one.exception_handlers:
                    one.add_exception_handler(kind, in_starlette)
        elif (framework := type(one).__module__.partition(".")[0]) == "quart":
            for kind in ANSWERED:
                one.register_error_handler(kind, in_quart)
        elif framework == "litestar" and type(one).__name__ == "Litestar":
            _logger.warning(_TOLD, "Litestar")


def answer_to(service: Service, error: Exception) -> tuple[int, dict[str, str], bytes]:
    """The status, headers and body with which an exception is answered. Raises the exception if it is none of them."""
    problem = find_problem(error, service.estimated_wait)
    if problem is None:
        raise error
    return problem.rendered()


def _applications(app: Any) -> Iterator[Any]:
    """An application, and those in it: in middleware, or mounted."""
    todo, seen = [app], set[int]()
    for one in todo:
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            routes = getattr(one, "routes", None)
            todo += [getattr(one, "app", None), *(routes if isinstance(routes, list | tuple) else ())]
