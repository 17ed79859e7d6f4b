"""Requests: each is a scope with a deadline, within the limits; and what Serving is given."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from http.client import responses
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.serving import limiter
from asyncsched.serving.http import ASGIScope, Message, Problem, Receive, Send
from tests.ledger import engine_of
from tests.waiting import turns, until

from .rig import BEGUN, Call, Held, echo, get, opened, raises, read, reply, serving


async def test_a_handler_computes_in_a_scope_of_its_own_and_finds_the_scheduler() -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        s = scope["state"]["scheduler"]
        x = await s.put(np.frombuffer(await read(receive), np.uint8))
        assert [child.name for child in engine_of(s).root.children] == ["POST /sum"]
        await reply(send, str(await asc.sum(x).item()).encode())

    server = serving(app)
    async with server.open() as s:
        assert await Call(server, "/sum").feed(bytes([1, 2]), more=True).feed(bytes([3])).answer() == (200, b"6")
        assert engine_of(s).root.children == {}
        assert s.statistics().bytes_retained == 0


async def test_a_request_that_begins_within_another_is_not_part_of_it() -> None:
    pipelined: list[Call] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await reply(send, await read(receive))
        if scope["path"] == "/first":
            pipelined.append(Call(server, "/second"))  # as servers do, in the context of the one answered

    async with opened(app) as server:
        assert await Call(server, "/first").feed(b"abc").answer() == (200, b"abc")
        assert await pipelined[0].feed(b"ab").answer() == (200, b"ab")


async def test_full() -> None:
    held = Held()
    async with opened(held, max_requests=2) as server:
        inside = [Call(server).feed(), Call(server).feed()]
        await until(lambda: held.entered == 2)
        refused = Call(server)  # its body is not waited for
        status, body = await refused.answer()
        assert (status, body["title"]) == (503, "Service Unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        assert [(await get(server, path).answer())[0] for path in ("/healthz", "/readyz", "/statusz")] == [200] * 3
        held.gate.set()
        assert [(await call.answer())[0] for call in inside] == [200, 200]
        assert (await Call(server).feed().answer())[0] == 200
        assert server.limiter.refused == 1


async def test_when_to_come_back_to_a_server_that_was_not_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request at a time took 5 s. That says nothing against eight at a time, so it takes no 40 s until there is
    room."""
    now, held = 0.0, Held()
    monkeypatch.setattr(limiter, "perf_counter", lambda: now)
    async with opened(held, max_requests=8) as server:
        for inside in (1, 8):
            held.gate.clear()
            calls = [Call(server).feed() for _ in range(inside)]
            await until(lambda inside=inside: len(server.limiter) == inside)
            if inside == 8:
                refused = Call(server)
                assert (await refused.answer())[0] == 503
                assert refused.headers["retry-after"] == "5"
            now += 5.0
            held.gate.set()
            assert [(await call.answer())[0] for call in calls] == [200] * inside


async def test_a_tenants_quota() -> None:
    def tenant(scope: ASGIScope) -> Any:
        return dict(scope["headers"]).get(b"x-tenant")

    held = Held()
    async with opened(held, tenant=tenant, max_requests_per_tenant=1) as server:
        first = Call(server, headers={"x-tenant": "a"}).feed()
        others = [Call(server, headers={"x-tenant": "b"}).feed(), Call(server).feed(), Call(server).feed()]
        await until(lambda: held.entered == 4)
        refused = Call(server, headers={"x-tenant": "a"}).feed()
        assert (await refused.answer())[0] == 429
        assert "retry-after" in refused.headers
        held.gate.set()
        assert [(await call.answer())[0] for call in (first, *others)] == [200] * 4
        assert (await Call(server, headers={"x-tenant": "a"}).feed().answer())[0] == 200


async def test_a_tenant_that_cannot_be_hashed_takes_no_place() -> None:
    async with opened(echo, tenant=lambda scope: []) as server:
        with pytest.raises(TypeError, match="unhashable"):
            await Call(server).feed().task
        assert len(server.limiter) == 0


@pytest.mark.parametrize("deadline", [0.01, lambda scope: 0.01 if scope["path"] == "/" else None])
async def test_the_deadline(deadline: Any) -> None:
    held = Held()
    async with opened(held, deadline=deadline) as server:
        status, body = await Call(server).feed().answer()
        assert (status, body["title"]) == (504, "Gateway Timeout")
        assert held.cancelled == 1


async def test_an_applications_own_timeout_is_its_own() -> None:
    async with opened(raises(TimeoutError("mine")), deadline=60) as server:
        with pytest.raises(TimeoutError, match="mine"):
            await Call(server).feed().task


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


