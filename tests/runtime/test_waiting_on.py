"""What waits on through a cancellation waits for its end, and lets the loop rest.

anyio, and so Starlette, delivers a cancellation again at each turn of the loop. A wait that is begun anew each time
keeps the loop turning for as long as a thread takes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

import asyncsched as asc
from asyncsched.devices.cpu import CPUDevice
from asyncsched.flow.pipeline import Pipeline
from asyncsched.runtime.threads import ended, in_thread, to_its_end
from asyncsched.serving.http import ASGIScope, Receive, Send
from tests.serving.rig import Call, opened
from tests.waiting import fail, held, turns, until

LOOKED = 100  # turns of the loop, at least, in which it may do a handful of things besides


class Thread:
    """Blocks a thread, and tells what happened there."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate
        self.events: list[str] = []

    def __call__(self, *args: Any) -> list[int]:
        self.events.append("begun")
        held(self.gate)
        self.events.append("ended")
        return [7]


@pytest.fixture
def thread(gate: threading.Event) -> Thread:
    return Thread(gate)


async def forever() -> None:
    await asyncio.Event().wait()


class SlowToPrepare(CPUDevice):
    def __init__(self, thread: Thread) -> None:
        super().__init__()
        self.thread = thread

    def prepare(self) -> None:
        self.thread()

    def close(self) -> None:
        self.thread.events.append("closed")
        super().close()


async def leave_a_scope(thread: Thread) -> None:
    async with asc.Scheduler("cpu") as s, s.scope() as scope:
        scope.submit_nowait(thread)
        await forever()


async def leave_a_scope_in_order(thread: Thread) -> None:
    async with asc.Scheduler("cpu") as s, s.scope() as scope:
        scope.submit_nowait(thread)


async def open_a_scheduler(thread: Thread) -> None:
    async with asc.Scheduler(SlowToPrepare(thread)):
        await forever()


async def close_a_scheduler(thread: Thread) -> None:
    async with asc.Scheduler("cpu") as s:
        s.submit_nowait(thread)
        await s.aclose()


async def leave_a_scheduler(thread: Thread) -> None:
    async with asc.Scheduler("cpu") as s:
        s.submit_nowait(thread)
        await forever()


async def leave_a_pipeline(thread: Thread, pipe: Callable[[asc.Scheduler], Pipeline[Any]]) -> None:
    async with asc.Scheduler("cpu") as s, pipe(s).open():
        await forever()


async def open_a_pipeline(thread: Thread) -> None:
    async with asc.Scheduler("cpu") as s, s.pipeline(thread).open():
        await forever()


def reading(thread: Thread) -> Iterator[int]:
    yield 1
    yield from thread()


async def read_with(thread: Thread) -> AsyncIterator[int]:
    try:
        yield 1
        thread.events.append("begun")
        await forever()
    finally:
        await in_thread(thread, "closes the source")


async def cancel_a_batch(thread: Thread) -> None:
    async with asc.Scheduler("cpu"):
        await asc.Batcher(thread)(1)


async def drain_a_server(thread: Thread) -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        with suppress(asc.TaskCancelled):
            await scope["state"]["scheduler"].call(thread)

    async with opened(app) as server:
        Call(server).feed()
        await until(lambda: thread.events)


@asynccontextmanager
async def resting(thread: Thread, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The loop does next to nothing in here, until the thread is let go at the end."""
    calls = 0

    def counting(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return call_soon(*args, **options)

    loop = asyncio.get_running_loop()
    call_soon = loop.call_soon
    await until(lambda: thread.events)
    try:
        yield
        await turns(LOOKED)  # of what the cancellation sets off
        with monkeypatch.context() as patched:
            patched.setattr(loop, "call_soon", counting)
            await turns(LOOKED)
        assert thread.events == ["begun"] * len(thread.events)
        assert LOOKED <= calls < LOOKED + 5
    finally:
        thread.gate.set()


WAYS: dict[str, Callable[[Thread], Awaitable[None]]] = {
    "a scope": leave_a_scope,
    "a scope in order": leave_a_scope_in_order,
    "a scheduler that opens": open_a_scheduler,
    "a scheduler that closes": close_a_scheduler,
    "a scheduler": leave_a_scheduler,
    "a pipeline that opens": open_a_pipeline,
    "a source": lambda thread: leave_a_pipeline(thread, lambda s: s.pipeline(reading(thread))),
    "an async source": lambda thread: leave_a_pipeline(thread, lambda s: s.pipeline(read_with(thread))),
    "a stage": lambda thread: leave_a_pipeline(thread, lambda s: s.pipeline([1, 2]).map(thread, workers=2)),
    "a batch stage": lambda thread: leave_a_pipeline(
        thread, lambda s: s.pipeline([1, 2]).batch(2, collate=thread).to_device()
    ),
    "a batcher": cancel_a_batch,
    "a server": drain_a_server,
}


@pytest.mark.parametrize("work", WAYS.values(), ids=WAYS)
async def test_under_anyio_the_loop_rests_while_something_is_waited_for(
    work: Callable[[Thread], Awaitable[None]], thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(work, thread)
        async with resting(thread, monkeypatch):
            group.cancel_scope.cancel()
    assert thread.events[: thread.events.index("ended")].count("closed") == 0


@pytest.mark.parametrize("work", WAYS.values(), ids=WAYS)
async def test_cancelled_again_and_again_it_waits_for_its_end(
    work: Callable[[Thread], Awaitable[None]], thread: Thread
) -> None:
    task = asyncio.ensure_future(work(thread))
    await until(lambda: thread.events)
    for _ in range(3):
        task.cancel()
        await turns()
    assert not task.done()
    assert thread.events == ["begun"] * len(thread.events)
    thread.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_result_and_the_exception_pass() -> None:
    assert await to_its_end(in_thread(lambda: 5, "five")) == 5
    with pytest.raises(LookupError):
        await to_its_end(in_thread(fail, "fails"))
    with pytest.raises(RuntimeError, match="stops raised StopIteration"):
        await in_thread(lambda: next(iter(())), "stops")


async def test_a_failure_during_the_cancellation_is_dropped(thread: Thread) -> None:
    def work() -> None:
        thread()
        fail()

    task = asyncio.create_task(to_its_end(in_thread(work, "fails late")))
    await until(lambda: thread.events)
    task.cancel()
    await turns()
    thread.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_when_all_tasks_are_cancelled_nothing_is_waited_for(thread: Thread) -> None:
    """As `asyncio.run` does at its end. The thread goes on alone."""
    before = asyncio.all_tasks()
    task = asyncio.create_task(to_its_end(in_thread(thread, "goes on")))
    await until(lambda: thread.events)
    await turns()
    for one in asyncio.all_tasks() - before:
        one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert thread.events == ["begun"]
    thread.gate.set()
    await until(lambda: thread.events == ["begun", "ended"])
    await turns()  # what it tells the loop is for nobody


async def test_a_task_that_others_cancelled_has_ended() -> None:
    task = asyncio.create_task(forever())
    await turns()
    task.cancel()
    await ended(task)
    assert task.cancelled()
