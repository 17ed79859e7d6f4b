"""Opening, draining, closing: by ASGI's lifespan and by a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.serving import Serving, service
from asyncsched.serving.http import App, ASGIScope, Message, Receive, Send
from asyncsched.serving.service import SIGNALS, Drain, drain_on_signals
from tests.waiting import turns, until

from .rig import BEGUN, Call, Held, echo, get, opened, raises, reply, returns, serving


class Server:
    """What an ASGI server does around the requests."""

    def __init__(self, app: App) -> None:
        self.state: dict[str, Any] = {}
        self.said: list[Message] = []
        self.incoming: asyncio.Queue[Message] = asyncio.Queue()
        self.incoming.put_nowait({"type": "lifespan.startup"})
        self.task = asyncio.ensure_future(
            app({"type": "lifespan", "state": self.state}, self.incoming.get, self._send)  # type: ignore[arg-type]
        )

    async def _send(self, message: Message) -> None:
        self.said.append(message)

    @property
    def heard(self) -> list[str]:
        return [message["type"].removeprefix("lifespan.") for message in self.said]

    async def started(self) -> None:
        await until(lambda: bool(self.said))

    async def stop(self) -> None:
        self.incoming.put_nowait({"type": "lifespan.shutdown"})
        await self.task


async def answers_all(scope: ASGIScope, receive: Receive, send: Send) -> None:
    """Does not look what it is asked."""
    await reply(send)


class Framework:
    """An application with a lifespan of its own."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            return await echo(scope, receive, send)
        assert (await receive())["type"] == "lifespan.startup"
        assert await scope["state"]["scheduler"].call(int) == 0
        self.events.append("started")
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
        assert await scope["state"]["scheduler"].call(int) == 0  # open until the application has stopped
        self.events.append("stopped")
        await send({"type": "lifespan.shutdown.complete"})
        return None


async def test_around_the_applications_own() -> None:
    app = Framework()
    middleware = serving(app)
    assert not middleware.ready
    server = Server(middleware)
    await server.started()
    assert (server.heard, app.events, middleware.ready) == (["startup.complete"], ["started"], True)
    assert server.state == {"scheduler": middleware.scheduler, "serving": middleware}
    scheduler = middleware.scheduler
    assert await Call(middleware).feed(b"hello").answer() == (200, b"hello")
    await server.stop()
    assert server.heard == ["startup.complete", "shutdown.complete"]
    assert app.events == ["started", "stopped"]
    assert "closed" in repr(scheduler)
    assert not middleware.ready


@pytest.mark.parametrize(
    "app", [raises(NotImplementedError("http alone")), returns, answers_all], ids=["raises", "returns", "answers"]
)
async def test_an_application_without_one(app: App) -> None:
    server = Server(serving(app))
    await server.started()
    await server.stop()
    assert server.heard == ["startup.complete", "shutdown.complete"]


async def test_opened_again_after_it_was_closed() -> None:
    middleware = serving(echo)
    for _ in range(2):
        async with middleware.open():
            assert (await Call(middleware).feed(b"x").answer())[0] == 200


async def test_an_open_one_is_not_opened_again() -> None:
    async with opened(echo) as server:
        with pytest.raises(RuntimeError, match="open already"):
            async with server.open():
                pass
        assert (await get(server, "/readyz").answer())[0] == 200


async def test_a_scheduler_that_does_not_open() -> None:
    def make() -> asc.Scheduler:
        raise ValueError("no such device")

    server = Server(serving(echo, make))
    with pytest.raises(ValueError, match="no such device"):
        await server.task
    assert server.said == [{"type": "lifespan.startup.failed", "message": "ValueError: no such device"}]


@pytest.mark.parametrize("when", ["startup", "shutdown"])
async def test_an_application_that_fails(when: str) -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await receive()
        if when == "shutdown":
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": f"lifespan.{when}.failed", "message": "its own words"})
        raise LookupError

    middleware = serving(app)
    server = Server(middleware)
    if when == "shutdown":
        await server.started()
        server.incoming.put_nowait({"type": "lifespan.shutdown"})
    with pytest.raises(LookupError):
        await server.task
    assert server.said[-1] == {"type": f"lifespan.{when}.failed", "message": "its own words"}
    assert not middleware.ready


