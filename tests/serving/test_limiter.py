"""Requests that would come too late are refused, by how long those of their routes keep streams busy."""

from __future__ import annotations

import asyncio
import importlib
import queue
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.serving import Serving
from asyncsched.serving.http import ASGIScope, Receive, Send
from tests.waiting import Clock, turns, until

from .rig import Call, opened, reply

READ_IT = (
    "asyncsched.serving.limiter", "asyncsched.devices.host.memory", "asyncsched.flow.scope",
    "asyncsched.flow.batcher.batcher", "asyncsched.flow.batcher.runners",
)  # fmt: skip
ONE_STREAM = {"make": lambda: asc.Scheduler("cpu", streams=1, max_ops=2)}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for name in READ_IT:
        module = importlib.import_module(name)
        for time in ("monotonic", "perf_counter"):
            if hasattr(module, time):
                monkeypatch.setattr(module, time, clock)
    monkeypatch.setattr("asyncsched.serving.limiter._REMEMBERED", 6000.0)  # seconds are hundredths of those of a server
    return clock


class App:
    """Each request is one call, or several, on the only stream, that take as long as the test says."""

    def __init__(self, clock: Clock, calls: int = 1) -> None:
        self.began: list[str] = []  # whose calls have begun
        self.answered: list[str] = []
        self._clock, self._calls = clock, calls
        self._ended = self._awaited = 0
        self._ends: queue.SimpleQueue[None] = queue.SimpleQueue()

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        self.s = asc.current_scheduler()
        for _ in range(self._calls):
            await self.call(scope["path"])
        self.answered.append(scope["path"])
        await reply(send)

    async def call(self, path: str) -> None:
        """One call."""
        try:
            await asc.current_scheduler().call(self._body, path)
        finally:
            self._awaited += 1

    def _body(self, path: str) -> None:
        self.began.append(path)
        self._ends.get(timeout=60)

    async def runs(self) -> str:
        """The path of the call that runs, once it does."""
        await until(lambda: len(self.began) > self._ended)
        return self.began[-1]

    async def takes(self, seconds: float) -> None:
        """The call that runs takes so long."""
        await self.runs()
        self._ended += 1
        self._clock.passes(seconds)
        before, awaited = self.s.statistics().tasks_completed, self._awaited
        self._ends.put(None)
        await until(lambda: self.s.statistics().tasks_completed > before and self._awaited > awaited)
        await turns()

    async def finish(self, seconds: float) -> None:
        """So do all that wait."""
        while await self.more():
            await self.takes(seconds)

    async def more(self) -> bool:
        await turns()
        return self.s.statistics().tasks_in_flight + self.s.statistics().tasks_pending > 0


async def ask(server: Serving, paths: str, **more: Any) -> list[Call]:
    """A request for each path. They get as far as they can."""
    calls = [Call(server, f"/{path}", **more).feed() for path in paths]
    await turns()
    return calls


def refused(calls: list[Call]) -> int:
    """How many are refused."""
    return sum(call.task.done() and call.sent[0]["status"] == 503 for call in calls)


def opened_for(app: App, **options: Any) -> Any:
    make = lambda: asc.Scheduler("cpu", streams=1, max_ops=2)  # noqa: E731
    return opened(app, make, **{"deadline": 1000, "max_requests": 1000} | options)


async def test_without_a_measurement_nothing_is_refused(clock: Clock) -> None:
    app = App(clock)
    async with opened_for(app) as server:
        calls = await ask(server, "abcdefghijklmnopqrstuvwxyz")
        assert (refused(calls), len(server.limiter)) == (0, 26)
        await app.finish(1)


async def test_what_would_come_too_late_is_refused_by_the_work_that_is_left(clock: Clock) -> None:
    app = App(clock)
    async with opened_for(app) as server:
        await ask(server, "a")
        await app.takes(100)
        calls = await ask(server, "a" * 11)
        done = [call for call in calls if call.task.done()]
        assert len(done) == 2  # eight wait for 100 to 800 s, and take 100 s: nine tenths of 1000
        assert (await done[0].answer())[0] == 503
        assert done[0].headers["retry-after"] == "100"
        assert server.limiter.refused == 2
        if server.render_metrics is not None:
            assert b'asyncsched_refusals_total{reason="TooLate"} 2.0' in server.render_metrics()[1]
        await until(lambda: len(app.began) == 2)
        clock.passes(50)
        assert refused(await ask(server, "a")) == 1
        clock.passes(50)  # the call that runs should be over now
        assert refused(await ask(server, "a")) == 0
        await app.finish(1)
        assert (await calls[0].answer())[0] == 200
        assert len(app.answered) == 1 + 9 + 1


