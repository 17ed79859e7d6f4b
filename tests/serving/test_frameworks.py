"""Inside Starlette and FastAPI, through real requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.serving import Problem, Serving

starlette = pytest.importorskip("starlette", reason="these tests need starlette and httpx: asyncsched[test]")
httpx = pytest.importorskip("httpx", reason="these tests need starlette and httpx: asyncsched[test]")

from starlette.applications import Starlette  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402
from starlette.requests import Request  # noqa: E402
from starlette.responses import JSONResponse, StreamingResponse  # noqa: E402
from starlette.routing import Mount, Route, WebSocketRoute  # noqa: E402
from starlette.websockets import WebSocket  # noqa: E402

try:
    import fastapi
except ImportError:
    fastapi = None  # type: ignore[assignment]


async def total(rows: list[list[float]]) -> list[float | Exception]:
    return [asc.QueueFull("no") if len(row) > 3 else sum(row) for row in rows]


batcher: asc.Batcher[list[float], float] = asc.Batcher(total)


async def predict(request: Request) -> JSONResponse:
    try:
        row = await request.json()
    except ValueError:
        raise Problem(400, "Malformed JSON.") from None
    return JSONResponse({"total": await asc.Batcher(total)(row)})


async def stream(request: Request) -> StreamingResponse:
    s = request.state.scheduler

    async def numbers() -> AsyncIterator[str]:
        for i in range(3):
            yield f"data: {await s.call(pow, i, 2)}\n\n"

    return StreamingResponse(numbers(), media_type="text/event-stream")


async def broken(request: Request) -> JSONResponse:
    raise LookupError("a bug")


@asynccontextmanager
async def client(**options: Any) -> AsyncIterator[Any]:
    """A client of an application whose lifespan runs."""
    routes = [
        Route("/predict", predict, methods=["POST"]),
        Route("/stream", stream),
        Route("/broken", broken),
    ]
    options = {"scheduler": lambda: asc.Scheduler("cpu"), "drain_on_sigterm": False} | options
    app = Starlette(routes=routes, middleware=[Middleware(Serving, **options)])
    async with _lifespan(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as found:
            yield found


@asynccontextmanager
async def _lifespan(app: Any) -> AsyncIterator[None]:
    from .test_lifespan import Server

    server = Server(app)
    await server.started()
    assert server.heard == ["startup.complete"]
    yield
    await server.stop()
    assert server.heard == ["startup.complete", "shutdown.complete"]


async def test_in_and_out() -> None:
    async with client() as c:
        assert (await c.post("/predict", json=[1, 2])).json() == {"total": 3}
        assert (await c.get("/stream")).text == "data: 0\n\ndata: 1\n\ndata: 4\n\n"
        assert (await c.get("/healthz")).text == "ok\n"


async def test_what_goes_wrong() -> None:
    async with client(max_body=20) as c:
        malformed = await c.post("/predict", content=b"[1,")
        assert malformed.status_code == malformed.json()["status"] == 400
        assert (await c.post("/predict", content=b"[" + b" " * 30)).status_code == 413
        full = await c.post("/predict", json=[1, 2, 3, 4])
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        assert (await c.get("/broken")).status_code == 500
        assert (await c.get("/nowhere")).status_code == 404


async def test_fastapi() -> None:
    if fastapi is None:
        pytest.skip("FastAPI is not installed")
    app = fastapi.FastAPI()

    async def double(request: fastapi.Request, x: float) -> dict[str, float]:
        return {"doubled": await request.state.scheduler.call(float, x) * 2}

    double.__annotations__ = {"request": fastapi.Request, "x": float}
    app.get("/double")(double)
    app.add_middleware(Serving, scheduler=lambda: asc.Scheduler("cpu"), drain_on_sigterm=False)
    async with _lifespan(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as c:
        assert (await c.get("/double?x=2")).json() == {"doubled": 4}
        assert (await c.get("/readyz")).status_code == 200


def full(request: Any) -> Any:
    error = asc.QueueFull("no")
    error.retry_after = 3.0
    raise error


async def wrong(request: Request) -> JSONResponse:
    raise Problem(422, "A digit is 64 numbers.", pointer="/pixels")


async def several(request: Request) -> JSONResponse:
    raise ExceptionGroup("several", [asc.QueueFull("no"), asc.QueueFull("no")])


async def several_bugs(request: Request) -> JSONResponse:
    raise ExceptionGroup("several", [asc.QueueFull("no"), LookupError("a bug")])


async def own(request: Request) -> JSONResponse:
    raise asc.TaskTooLarge("no", 1, 0)


async def events(request: Request) -> StreamingResponse:
    async def numbers() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        raise asc.QueueFull("no")

    return StreamingResponse(numbers(), media_type="text/event-stream")


async def told(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse("my own", status_code=418)


class Around:
    """A middleware as people write them."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, *args: Any) -> None:
        await self.app(*args)


def inner() -> Starlette:
    handlers = {"full": full, "wrong": wrong, "several": several, "bugs": several_bugs, "own": own, "broken": broken}
    handlers["events"] = events
    routes = [Route(f"/{path}", endpoint) for path, endpoint in handlers.items()]
    return Starlette(routes=routes, exception_handlers={asc.TaskTooLarge: told})


def around(app: Any) -> Any:
    return Serving(app, lambda: asc.Scheduler("cpu"), drain_on_sigterm=False)