ENDS = [
    SystemExit(3),
    asyncio.CancelledError(),
    BaseExceptionGroup("group", [asyncio.CancelledError()]),
    BaseExceptionGroup("group", [LookupError(), SystemExit(3)]),
]


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("error", ENDS, ids=repr)
async def test_a_startup_that_fails_by_no_exception_is_told(error: BaseException, announced: bool) -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await receive()
        if announced:
            await send({"type": "lifespan.startup.failed", "message": "its own words"})
        raise error

    middleware, said = serving(app), list[Message]()

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        said.append(message)

    with pytest.raises(type(error)):
        await middleware({"type": "lifespan"}, receive, send)
    words = "its own words" if announced else f"{type(error).__name__}: {error}"
    assert said == [{"type": "lifespan.startup.failed", "message": words}]
    assert not middleware.ready


async def test_a_failed_startup_is_told_while_the_application_goes_on() -> None:
    gate = asyncio.Event()

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "its own words"})
        await gate.wait()

    server = Server(serving(app))
    await server.started()
    assert server.heard == ["startup.failed"]
    gate.set()
    await server.task
    assert server.heard == ["startup.failed"]


async def test_a_server_that_cancels_the_lifespan_is_told_nothing() -> None:
    server = Server(serving(Framework()))
    await server.started()
    server.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await server.task
    assert server.heard == ["startup.complete"]


async def test_draining_answers_who_is_inside_and_who_comes_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    middleware = serving(held)
    server = Server(middleware)
    await server.started()
    inside = [Call(middleware).feed() for _ in range(3)]
    await until(lambda: held.entered == 3)
    stopping = asyncio.ensure_future(server.stop())
    await until(lambda: middleware.limiter.draining)
    late, of_http2 = Call(middleware).feed(), Call(middleware, http_version="2").feed()
    await until(lambda: held.entered == 5)
    assert [(await get(middleware, path).answer())[0] for path in ("/healthz", "/readyz")] == [200, 503]
    assert server.heard == ["startup.complete"]
    held.gate.set()
    assert [(await call.answer())[0] for call in (*inside, late, of_http2)] == [200] * 5
    assert [call.headers.get("connection") for call in (*inside, late, of_http2)] == ["close"] * 4 + [None]
    await stopping
    after = Call(middleware).feed()
    status, body = await after.answer()
    assert (status, body["detail"], after.headers["connection"]) == (503, "The server is shutting down.", "close")
    assert server.heard == ["startup.complete", "shutdown.complete"]
    assert "of draining" not in caplog.text  # it ended with the last request, not when its time was over


async def test_what_is_refused_while_it_drains_ends_its_connection_too_and_so_do_endpoints() -> None:
    held = Held()
    middleware = serving(held, max_requests=1)
    server = Server(middleware)
    await server.started()
    inside = Call(middleware).feed()
    await until(lambda: held.entered)
    stopping = asyncio.ensure_future(server.stop())
    await until(lambda: middleware.limiter.draining)
    for path, status in (("/", 503), ("/healthz", 200), ("/readyz", 503)):
        call = get(middleware, path)
        assert (await call.answer())[0] == status
        assert call.headers.get("connection") == "close"
    held.gate.set()
    await inside.task
    await stopping


async def test_what_is_not_answered_in_time_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    with caplog.at_level(logging.WARNING):
        async with opened(held, drain_timeout=0.01) as middleware:
            call = Call(middleware).feed()
            await until(lambda: held.entered == 1)
            await middleware.drain()
            assert (await call.answer())[0] == 503
    assert held.cancelled == 1
    assert "1 request was cancelled after 0.01 s" in caplog.text


async def test_a_log_that_fails_keeps_nobody_from_being_cancelled(failing_log: Any) -> None:
    held = Held()
    async with opened(held, drain_timeout=0.01) as middleware:
        call = Call(middleware).feed()
        await until(lambda: held.entered == 1)
        await middleware.drain()
        assert (await call.answer())[0] == 503
    assert failing_log.texts == ["1 request was cancelled after 0.01 s of draining"]


