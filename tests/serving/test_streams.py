"""Streams of tokens behind a server: clients that leave, or do not read, and those that stay."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.serving import Problem, Serving
from asyncsched.serving.http import ASGIScope, Message, Receive, Send
from tests.ledger import used
from tests.waiting import turns, until

from .rig import BEGUN, Call, opened, serving

EVENTS = [(b"content-type", b"text/event-stream")]


class Text:
    def __init__(self, length: int) -> None:
        self.left = length

    def advance(self) -> Any:
        self.left -= 1
        return b"x" if self.left else asc.Last(b".")


class Texts:
    """An application that streams as many tokens as the path says, from a stepper with caches of 1,000 bytes."""

    def __init__(self) -> None:
        self.steps = 0
        self.stepper: asc.Stepper[Text, bytes] = asc.Stepper(self._step, max_cost=8, reserve=1000)

    def _step(self, texts: list[Text]) -> list[Any]:
        self.steps += 1
        return [text.advance() for text in texts]

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        async with self.stepper.join(Text(int(scope["path"][1:]))) as outputs:
            await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
            async for token in outputs:
                await send({"type": "http.response.body", "body": token, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def told(call: Call) -> bytes:
    return b"".join(message.get("body", b"") for message in call.sent[1:])


async def test_clients_that_leave_leave_nothing_and_take_nothing_from_others() -> None:
    texts = Texts()
    async with opened(
        texts, lambda: asc.Scheduler("cpu", max_bytes=12_000), steppers={"text": texts.stepper}
    ) as server:
        calls = [Call(server, f"/{20 + number}").feed() for number in range(45)]
        for number in range(0, 45, 3):
            await until(lambda number=number: calls[number].task.done() or len(calls[number].sent) > number % 7)
            calls[number].leave()
        await asyncio.wait([call.task for call in calls])
        for number, call in enumerate(calls):
            if number % 3:
                assert told(call) == b"x" * (19 + number) + b"."
        found, s = texts.stepper.statistics(), server.scheduler
        assert (found.members, found.stepping, found.admitting) == (0, 0, 0)
        assert used(s) == 0
        assert s.statistics().peak_bytes <= 12_000
        assert len(server.limiter) == 0


class Slow(Call):
    """A client that reads as long as its gate is open."""

    def __init__(self, app: Serving, path: str) -> None:
        self.gate = asyncio.Event()
        super().__init__(app, path)

    async def send(self, message: Message) -> None:
        if len(self.sent) > 3:
            await self.gate.wait()
        await super().send(message)


async def test_a_client_that_stops_reading_pauses_alone() -> None:
    texts = Texts()
    async with opened(texts, lambda: asc.Scheduler("cpu", max_bytes=12_000)) as server:
        slow = Slow(server, "/50")
        slow.feed()
        await until(lambda: texts.steps == 8)  # three are with the client, one is being sent, four are unread
        await turns()
        assert texts.steps == 8
        assert (await asyncio.gather(*[Call(server, "/30").feed().answer() for _ in range(3)]))[0][0] == 200
        assert texts.stepper.statistics().paused == 1
        slow.gate.set()
        await slow.task
        assert told(slow) == b"x" * 49 + b"."


async def test_streams_that_have_begun_are_finished_when_the_server_drains() -> None:
    texts = Texts()
    server = serving(texts, lambda: asc.Scheduler("cpu", max_bytes=12_000))
    async with server.open():
        calls = [Call(server, "/200").feed() for _ in range(5)]
        await until(lambda: all(len(call.sent) > 2 for call in calls))
    for call in calls:
        assert told(call) == b"x" * 199 + b"."


@pytest.mark.parametrize("late", [False, True], ids=["at once", "later"])
async def test_what_is_left_when_draining_takes_too_long_is_ended(late: bool) -> None:
    texts = Texts()
    server = serving(texts, lambda: asc.Scheduler("cpu", max_bytes=12_000), drain_timeout=0.05 * late)
    async with server.open():
        calls = [Call(server, "/1000000000").feed() for _ in range(3)]
        await until(lambda: all(len(call.sent) > 2 for call in calls))
    await asyncio.wait([call.task for call in calls])
    assert texts.stepper.statistics().members == 0
    assert all(call.sent[-1]["body"] == b"" for call in calls)


# -- a stream of events that cannot go on -----------------------------------------------------------------------------


def failing(error: Exception, *, sent: bytes = b"data: 1\n\n", headers: Any = EVENTS) -> Any:
    """An application that fails after it has begun to answer. The client leaves what it is told unread for ever, if
    `sent` is empty."""

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": sent, "more_body": True})
        raise error

    return app


def problem_in(call: Call) -> Any:
    """That of the last event."""
    _, event, rest = told(call).partition(b"event: error\ndata: ")
    assert event
    assert rest.endswith(b"\n\n")
    assert not call.sent[-1].get("more_body", False)
    return json.loads(rest)


PROBLEMS = [
    (asc.Preempted("by another"), 503, "The server ran out of room for this request."),
    (Problem(422, "No such token.", token=7), 422, "No such token."),
    (ExceptionGroup("of a task group", [asc.QueueFull("full")]), 503, "A queue of the server is full"),
]


@pytest.mark.parametrize(("error", "status", "detail"), PROBLEMS, ids=lambda given: type(given).__name__)
@pytest.mark.parametrize("sent", [b"", b"data: 1\n\n", b"data: 1\r\n\r\n"])
async def test_a_client_of_events_is_told_of_an_error_and_the_server_of_none(
    error: Exception, status: int, detail: str, sent: bytes
) -> None:
    async with opened(failing(error, sent=sent)) as server:
        call = Call(server).feed()
        await call.task
        found = problem_in(call)
        assert (found["status"], found.get("token")) == (status, 7 if status == 422 else None)
        assert found["detail"].startswith(detail)
        assert told(call).startswith(sent)


async def test_a_client_of_events_is_told_of_a_bug_without_its_words_and_the_server_of_all() -> None:
    async with opened(failing(LookupError("a secret"))) as server:
        call = Call(server).feed()
        with pytest.raises(LookupError):
            await call.task
        assert problem_in(call)["detail"] == "The server failed."


async def test_a_client_of_events_is_told_of_the_deadline() -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        await asyncio.Event().wait()

    async with opened(app, deadline=BEGUN) as server:
        call = Call(server).feed()
        await call.task
        assert problem_in(call)["status"] == 504


CUT: dict[str, Any] = {
    "within an event": {"sent": b"data: 1"},
    "within another": {"sent": b"data: 1\n"},
    "compressed": {"headers": [*EVENTS, (b"Content-Encoding", b"gzip")]},
    "of a known length": {"headers": [*EVENTS, (b"content-length", b"100")]},
    "no events": {"headers": [(b"content-type", b"text/csv")]},
}


@pytest.mark.parametrize("kind", CUT)
async def test_where_no_event_can_be_added_the_connection_is_cut(kind: str) -> None:
    async with opened(failing(asc.QueueFull("full"), **CUT[kind])) as server:
        call = Call(server).feed()
        with pytest.raises(asc.QueueFull):
            await call.task
        assert len(call.sent) == 2


async def test_a_client_of_events_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncsched.serving.http._FOR_THE_LAST", 0.01)

    class Unread(Call):
        async def send(self, message: Message) -> None:
            self.sent.append(message)
            if len(self.sent) == 3:
                await asyncio.Event().wait()

    async with opened(failing(asc.QueueFull("full"))) as server:
        with pytest.raises(asc.QueueFull):
            await Unread(server).feed().task
        assert not len(server.limiter)