KINDS: dict[str, Callable[[], Any]] = {
    "outside": lambda: around(inner()),
    "outside of a middleware": lambda: around(Around(inner())),
    "mounted": lambda: around(Starlette(routes=[Mount("/", inner())])),
    "mounted in a middleware": lambda: around(Starlette(routes=[Mount("/", Around(inner()))])),
    "mounted, and inside": lambda: Starlette(
        routes=[Mount("/", inner())],
        middleware=[Middleware(Serving, scheduler=lambda: asc.Scheduler("cpu"), drain_on_sigterm=False)],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_exceptions_of_the_library_are_answered_wherever_the_framework_is(kind: str) -> None:
    app = KINDS[kind]()
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with _lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://test") as c:
        found = {path: await c.get(f"/{path}") for path in ("full", "wrong", "several", "bugs", "own", "broken")}
        before, _, event = (await c.get("/events")).text.partition("event: error\ndata: ")
        metrics = (await c.get("/metrics")).text
    for reason in ("QueueFull", "status 422", "ExceptionGroup"):
        assert f'asyncsched_refusals_total{{reason="{reason}"}} 1.0' in metrics or "prometheus-client" in metrics
    assert (before, json.loads(event)["status"]) == ("data: 1\n\n", 503)
    codes = {"full": 503, "wrong": 422, "several": 503, "bugs": 500, "own": 418, "broken": 500}
    assert {path: answer.status_code for path, answer in found.items()} == codes
    assert found["full"].headers["retry-after"] == "3"
    assert found["wrong"].json()["pointer"] == "/pixels"
    assert found["wrong"].headers["content-type"] == "application/problem+json"


async def test_an_exception_of_a_websocket_passes_through() -> None:
    async def handler(websocket: WebSocket) -> None:
        raise asc.QueueFull("no room")

    app = around(Starlette(routes=[WebSocketRoute("/", handler)]))
    async with _lifespan(app):
        with pytest.raises(asc.QueueFull, match="no room"):
            await app({"type": "websocket", "path": "/", "headers": []}, None, None)


async def test_fastapi_inside_of_it() -> None:
    if fastapi is None:
        pytest.skip("FastAPI is not installed")
    app = fastapi.FastAPI()

    async def depends() -> None:
        raise Problem(422, "A digit is 64 numbers.")

    app.get("/wrong", dependencies=[fastapi.Depends(depends)])(full)
    serving = around(app)
    transport = httpx.ASGITransport(serving)
    async with _lifespan(serving), httpx.AsyncClient(transport=transport, base_url="http://test") as c:
        assert (await c.get("/wrong?request=1")).status_code == 422


class Quart:
    """As much of it as is asked here."""

    __module__ = "quart.app"

    def __init__(self) -> None:
        self.handlers: dict[type[Exception], Any] = {}
        self.error_handler_spec = {None: {None: self.handlers}}  # by blueprint and by status

    def register_error_handler(self, kind: type[Exception], handler: Any) -> None:
        self.handlers[kind] = handler


class Litestar:
    __module__ = "litestar.app"


async def test_other_frameworks_are_asked_or_named(caplog: pytest.LogCaptureFixture) -> None:
    quart, litestar = Quart(), Litestar()
    async with around(quart).open():
        body, status, headers = await quart.handlers[Problem](Problem(422, "A digit is 64 numbers."))
        assert (status, headers["content-type"]) == (422, "application/problem+json")
        assert b"A digit is 64 numbers." in body
        assert (await quart.handlers[asc.QueueFull](asc.QueueFull("no")))[1] == 503
    assert not caplog.records
    async with around(litestar).open():
        assert "Litestar answers exceptions itself" in caplog.text
    with pytest.raises(LookupError):
        around(litestar).answer(LookupError())


@pytest.mark.parametrize("kind", [asc.QueueFull, asc.AsyncSchedError])
async def test_a_handler_of_the_applications_own_stays(kind: type[Exception]) -> None:
    async def own(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse("mine", 418)

    async def full(request: Request) -> None:
        raise asc.QueueFull("no")

    quart, app = Quart(), around(Starlette(routes=[Route("/", full)], exception_handlers={kind: own}))
    quart.register_error_handler(kind, own)
    async with around(quart).open():
        assert quart.handlers[kind] is own
        assert quart.handlers.get(asc.QueueFull, own) is own
        assert Problem in quart.handlers
    async with _lifespan(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as c:
        assert (await c.get("/")).status_code == 418


async def test_an_application_in_another_has_what_is_around_the_outer_one() -> None:
    async def doubled(request: Request) -> JSONResponse:
        return JSONResponse(await request.state.scheduler.call(float, 2) * 2)

    around = [Middleware(Serving, scheduler=lambda: asc.Scheduler("cpu"), drain_on_sigterm=False)]
    routes = [Route("/double", doubled)]
    app = Starlette(
        routes=[Mount("/in", Starlette(routes=routes)), Mount("/own", Starlette(routes=routes, middleware=around))],
        middleware=around,
    )
    async with _lifespan(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as c:
        assert (await c.get("/in/double")).json() == 4
        with pytest.raises(RuntimeError, match="mounted in another.*add `Serving` to the outer one"):
            await c.get("/own/double")


async def test_the_open_scheduler_in_a_lifespan_and_a_handler() -> None:
    found: list[asc.Scheduler] = []

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        found.append(asc.current_scheduler())
        yield

    async def handler(request: Request) -> JSONResponse:
        found.append(asc.current_scheduler())
        return JSONResponse(1)

    app = around(Starlette(routes=[Route("/", handler)], lifespan=lifespan))
    async with _lifespan(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as c:
        await c.get("/")
        assert found == [app.scheduler] * 2
        assert asc.current_scheduler() is app.scheduler
    with pytest.raises(asc.SchedulerClosed, match="no scheduler is open"):
        asc.current_scheduler()