@pytest.mark.parametrize(("kind", "complete"), [(b"text/event-stream; charset=utf-8", True), (b"text/csv", False)])
async def test_a_response_that_has_begun_is_cut_off_and_nothing_is_raised_for_it(
    kind: bytes, complete: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def endless(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"Content-Type", kind)]})
        while True:
            await send({"type": "http.response.body", "body": b"data: 1", "more_body": True})

    with caplog.at_level(logging.INFO):
        async with opened(endless, drain_timeout=0.01) as server:
            calls = [Call(server).feed() for _ in range(20)]
            await until(lambda: all(len(call.sent) > 2 for call in calls))
            await server.drain()
            for call in calls:
                await call.task  # a server writes out what is raised here
                assert call.sent[-1].get("more_body", False) is not complete
    assert len(caplog.records) == 1


async def test_a_body_that_runs_too_long_is_named_and_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncsched.serving.service._LAST", 0.01)
    gate = threading.Event()
    middleware = serving(echo, drain_timeout=0.0)
    with caplog.at_level(logging.WARNING):
        async with middleware.open() as s:
            s.submit_nowait(gate.wait, 60, name="endless")
    gate.set()
    assert "endless" in caplog.text


@pytest.fixture(params=SIGNALS)
def number(request: pytest.FixtureRequest) -> int:
    """Of a signal."""
    return int(request.param)


@pytest.fixture
def received(number: int) -> Iterator[list[int]]:
    """Those that reached the server."""
    found: list[int] = []
    previous = signal.signal(number, lambda number, frame: found.append(number))
    yield found
    signal.signal(number, previous)


async def test_a_signal_drains_first_and_is_passed_on(number: int, received: list[int]) -> None:
    held = Held()
    middleware = Serving(held, lambda: asc.Scheduler("cpu"))
    async with middleware.open():
        call = Call(middleware).feed()
        await until(lambda: held.entered == 1)
        signal.raise_signal(number)
        await until(lambda: middleware.limiter.draining)
        late = Call(middleware).feed()
        await until(lambda: held.entered == 2)
        assert received == []
        held.gate.set()
        assert [(await one.answer())[0] for one in (call, late)] == [200, 200]
        await until(lambda: received == [number])
        assert (await Call(middleware).feed().answer())[0] == 200  # the server may not have closed its socket yet