@pytest.mark.parametrize("reserve", [None, "256 KiB"], ids=["callers alone", "batches too"])
async def test_requests_with_reserves_and_their_batch_all_get_an_answer(
    reserve: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncsched.runtime.stall.FIRST_LOOK", 0.01)

    async def model(items: list[Any]) -> list[Any]:
        return [await asc.sum(await server.scheduler.put(np.full(1000, item))).item() for item in items]

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await turns()  # until all that fit have their reserves
        await reply(send, str(await batcher(1)).encode())

    batcher: asc.Batcher[int, Any] = asc.Batcher(model, reserve=reserve)
    make = partial(asc.Scheduler, "cpu", max_bytes="1 MiB")
    async with opened(app, make, reserve="256 KiB", batchers={"sums": batcher}) as server:
        found = [status for status, _ in await asyncio.gather(*[Call(server).feed().answer() for _ in range(8)])]
    assert {*found} == {200, 503}
    assert batcher.statistics().computing == 0


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
        assert engine_of(s).root.children == {}
        await until(lambda: asyncio.all_tasks() == before)


async def test_websockets_pass_through() -> None:
    passed: list[str] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        passed.append(scope["type"])

    await serving(app)({"type": "websocket"}, None, None)  # type: ignore[arg-type]
    assert passed == ["websocket"]


async def test_without_a_lifespan_the_cure_is_named() -> None:
    server = serving(echo)
    with pytest.raises(RuntimeError, match="--lifespan on"):
        await Call(server).feed().answer()
    with pytest.raises(RuntimeError, match=r"async with asyncsched.testing.lifespan\(app\)"):
        _ = server.scheduler


WRONG: list[dict[str, Any]] = [
    {"max_requests": 0},
    {"max_requests_per_tenant": 0, "tenant": print},
    {"deadline": 0},
    {"deadline": float("inf")},
    {"body_timeout": 0},
    {"drain_timeout": -1},
    {"drain_timeout": float("nan")},
    {"reserve": "much"},
    {"wait": 1.0},
    {"wait": -1, "reserve": 1},
    {"max_body": 0},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
async def test_bad_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))}"):
        serving(echo, **wrong)


