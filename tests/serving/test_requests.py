"""Requests: each is a scope, ends with its client, and is answered with the right status."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.serving import Problem
from asyncsched.serving.http import ASGIScope, Receive, Send
from tests.waiting import until

from .rig import Call, Held, Seen, echo, get, raises, read, reply, serving

pytestmark = pytest.mark.timeout(20)


async def test_a_handler_computes_in_a_scope_of_its_own_and_finds_the_scheduler() -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        s = scope["state"]["scheduler"]
        x = await s.put(np.frombuffer(await read(receive), np.uint8))
        assert [child.name for child in s._runtime.engine.root.children] == ["POST /sum"]
        await reply(send, str(await asc.sum(x).item()).encode())

    server = serving(app)
    async with server.open() as s:
        assert await Call(server, "/sum").feed(bytes([1, 2]), more=True).feed(bytes([3])).answer() == (200, b"6")
        assert s._runtime.engine.root.children == {}
        assert s.statistics().bytes_retained == 0


MAPPED = [
    (asc.QueueFull("secret"), 503, True),
    (asc.TaskTooLarge("secret", 2, 1), 413, False),
    (asc.DeadlineExceeded("secret"), 504, False),
    (asc.MemoryDeadlockError("secret"), 503, True),
    (asc.SchedulerStalled("secret"), 503, True),
    (asc.SchedulerClosed("secret"), 503, True),
    (Problem(400, "Malformed JSON."), 400, False),
    (Problem(429, "Slower.", retry_after=0.2), 429, True),
    (Problem(499, "No status of IANA's."), 499, False),
    (ExceptionGroup("secret", [ExceptionGroup("secret", [asc.QueueFull("secret")])]), 503, True),
    (ExceptionGroup("secret", [asc.TaskCancelled("secret"), Problem(409, "Taken.")]), 409, False),
]


@pytest.mark.parametrize(("error", "status", "retry"), MAPPED, ids=lambda value: getattr(type(value), "__name__", ""))
async def test_exceptions_are_told_as_problem_details(error: Exception, status: int, retry: bool) -> None:
    server = serving(raises(error))
    async with server.open():
        call = Call(server).feed()
        found, body = await call.answer()
    assert found == body["status"] == status
    assert call.headers["content-type"] == "application/problem+json"
    assert body.keys() == {"type", "title", "status", "detail"}
    assert body["type"] == "about:blank"
    assert body["title"]
    assert "secret" not in str(body)
    assert call.headers.get("retry-after") == ("1" if retry else None)


@pytest.mark.parametrize(("seconds", "told"), [(2.3, "3"), (1e30, "3600"), (float("inf"), "3600")])
async def test_the_time_to_come_back_is_the_errors_own_in_whole_seconds(seconds: float, told: str) -> None:
    full = asc.QueueFull("full")
    full.retry_after = seconds
    server = serving(raises(full))
    async with server.open():
        call = Call(server).feed()
        await call.task
    assert call.headers["retry-after"] == told


async def test_what_who_runs_the_server_can_mend_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    for error in (asc.QueueFull("ordinary"), asc.MemoryDeadlockError("held by x, line 3")):
        server = serving(raises(error))
        async with server.open():
            await Call(server).feed().answer()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncsched.serving"] == [
        "answered with 503: MemoryDeadlockError: held by x, line 3"
    ]


@pytest.mark.parametrize("beside", [[], [asc.QueueFull("full")]], ids=["alone", "in a group"])
async def test_other_exceptions_are_the_frameworks(beside: list[Exception]) -> None:
    bug = KeyError("mine")
    server = serving(raises(ExceptionGroup("several", [*beside, bug]) if beside else bug))
    async with server.open() as s:
        call = Call(server).feed()
        with pytest.raises(ExceptionGroup if beside else KeyError):
            await call.task
        assert call.sent == []
        assert s._runtime.engine.root.children == {}
        assert len(server.limiter) == 0


async def test_once_a_response_has_begun_an_exception_passes() -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise asc.QueueFull("late")

    server = serving(app)
    async with server.open():
        call = Call(server).feed()
        with pytest.raises(asc.QueueFull):
            await call.task
        assert [message["type"] for message in call.sent] == ["http.response.start"]


async def test_members_of_a_problem() -> None:
    server = serving(raises(Problem(400, "No such digit.", pointer="/digits/3")))
    async with server.open():
        assert (await Call(server).feed().answer())[1]["pointer"] == "/digits/3"


@pytest.mark.parametrize("unread", [False, True], ids=["read", "body unread"])
async def test_a_client_that_leaves_cancels_its_work(unread: bool) -> None:
    gate, told, ended = threading.Event(), asyncio.Event(), []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        s = scope["state"]["scheduler"]
        running = await s.submit(gate.wait, 10)
        queued = s.submit_nowait(ended.append, running)
        try:
            await queued
        finally:
            told.set()

    seen = Seen()
    server = serving(app, instruments=[seen])
    async with server.open() as s:
        call = Call(server).feed(b"part", more=unread)
        await until(lambda: s.statistics().tasks_in_flight == 2)
        call.leave()
        await told.wait()
        gate.set()
        await call.task
        assert s.statistics().tasks_cancelled == 2
        assert call.sent == []
        assert ended == []
        assert s._runtime.engine.root.children == {}
        assert seen.exchanges[0].disconnected
        assert len(server.limiter) == 0


async def test_a_client_that_leaves_while_its_request_waits_for_room() -> None:
    held = Held()
    server = serving(held, lambda: asc.Scheduler("cpu", max_bytes=1000), reserve=600)
    async with server.open() as s:
        first, second = Call(server).feed(), Call(server).feed()
        await until(lambda: held.entered == 1 and len(server.limiter) == 2)
        second.leave()
        await second.task
        assert (second.sent, held.entered) == ([], 1)
        held.gate.set()
        assert (await first.answer())[0] == 200
        assert s.statistics().bytes_reserved == 0


async def test_a_client_that_leaves_in_its_body_raises_nothing_of_the_frameworks() -> None:
    told: list[str] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        try:
            while (message := await receive())["type"] == "http.request":
                assert message["more_body"]
            raise ConnectionError("what a framework makes of it")
        finally:
            told.append((await receive())["type"])  # who asks once it is cancelled need not wait

    server = serving(app)
    async with server.open():
        for at_once in (True, False):
            call = Call(server).feed(b"part", more=True)
            if not at_once:
                await until(call._incoming.empty)
                await asyncio.sleep(0)
            await call.leave().task
            assert call.sent == []
    assert told == ["http.disconnect"] * 2


async def test_a_request_that_begins_within_another_is_not_part_of_it() -> None:
    pipelined: list[Call] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await reply(send, await read(receive))
        if scope["path"] == "/first":
            pipelined.append(Call(server, "/second"))  # as servers do, in the context of the one answered

    server = serving(app)
    async with server.open():
        assert await Call(server, "/first").feed(b"abc").answer() == (200, b"abc")
        assert await pipelined[0].feed(b"ab").answer() == (200, b"ab")


async def test_leaving_with_the_whole_answer_cancels_nothing() -> None:
    after: list[str] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await reply(send)
        assert (await receive())["type"] == "http.request"
        for _ in range(2):
            assert (await receive())["type"] == "http.disconnect"
        after.append("in the background")

    server = serving(app)
    async with server.open():
        call = Call(server).feed()
        await until(lambda: len(call.sent) == 2)
        call.leave()
        await call.task
    assert after == ["in the background"]


async def test_another_cancellation_is_not_swallowed() -> None:
    held = Held()
    server = serving(held)
    async with server.open():
        call = Call(server).feed()
        await until(lambda: held.entered == 1)
        call.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.task
        assert len(server.limiter) == 0


async def test_full() -> None:
    held = Held()
    server = serving(held, max_requests=2)
    async with server.open():
        inside = [Call(server).feed(), Call(server).feed()]
        await until(lambda: held.entered == 2)
        refused = Call(server)  # its body is not waited for
        status, body = await refused.answer()
        assert (status, body["title"]) == (503, "Service Unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        assert [(await get(server, path).answer())[0] for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
        held.gate.set()
        assert [(await call.answer())[0] for call in inside] == [200, 200]
        assert (await Call(server).feed().answer())[0] == 200
        assert server.limiter.refused == 1


async def test_a_tenants_quota() -> None:
    def tenant(scope: ASGIScope) -> Any:
        return dict(scope["headers"]).get(b"x-tenant")

    held = Held()
    server = serving(held, tenant=tenant, max_requests_per_tenant=1)
    async with server.open():
        first = Call(server, headers={"x-tenant": "a"}).feed()
        others = [Call(server, headers={"x-tenant": "b"}).feed(), Call(server).feed(), Call(server).feed()]
        await until(lambda: held.entered == 4)
        refused = Call(server, headers={"x-tenant": "a"}).feed()
        assert (await refused.answer())[0] == 429
        assert "retry-after" in refused.headers
        held.gate.set()
        assert [(await call.answer())[0] for call in (first, *others)] == [200] * 4
        assert (await Call(server, headers={"x-tenant": "a"}).feed().answer())[0] == 200
        assert not server.limiter._of_tenant


async def test_a_tenant_that_cannot_be_hashed_takes_no_place() -> None:
    server = serving(echo, tenant=lambda scope: [])
    async with server.open():
        with pytest.raises(TypeError, match="unhashable"):
            await Call(server).feed().task
        assert len(server.limiter) == 0


@pytest.mark.parametrize("announced", ["abc", "", "3, 3", "9" * 5000])
async def test_a_length_that_is_no_number(announced: str) -> None:
    server = serving(echo)
    async with server.open():
        status, body = await Call(server, headers={"content-length": announced}).answer()
        assert (status, body["detail"]) == (400, "Content-Length must be a number of bytes.")


async def test_a_body_in_small_pieces_takes_no_more_room_than_in_one() -> None:
    held = Held()
    server = serving(held)
    async with server.open():
        call = Call(server)
        await until(lambda: held.entered == 1)
        tracemalloc.start()
        try:
            for _ in range(1000):
                call.feed(b"x", more=True)
                await until(call._incoming.empty)
            assert tracemalloc.get_traced_memory()[0] < 50_000
        finally:
            tracemalloc.stop()
            held.gate.set()
            await call.task


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_above_the_limit(announced: bool) -> None:
    server = serving(echo, max_body=10)
    async with server.open():
        call = Call(server, headers={"content-length": "11"} if announced else None)
        if not announced:
            call.feed(b"x" * 6, more=True).feed(b"x" * 5, more=True)
        status, body = await call.answer()
        assert (status, body["detail"]) == (413, "The body may have 10 bytes at most.")
        assert call.headers["connection"] == "close"
        assert await Call(server, headers={"content-length": "10"}).feed(b"x" * 10).answer() == (200, b"x" * 10)


async def test_a_body_that_does_not_come() -> None:
    server = serving(echo, body_timeout=0.01)
    async with server.open():
        call = Call(server).feed(b"slow", more=True)
        status, body = await call.answer()
        assert (status, body["title"]) == (408, "Request Timeout")
        assert call.headers["connection"] == "close"


async def test_a_slow_answer_to_a_whole_body_is_not_the_clients_fault() -> None:
    held = Held()
    server = serving(held, body_timeout=0.01)
    async with server.open():
        call = Call(server).feed()
        await asyncio.wait([call.task], timeout=0.05)
        held.gate.set()
        assert (await call.answer())[0] == 200


@pytest.mark.parametrize("deadline", [0.01, lambda scope: 0.01 if scope["path"] == "/" else None])
async def test_the_deadline(deadline: Any) -> None:
    held = Held()
    server = serving(held, deadline=deadline)
    async with server.open():
        call = Call(server).feed()
        status, body = await call.answer()
        assert (status, body["title"]) == (504, "Gateway Timeout")
        assert held.cancelled == 1


async def test_an_applications_own_timeout_is_its_own() -> None:
    server = serving(raises(TimeoutError("mine")), deadline=60)
    async with server.open():
        with pytest.raises(TimeoutError, match="mine"):
            await Call(server).feed().task


async def test_more_than_the_limit_for_one() -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await scope["state"]["scheduler"].put(np.zeros(10_000))

    server = serving(app, partial(asc.Scheduler, "cpu", max_bytes=1000))
    async with server.open():
        assert (await Call(server).feed().answer())[0] == 413


async def test_a_full_batcher_behind_it() -> None:
    gate = asyncio.Event()

    async def model(items: list[int]) -> list[int]:
        await gate.wait()
        return items

    batcher: asc.Batcher[int, int] = asc.Batcher(model, max_batch_cost=1, max_queue=1)

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await reply(send, str(await batcher(7)).encode())

    server = serving(app)
    async with server.open() as s:
        inside = [Call(server).feed()]
        await until(lambda: batcher.statistics().computing == 1)
        inside.append(Call(server).feed())
        await until(lambda: batcher.statistics().waiting == 1)
        assert (await Call(server).feed().answer())[0] == 503
        assert inside[1].leave() is inside[1]
        await inside[1].task
        assert batcher.statistics().waiting == 0
        gate.set()
        assert await inside[0].answer() == (200, b"7")
        found = batcher.statistics()
        assert (found.answered, found.dropped, found.refused) == (1, 1, 1)
        assert s.statistics().tasks_in_flight == 0


async def test_many_at_once_and_nothing_is_left() -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        x = await scope["state"]["scheduler"].put(np.ones(5000))
        await reply(send, str(await asc.sum(x + 1).item()).encode())

    server = serving(app, partial(asc.Scheduler, "cpu", max_bytes="1 MiB"), reserve="200 KiB")
    before = asyncio.all_tasks()
    async with server.open() as s:
        calls = [Call(server).feed() for _ in range(100)]
        for call in calls[::2]:
            call.leave()
        assert {await call.answer() for call in calls[1::2]} == {(200, b"10000.0")}
        await asyncio.gather(*[call.task for call in calls])
        found = s.statistics()
        assert (found.tasks_pending, found.tasks_in_flight, found.bytes_in_flight, found.bytes_retained) == (0,) * 4
        assert found.peak_bytes <= 2**20
        assert s._runtime.engine.root.children == {}
        await until(lambda: asyncio.all_tasks() == before)


async def test_websockets_pass_through() -> None:
    passed: list[str] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        passed.append(scope["type"])

    await serving(app)({"type": "websocket"}, None, None)  # type: ignore[arg-type]
    assert passed == ["websocket"]


async def test_without_a_lifespan_the_cure_is_named(caplog: pytest.LogCaptureFixture) -> None:
    server = serving(echo)
    assert (await Call(server).feed().answer())[0] == 503
    assert "--lifespan on" in caplog.text
    with pytest.raises(asc.SchedulerClosed, match="--lifespan on"):
        _ = server.scheduler


WRONG: list[dict[str, Any]] = [
    {"max_requests": 0},
    {"max_requests_per_tenant": 0},
    {"deadline": 0},
    {"deadline": float("inf")},
    {"body_timeout": 0},
    {"drain_timeout": -1},
    {"drain_timeout": float("nan")},
    {"reserve": "much"},
    {"max_body": 0},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
async def test_bad_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))}"):
        serving(echo, **wrong)
