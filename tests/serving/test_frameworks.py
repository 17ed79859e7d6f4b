"""Inside Starlette and FastAPI, through real requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
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
from starlette.routing import Mount, Route  # noqa: E402

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