async def _no_scheduler() -> None:
    """A coroutine function."""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tenant": "x-key"}, r"^tenant takes a function of ASGI's scope, .* not 'x-key'$"),
        ({"make": _no_scheduler}, r"^scheduler makes one, once per start: `lambda: Scheduler\(...\)`, not <function"),
        ({"batchers": [asc.Batcher(list)]}, "^batchers takes them in a dict, by name, not in a list"),
        ({"steppers": asc.Stepper(list)}, "^steppers takes them in a dict, by name, not in a Stepper"),
        ({"batchers": {"predict": list}}, "^batchers takes instances of Batcher, not <class 'list'>"),
        ({"endpoints": ["/healthz"]}, "^endpoints takes functions in a dict, by path, not in a list"),
        ({"instruments": ["watch"]}, "^an instrument is a function of the exchange .* not 'watch'"),
    ],
    ids=lambda given: next(iter(given)),
)
def test_arguments_of_a_wrong_kind(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        serving(echo, **wrong)


class Blocked:
    """Its handler cannot be ended before its gate opens."""

    def __init__(self, kind: str = "call") -> None:
        self.kind = kind
        self.began, self.gate = threading.Event(), threading.Event()

    def block(self) -> None:
        self.began.set()
        self.gate.wait(60)

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        s = scope["state"]["scheduler"]
        if scope["path"] == "/quick":
            return await reply(send)
        if self.kind == "call":
            await s.call(self.block)
        elif self.kind == "inner scope":
            async with s.scope():
                await s.call(self.block)
        else:
            try:
                self.began.set()
                await asyncio.Event().wait()
            finally:
                await until(self.gate.is_set)
        return await reply(send, b"late")


CUTS = ["deadline", "client", "draining"]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", ["call", "inner scope", "handler"])
async def test_the_answer_waits_for_nothing_that_cannot_be_ended(kind: str, cut: str) -> None:
    app = Blocked(kind)
    server = serving(
        app,
        lambda: asc.Scheduler("cpu", streams=1, max_bytes=1000),
        deadline=1.0 if cut == "deadline" else None,
        drain_timeout=0.0,
        max_requests=1,
        reserve=600,
    )
    async with server.open() as s:
        call = Call(server).feed()
        await until(app.began.is_set)
        if cut == "client":
            await call.leave().task
            assert call.sent == []
        else:
            if cut == "draining":
                await server.drain()
            assert (await call.answer())[0] == (504 if cut == "deadline" else 503)
        assert (len(server.limiter), server.limiter.adopted) == (1, 1)
        assert s.statistics().bytes_reserved == 600
        busy = kind != "handler"
        assert (await get(server, "/statusz").answer())[1]["adopted"] == {"requests": 1, "tasks": int(busy)}
        assert (await get(server, "/readyz").answer())[0] == 503  # it holds the only place
        assert (await Call(server, "/quick").feed().answer())[0] == 503  # its place is taken
        sent = len(call.sent)
        app.gate.set()
        await until(lambda: not len(server.limiter))
        assert not server.adopted
        assert len(call.sent) == sent
        assert s.statistics().bytes_reserved == 0
        if cut != "draining":
            assert (await get(server, "/readyz").answer())[0] == 200
            assert (await Call(server, "/quick").feed().answer())[0] == 200


@pytest.mark.parametrize("cut", ["deadline", "client"])
@pytest.mark.parametrize("kind", ["batch", "batch in a coroutine", "step"])
async def test_a_batch_that_nobody_waits_for_and_that_holds_every_stream_is_told(kind: str, cut: str) -> None:
    began, gate = threading.Event(), threading.Event()

    def block(items: list[int]) -> list[int]:
        began.set()
        gate.wait(60)
        return items

    async def block_in_a_task(items: list[int]) -> list[int]:
        return await server.scheduler.call(block, items)

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        if kind == "step":
            async with stepper.join(object()) as outputs:
                await anext(outputs)
        else:
            await batcher(1)

    batcher: asc.Batcher[int, int] = asc.Batcher(block if kind == "batch" else block_in_a_task)
    stepper: asc.Stepper[Any, Any] = asc.Stepper(block)
    deadline = 1.0 if cut == "deadline" else None
    async with opened(app, lambda: asc.Scheduler("cpu", streams=1), deadline=deadline) as server:
        calls = [Call(server).feed(), Call(server).feed()]
        await until(began.is_set)
        if cut == "client":
            await calls[0].leave().task
            await turns()
            if kind != "step":  # in which only the first is
                assert (await get(server, "/readyz").answer())[0] == 200  # the other waits for it
            calls[1].leave()
        for call in calls:
            await call.task
        assert (await get(server, "/readyz").answer())[0] == 503
        assert (await get(server, "/statusz").answer())[1]["adopted"]["tasks"] == 1
        gate.set()
        await until(lambda: server.ready)
        assert (await get(server, "/statusz").answer())[1]["adopted"]["tasks"] == 0


async def test_a_stream_that_is_free_keeps_the_server_ready() -> None:
    app = Blocked()
    async with opened(app, lambda: asc.Scheduler("cpu", streams=2)) as server:
        for code in (200, 503):
            app.began.clear()
            call = Call(server).feed()
            await until(app.began.is_set)
            await call.leave().task
            assert (await get(server, "/readyz").answer())[0] == code
        app.gate.set()
        await until(lambda: not server.adopted)
        assert (await get(server, "/readyz").answer())[0] == 200


async def test_what_was_adopted_hears_of_the_end_and_its_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []
    gate = asyncio.Event()

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await read(receive)
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()
            seen.append(await receive())
            await reply(send)

    async with opened(app, deadline=BEGUN) as server:
        call = Call(server).feed()
        assert (await call.answer())[0] == 504
        gate.set()
        await until(lambda: not server.adopted)
    assert seen == [{"type": "http.disconnect"}]
    assert len(call.sent) == 2
    assert "POST / raised after it was cut short and answered" in caplog.text


async def test_a_background_task_may_outlive_the_deadline_once_all_is_answered() -> None:
    done: list[int] = []
    batcher: asc.Batcher[int, int] = asc.Batcher(lambda items: items)

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        began = asyncio.get_running_loop().time()
        await reply(send)
        await until(lambda: asyncio.get_running_loop().time() > began + BEGUN + 0.05)
        done.append(await scope["state"]["scheduler"].call(int, await batcher(3)))

    async with opened(app, deadline=BEGUN) as server:
        assert (await Call(server).feed().answer())[0] == 200
        assert done == [3]
        assert not len(server.limiter)


def told(kind: str, **fields: Any) -> Message:
    return {"type": f"http.response.{kind}", **fields}


ANSWERS: dict[str, list[Message]] = {
    "a body": [told("start", status=200), told("body", body=b"a", more_body=True), told("body", body=b"b")],
    "a path": [told("start", status=200), told("pathsend", path="/a")],
    "a file": [told("start", status=200), told("zerocopysend", file=3, more_body=True), told("zerocopysend", file=3)],
    "a body, then a file": [told("start", status=200), told("body", more_body=True), told("zerocopysend", file=3)],
    "trailers": [
        told("start", status=200, trailers=True), told("body", body=b"a"),
        told("trailers", headers=[], more_trailers=True), told("trailers", headers=[]),
    ],
    "after hints": [told("early_hint", links=[]), told("start", status=200), told("pathsend", path="/a")],
}  # fmt: skip


@pytest.mark.parametrize("kind", ANSWERS)
async def test_every_way_to_complete_an_answer_lets_its_background_task_go_on(kind: str) -> None:
    done: list[Message] = []
    left = asyncio.Event()

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        for message in ANSWERS[kind]:
            assert not done
            await send(message)
        await left.wait()
        done.append(await receive())  # at once, since the answer is complete
        await scope["state"]["scheduler"].call(int)

    async with opened(app, deadline=60) as server:
        call = Call(server, extensions={"http.response.trailers": {}})
        call.feed()
        await until(lambda: len(call.sent) == len(ANSWERS[kind]))
        call.leave()
        left.set()
        await call.task
        assert done == [{"type": "http.disconnect"}]


@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_client_that_leaves_before_the_last_message_has_left(kind: str) -> None:
    ended: list[BaseException] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        try:
            for message in ANSWERS[kind][:-1]:
                await send(message)
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            ended.append(error)
            raise

    async with opened(app) as server:
        call = Call(server, extensions={"http.response.trailers": {}})
        call.feed()
        await until(lambda: len(call.sent) == len(ANSWERS[kind]) - 1)
        await call.leave().task
        assert len(ended) == 1


async def test_trailers_that_the_server_does_not_know_are_not_waited_for() -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        for message in ANSWERS["trailers"][:2]:
            await send(message)
        await receive()
        assert (await receive())["type"] == "http.disconnect"

    async with opened(app) as server:
        call = Call(server)
        call.feed()
        await until(lambda: len(call.sent) == 2)
        await call.leave().task


# -- room for a request, before its response begins -------------------------------------------------------------------


def reserve_of(scope: ASGIScope) -> Any:
    """What a header asks for."""
    asked = dict(scope["headers"]).get(b"x-bytes")
    if asked == b"none":
        raise Problem(422, "A text has a length.")
    return None if asked is None else int(asked)


@pytest.mark.parametrize("wait", [0, 0.01])
async def test_a_request_without_room_is_answered_before_its_handler_begins(wait: float) -> None:
    held = Held()
    async with opened(held, lambda: asc.Scheduler("cpu", max_bytes=1000), reserve=reserve_of, wait=wait) as server:
        first = Call(server, headers={"x-bytes": "900"}).feed()
        await until(lambda: held.entered)
        refused = Call(server, headers={"x-bytes": "200"}).feed()
        status, body = await refused.answer()
        assert (status, body["title"]) == (503, "Service Unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        others = [Call(server, headers=headers).feed() for headers in ({"x-bytes": "100"}, {})]
        await until(lambda: held.entered == 3)
        assert server.scheduler.statistics().bytes_reserved == 1000
        held.gate.set()
        assert [(await call.answer())[0] for call in (first, *others)] == [200] * 3
        assert (await Call(server, headers={"x-bytes": "200"}).feed().answer())[0] == 200
        assert (await Call(server, headers={"x-bytes": "1001"}).feed().answer())[0] == 413
        assert await Call(server, headers={"x-bytes": "none"}).feed().answer() == (
            422,
            {"type": "about:blank", "title": responses[422], "status": 422, "detail": "A text has a length."},
        )
        assert held.entered == 4


async def test_a_handler_that_has_read_how_much_it_needs_is_refused_before_it_begins_to_answer() -> None:
    held = Held()

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        async with scope["state"]["scheduler"].scope(reserve=int(await read(receive)), wait=0.01):
            await held(scope, receive, send)

    async with opened(app, lambda: asc.Scheduler("cpu", max_bytes=1000)) as server:
        first = Call(server).feed(b"900")
        await until(lambda: held.entered)
        refused = Call(server).feed(b"200")
        assert (await refused.answer())[0] == 503
        assert int(refused.headers["retry-after"]) >= 1
        held.gate.set()
        assert (await first.answer())[0] == 200


async def test_a_scope_that_is_to_give_its_bytes_back_and_does_not_start_over_is_answered() -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        s, number = scope["state"]["scheduler"], int(await read(receive))
        async with s.scope(reserve=400) as cache:
            entered.append(number)
            await until(lambda: len(entered) == 2)
            await cache.grow(200)
            await reply(send)

    entered: list[int] = []
    async with opened(app, lambda: asc.Scheduler("cpu", max_bytes=900)) as server:
        calls = [Call(server).feed(b"%d" % number) for number in range(2)]
        answers = [(await call.answer())[0] for call in calls]
        assert answers == [200 if number == entered[0] else 503 for number in range(2)]
        assert server.scheduler.statistics().scopes_preempted == 1
