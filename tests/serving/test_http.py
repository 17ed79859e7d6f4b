"""What is answered where a handler lets an exception out."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.serving import Problem
from asyncsched.serving.http import ASGIScope, Receive, Send
from tests.ledger import engine_of

from .rig import Call, opened, raises, serving

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
    async with opened(raises(error)) as server:
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
    async with opened(raises(full)) as server:
        call = Call(server).feed()
        await call.task
    assert call.headers["retry-after"] == told


async def test_what_who_runs_the_server_can_mend_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    for error in (asc.QueueFull("ordinary"), asc.MemoryDeadlockError("held by x, line 3")):
        async with opened(raises(error)) as server:
            await Call(server).feed().answer()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncsched.serving"] == [
        "answered with 503: MemoryDeadlockError: held by x, line 3"
    ]


async def test_a_log_that_fails_changes_no_answer(failing_log: Any) -> None:
    async with opened(raises(asc.MemoryDeadlockError("held"))) as server:
        assert (await Call(server).feed().answer())[0] == 503
    assert failing_log.texts == ["answered with 503: MemoryDeadlockError: held"]


@pytest.mark.parametrize("beside", [[], [asc.QueueFull("full")]], ids=["alone", "in a group"])
async def test_other_exceptions_are_the_frameworks(beside: list[Exception]) -> None:
    bug = KeyError("mine")
    server = serving(raises(ExceptionGroup("several", [*beside, bug]) if beside else bug))
    async with server.open() as s:
        call = Call(server).feed()
        with pytest.raises(ExceptionGroup if beside else KeyError):
            await call.task
        assert call.sent == []
        assert engine_of(s).root.children == {}
        assert len(server.limiter) == 0


async def test_once_a_response_has_begun_an_exception_passes() -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise asc.QueueFull("late")

    async with opened(app) as server:
        call = Call(server).feed()
        with pytest.raises(asc.QueueFull):
            await call.task
        assert [message["type"] for message in call.sent] == ["http.response.start"]


async def test_members_of_a_problem() -> None:
    async with opened(raises(Problem(400, "No such digit.", pointer="/digits/3"))) as server:
        assert (await Call(server).feed().answer())[1]["pointer"] == "/digits/3"


async def test_more_than_the_limit_for_one() -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await scope["state"]["scheduler"].put(np.zeros(10_000))

    async with opened(app, partial(asc.Scheduler, "cpu", max_bytes=1000)) as server:
        assert (await Call(server).feed().answer())[0] == 413