async def test_requests_are_refused_once_the_server_has_had_time_to_close_its_socket(
    number: int, received: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_CLOSING", 0)
    middleware = Serving(echo, lambda: asc.Scheduler("cpu"))
    async with middleware.open():
        signal.raise_signal(number)
        await until(lambda: received == [number] and middleware.limiter.closed)
        assert (await Call(middleware).feed().answer())[0] == 503


async def test_one_signal_drains_all_of_several_at_once(number: int, received: list[int]) -> None:
    held = [Held(), Held()]
    servers = [Serving(app, lambda: asc.Scheduler("cpu")) for app in held]
    async with servers[0].open(), servers[1].open():
        calls = [Call(server).feed() for server in servers]
        await until(lambda: [app.entered for app in held] == [1, 1])
        signal.raise_signal(number)
        await until(lambda: all(server.limiter.draining for server in servers))
        for app, call in zip(held, calls, strict=True):
            await turns()
            assert received == []
            app.gate.set()
            assert (await call.answer())[0] == 200
        await until(lambda: received == [number])


async def test_a_second_signal_is_passed_on_at_once(number: int, received: list[int]) -> None:
    with drain_on_signals(Drain(asyncio.Event().wait, asyncio.Event().wait)):  # type: ignore[arg-type]
        signal.raise_signal(number)
        await turns(5)
        assert received == []
        signal.raise_signal(number)
        await until(lambda: received == [number])
    signal.raise_signal(number)
    assert len(received) == 2


def test_in_another_thread_signals_are_left_alone(number: int, received: list[int]) -> None:
    async def main() -> None:
        async with Serving(echo, lambda: asc.Scheduler("cpu")).open():
            pass

    before = signal.getsignal(number)
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    assert signal.getsignal(number) is before


async def test_warms_up_once_the_application_has_started_and_before_it_is_told() -> None:
    app, gate = Framework(), asyncio.Event()

    async def warm_up(s: asc.Scheduler) -> None:
        app.events.append("warms up")
        await s.warm_up(lambda: asc.ones(3))
        await gate.wait()

    server = Server(serving(app, warm_up=warm_up))
    await until(lambda: len(app.events) == 2)
    await turns()
    assert (app.events, server.heard) == (["started", "warms up"], [])
    gate.set()
    await server.started()
    await server.stop()
    assert server.heard == ["startup.complete", "shutdown.complete"]


@pytest.mark.parametrize("app", [Framework, lambda: returns], ids=["its own lifespan", "none"])
async def test_where_warming_up_fails_it_does_not_start(app: Any) -> None:
    asked: list[asc.Scheduler] = []

    async def warm_up(s: asc.Scheduler) -> None:
        asked.append(s)
        await s.call(divmod, 1, 0)

    server = Server(serving(app(), warm_up=warm_up))
    with pytest.raises(ZeroDivisionError):
        await server.task
    assert server.heard == ["startup.failed"]
    assert server.said[0]["message"].startswith("ZeroDivisionError: ")
    assert len(asked) == 1


def test_what_warms_up_is_a_function() -> None:
    with pytest.raises(TypeError, match="warm_up takes a function of the scheduler, such as `lambda s: "):
        Serving(echo, warm_up=3)  # type: ignore[arg-type]


async def test_a_handler_of_a_program_in_which_python_is_embedded_is_left_alone(
    number: int, received: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python knows it as None, and can neither call it nor set it again."""
    handler, getsignal = signal.getsignal(number), signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda asked: None if asked == number else getsignal(asked))
    with drain_on_signals(Drain(asyncio.Event().wait, asyncio.Event().wait)):  # type: ignore[arg-type]
        assert getsignal(number) is handler
        assert [getsignal(other) for other in SIGNALS if other != number] != [signal.SIG_DFL]
        signal.raise_signal(number)
        await until(lambda: received == [number])
    assert getsignal(number) is handler


class Keeps:
    """An application whose lifespan puts something into the state."""

    def __init__(self, **state: Any) -> None:
        self._state = state

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        await receive()
        scope["state"].update(self._state)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})


@pytest.mark.parametrize("name", ["scheduler", "serving"])
@pytest.mark.parametrize("kept", [object(), None, "another"])
async def test_an_application_that_keeps_something_by_the_same_name_does_not_start(name: str, kept: Any) -> None:
    async with asc.Scheduler("cpu") as other:
        server = Server(serving(Keeps(**{name: other if kept == "another" else kept})))
        with pytest.raises(RuntimeError, match=f"keeps something of its own .* as '{name}' in its state"):
            await server.task
    assert server.heard == ["startup.failed"]
    assert "give it another name" in server.said[0]["message"]


async def test_an_application_that_keeps_other_things_and_one_with_a_server_in_it() -> None:
    for app in (Keeps(jobs=1), serving(Keeps(jobs=1))):
        server = Server(serving(app))
        await server.started()
        assert server.heard == ["startup.complete"]
        assert server.state["jobs"] == 1
        await server.stop()


async def test_a_request_that_has_something_by_the_same_name_is_not_given_another_thing() -> None:
    async with opened(echo) as server:
        with pytest.raises(RuntimeError, match=r"keeps something of its own \(str\) as 'scheduler'"):
            await Call(server, state={"scheduler": "jobs"}).feed().task
        assert await Call(server, state={"jobs": 1}).feed(b"a").answer() == (200, b"a")
        assert not len(server.limiter)


@pytest.mark.parametrize("path", ["/a\nERROR forged", "/\x1b[2Jb", "/\u202eb", "/\x85", "/\ud800"])
async def test_a_path_stays_on_its_line_of_a_log(path: str, caplog: pytest.LogCaptureFixture) -> None:
    gate = asyncio.Event()
    seen: list[str] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        seen.append(scope["path"])
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()
            raise LookupError

    async with opened(app, deadline=BEGUN) as server:
        assert (await Call(server, path).feed().answer())[0] == 504
        gate.set()
        await until(lambda: not server.adopted)
    assert seen == [path]
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert "raised after it was cut short" in record.getMessage()
