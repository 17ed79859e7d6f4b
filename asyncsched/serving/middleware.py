"""What a request passes through on its way to the application."""

from __future__ import annotations

from contextlib import ExitStack

from ..flow.scope import Scope
from ..runtime.context import outside
from .client import Client, Disconnected
from .http import App, Exchange, ShuttingDown, find_problem
from .service import Service


async def handle(service: Service, app: App, exchange: Exchange) -> None:
    """Exceptions of the library become problem details, unless a response has begun. Instruments see them too."""
    with ExitStack() as instruments:
        for instrument in service.instruments:
            instruments.enter_context(instrument(exchange))
        try:
            await _run(service, app, exchange)
        except Disconnected:
            pass  # nobody is there to be told
        except ShuttingDown as problem:  # nobody's mistake: raised on, the server would write it out for each request
            await (problem.answer(exchange) if exchange.status is None else exchange.cut())
        except Exception as error:
            if exchange.status is not None or not await _told(service, exchange, error):
                raise


async def _run(service: Service, app: App, exchange: Exchange) -> None:
    """Let a request in, and give it to the application.

    One beyond the limits is refused before anything is read or waited for. A client that leaves, or does not send its
    body, ends the request. All its work belongs to one scope, which waits for it.
    """
    options = service.options
    if options.tenant is not None:
        exchange.tenant = options.tenant(exchange.scope)
    client = Client(exchange, max_body=options.max_body, body_timeout=options.body_timeout)
    with service.limiter.admit(exchange, client.end), outside():  # a server starts a pipelined request within the last
        async with client, _scope(service, exchange):
            await app(exchange.scope, exchange.receive, exchange.send)


def _scope(service: Service, exchange: Exchange) -> Scope:
    scheduler, options = service.scheduler, service.options
    exchange.scope.setdefault("state", {}).update(scheduler=scheduler, serving=service)
    deadline = options.deadline(exchange.scope) if callable(options.deadline) else options.deadline
    return scheduler.scope(name=exchange.name, reserve=options.reserve, deadline=deadline, tenant=exchange.tenant)


async def _told(service: Service, exchange: Exchange, error: Exception) -> bool:
    """Whether the exception was one to be answered. Here, since no frame that it passed through may hold it: that is a
    cycle, and under overload the collector would stop the loop for the sake of refusals."""
    problem = find_problem(error, service.estimated_wait())
    if problem is not None:
        await problem.answer(exchange)
    return problem is not None
