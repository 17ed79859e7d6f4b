"""Frameworks that answer exceptions themselves, before `Serving` sees them: those that are inside it.

A framework turns an exception that it does not know into a 500. So it is told of those that `Serving` answers, by the
framework's own way to register handlers: Starlette and FastAPI (also where they are mounted in another application),
Quart. Others are named when the server starts, with what to write. What the application has registered itself stays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from .._log import Log
from .http import TABLE, ASGIScope, Exchange, Problem, Receive, Send, find_problem
from .service import Service

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