async def test_one_is_let_in_if_nothing_is_waited_for_so_that_a_stall_is_forgotten(clock: Clock) -> None:
    app = App(clock)
    async with opened_for(app) as server:
        await ask(server, "a")
        await app.takes(5000)
        for _ in range(50):
            assert refused(await ask(server, "a")) == 0
            first = refused(await ask(server, "a"))
            await app.finish(10)
        assert first == 0
        assert app.answered.count("/a") > 50


async def test_a_route_that_is_too_slow_is_tried_once_a_minute_beside_others(clock: Clock) -> None:
    app = App(clock)
    async with opened_for(app) as server:
        for path, seconds in (("s", 5000), ("a", 10)):
            await ask(server, path)
            await app.takes(seconds)
        await ask(server, "aa")  # one of them waits
        assert refused(await ask(server, "s")) == 1
        clock.passes(6000)
        await ask(server, "aaaaaaaaaa")
        assert refused(await ask(server, "s")) == 0
        assert refused(await ask(server, "s")) == 1
        await app.finish(10)


async def test_what_can_no_longer_be_in_time_is_refused_then(clock: Clock) -> None:
    app = App(clock)
    async with opened_for(app) as server:
        calls = await ask(server, "a" * 12)
        await app.takes(200)  # the first measurement
        await until(lambda: sum(call.task.done() for call in calls) == 8)
        assert [call.sent[0]["status"] for call in calls if call.sent] == [200] + [503] * 7
        assert refused(calls[5:]) == 7
        await app.finish(200)
        assert [(await call.answer())[0] for call in calls[:5]] == [200] * 5


