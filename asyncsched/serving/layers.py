"""What a request passes through on its way to the application, from the outside in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..runtime.context import outside
from .client import Client, Disconnected
from .exchange import Exchange
from .problems import find_problem

if TYPE_CHECKING:
    from .server import Serving

Inner = Callable[[Exchange], Awaitable[None]]
Layer = Callable[["Serving", Inner, Exchange], Awaitable[None]]


async def observed(serving: Serving, inner: Inner, exchange: Exchange) -> None:
    """Instruments see everything, refusals too."""
    with ExitStack() as stack:
        for instrument in serving.instruments:
            stack.enter_context(instrument(exchange))
        await inner(exchange)


async def explained(serving: Serving, inner: Inner, exchange: Exchange) -> None:
    """Exceptions of the library become problem details, unless a response has begun."""
    try:
        await inner(exchange)
    except Disconnected:
        return  # nobody is there to be told
    except Exception as error:
        if exchange.status is not None or not await _told(serving, exchange, error):
            raise


async def _told(serving: Serving, exchange: Exchange, error: Exception) -> bool:
    """Whether the exception was one to be answered. Here, since no frame that it passed through may hold it: that is a
    cycle, and under overload the collector would stop the loop for the sake of refusals."""
    problem = find_problem(error, serving.estimated_wait())
    if problem is not None:
        await problem.answer(exchange)
    return problem is not None


async def admitted(serving: Serving, inner: Inner, exchange: Exchange) -> None:
    """Those beyond the limits are refused, before anything is read or waited for."""
    if serving.options.tenant is not None:
        exchange.tenant = serving.options.tenant(exchange.scope)
    with serving.gate.admit(exchange):
        await inner(exchange)


async def attended(serving: Serving, inner: Inner, exchange: Exchange) -> None:
    """The body is read ahead; a client that leaves, or does not send it, cancels what is inside."""
    client = Client(exchange, max_body=serving.options.max_body, body_timeout=serving.options.body_timeout)
    async with client:
        serving.gate.on_end(exchange, client.end)
        await inner(exchange)


async def scoped(serving: Serving, inner: Inner, exchange: Exchange) -> None:
    """All work of the request belongs to one scope, which waits for it, or cancels it when the deadline passes."""
    scheduler, options = serving.scheduler, serving.options
    state: dict[str, Any] = exchange.scope.setdefault("state", {})
    state.update(scheduler=scheduler, serving=serving)
    deadline = options.deadline(exchange.scope) if callable(options.deadline) else options.deadline
    scope = scheduler.scope(name=exchange.name, reserve=options.reserve, deadline=deadline, tenant=exchange.tenant)
    with outside():  # a server starts a pipelined request from within the one before
        async with scope:
            await inner(exchange)


LAYERS: Final[tuple[Layer, ...]] = (observed, explained, admitted, attended, scoped)


def compose(serving: Serving) -> Inner:
    """The application, inside the layers."""

    async def application(exchange: Exchange) -> None:
        await serving.app(exchange.scope, exchange.receive, exchange.send)

    inner: Inner = application
    for layer in reversed(LAYERS):
        inner = partial(layer, serving, inner)
    return inner