async def test_what_has_done_little_of_its_work_is_refused_like_what_has_not_begun(clock: Clock) -> None:
    app, gate = App(clock), asyncio.Event()

    async def parts(scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/a":
            await app.call(scope["path"])
            await gate.wait()
        await app(scope, receive, send)

    async with opened_for(parts) as server:
        app.s = server.scheduler
        gate.set()
        for path, seconds in (("l", (10, 200)), ("m", (200, 10))):
            await ask(server, path)
            for one in seconds:
                await app.takes(one)
        gate.clear()
        little, much = await ask(server, "l"), await ask(server, "m")
        await app.takes(10)
        await app.takes(200)
        await ask(server, "a")
        await until(lambda: len(app.began) == 7)
        clock.passes(700)
        await app.takes(50)
        assert (refused(little), refused(much)) == (1, 0)
        gate.set()
        await app.finish(10)
        assert (await much[0].answer())[0] == 200


async def test_longer_requests_get_in_beside_shorter_ones(clock: Clock) -> None:
    app = App(clock)
    async with opened_for(app) as server:
        for path, seconds in (("l", 600), ("s", 20)):
            await ask(server, path)
            await app.takes(seconds)
        await ask(server, "l")
        await app.takes(600)
        for _ in range(3):
            calls = await ask(server, "s" * 40)
            await app.takes(20)
            await app.takes(20)
            assert refused(await ask(server, "l")) == 0
            assert refused(calls) > 20  # 300 s of them are let in, and leave room for it
            while await app.more():
                await app.takes(600 if await app.runs() == "/l" else 20)


async def test_a_request_that_only_waits_for_something_else_is_not_refused(clock: Clock) -> None:
    app, gate = App(clock), asyncio.Event()

    async def mixed(scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/w":
            await gate.wait()
            await reply(send)
        else:
            await app(scope, receive, send)

    async with opened_for(mixed) as server:
        await ask(server, "a")
        await app.takes(100)
        gate.set()
        await ask(server, "w")
        gate.clear()
        calls = await ask(server, "w" * 100)
        assert not any(call.task.done() for call in calls)
        assert refused(await ask(server, "a")) == 0
        await app.finish(100)
        gate.set()
        for call in calls:
            assert (await call.answer())[0] == 200


async def test_a_tenant_that_asks_for_little_is_let_in_beside_one_that_asks_for_much(clock: Clock) -> None:
    app = App(clock)
    async with opened_for(app, tenant=lambda scope: scope["who"]) as server:
        await ask(server, "a", who="much")
        await app.takes(100)
        calls = await ask(server, "a" * 20, who="much")
        assert refused(calls) == 11
        assert refused(await ask(server, "b", who="little")) == 0
        assert refused(await ask(server, "a", who="much")) == 1
        for _ in range(4):
            await app.takes(100)
        assert "/b" in app.answered  # in its turn
        await app.finish(100)


async def test_a_route_that_keeps_no_stream_busy_is_not_refused_and_holds_up_nobody(clock: Clock) -> None:
    app = App(clock)

    async def mixed(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await (reply(send) if scope["path"] == "/q" else app(scope, receive, send))

    async with opened_for(mixed, deadline=lambda scope: 10 if scope["path"] == "/q" else 1000) as server:
        await ask(server, "a")
        await app.takes(100)
        await ask(server, "q")
        assert refused(await ask(server, "aaaaa")) == 0
        assert [(await call.answer())[0] for call in await ask(server, "qq")] == [200, 200]
        assert refused(await ask(server, "aaaaaa")) == 2
        await app.finish(100)


class Named:
    """A tenant that counts how often one is compared with another."""

    compared = 0
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        Named.compared += 1
        return self is other


async def test_a_request_costs_the_same_beside_many_tenants(clock: Clock) -> None:
    app = App(clock)
    async with opened_for(app, tenant=lambda scope: Named()) as server:
        await ask(server, "a")
        await app.takes(1)
        before = Named.compared
        await ask(server, "a" * 50)
        await app.finish(1)
        assert len(app.answered) == 51
        assert Named.compared - before <= 51  # once each, with that of the scope around


async def test_the_oldest_request_goes_first(clock: Clock) -> None:
    app = App(clock, calls=3)
    async with opened_for(app) as server:
        await ask(server, "abcdef")
        await app.finish(1)
    assert app.answered == ["/a", "/b", "/c", "/d", "/e", "/f"]
    assert app.began.index("/f") > max(i for i, path in enumerate(app.began) if path == "/a")


async def test_work_that_runs_while_no_request_comes_leaves_nothing_behind() -> None:
    async with opened(reply, **ONE_STREAM) as server:
        for _ in range(1000):
            await server.scheduler.call(int)
        assert len(server.limiter._ended) < 500


async def test_a_kind_is_a_route_where_the_framework_tells_it(clock: Clock) -> None:
    pytest.importorskip("starlette")
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    app = App(clock)

    async def item(request: Any) -> Any:
        await app.call(request.url.path)
        return PlainTextResponse("fine")

    async def cheap(request: Any) -> Any:
        return PlainTextResponse("fine")

    starlette: Any = Starlette(routes=[Route("/items/{number}", item), Route("/cheap/{number}", cheap)])
    async with opened_for(starlette) as server:
        app.s = server.scheduler

        async def one(path: str) -> Call:
            call = Call(server, path, method="GET", query_string=b"").feed()
            await turns()
            return call

        await one("/items/0")
        await app.takes(100)
        for number in range(20):
            await one(f"/cheap/{number}")
        calls = [await one(f"/items/{number}") for number in range(100, 130)]
        await app.takes(100)
        assert sum(call.sent[0]["status"] == 503 for call in calls if call.sent) >= 18
        await app.finish(100)
        for number in range(3000):
            await one(f"/cheap/{number}")
        assert len(server.limiter._routes) <= 1024


async def test_deadlines_of_requests_may_differ_or_be_missing(clock: Clock) -> None:
    app = App(clock)
    async with opened_for(app, deadline=lambda scope: {"/n": None, "/l": 5000}.get(scope["path"], 1000)) as server:
        for path in "anl":
            await ask(server, path)
            await app.takes(100)
        calls = await ask(server, "n" * 20)
        assert not any(call.task.done() for call in calls)
        assert refused(await ask(server, "a")) == 1
        await app.finish(1)
