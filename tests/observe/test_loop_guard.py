"""A loop that was blocked is told of, with the line that did it; one that rests, or stops with all else, is not."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.observe.blocked import watch

from ..waiting import until


class Told(logging.Handler):
    """What was logged. A thread of the watcher's."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def told() -> Iterator[Told]:
    handler = Told()
    log = logging.getLogger("asyncsched")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


class Held:
    """What must not be kept."""


def block(until: Callable[[], object]) -> None:
    """Hold the thread, as a long computation does."""
    while not until():
        pass


@pytest.fixture
def all_told(told: Told, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Blocks are told however many there are: a test's loop that others keep from running is late, too."""
    monkeypatch.setattr("asyncsched.observe.blocked._EVERY", 0.0)
    return told


@pytest.mark.parametrize("threshold", [0.02, np.float32(0.02)])
async def test_the_line_that_blocks_is_told_while_it_does(all_told: Told, threshold: float) -> None:
    def about_it() -> list[str]:
        return [line for line in all_told.lines if "test_loop_guard.py" in line]

    def guilty() -> weakref.ref[Held]:
        held = Held()
        block(about_it)
        return weakref.ref(held)

    async with asc.Scheduler("cpu", instruments=[asc.observe.LoopGuard(threshold)]) as s:
        assert guilty()() is None  # nobody kept the frame
        await until(lambda: len(about_it()) > 1)
        assert await s.call(max, 1, 2) == 2
    first, second, *_ = about_it()
    assert first.startswith("the event loop is blocked, since ")
    assert " in guilty\n    block(about_it)" in first
    assert "await s.call(fn" in first
    assert "run_until_complete" not in first  # what is below the callback says nothing
    assert second.startswith("the event loop was blocked for ")
    assert " s, at " in second
    assert any(f" in {name}" in second for name in ("block", "about_it", "<listcomp>"))


async def test_a_log_that_fails_does_not_end_it(failing_log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncsched.observe.blocked._EVERY", 0.0)
    texts = failing_log.texts

    async with asc.Scheduler("cpu", instruments=[asc.observe.LoopGuard(0.02)]):
        for _ in range(2):
            block(lambda: texts and " is blocked" in texts[-1])  # by a thread that lives
            await until(lambda: " was blocked" in texts[-1])
    assert " is blocked" in texts[0]


async def test_its_thread_and_its_timer_end_with_the_scheduler(told: Told) -> None:
    guard = asc.observe.LoopGuard()

    def watching() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "asyncsched loop guard"]

    async with asc.Scheduler("cpu", instruments=[guard]):
        await until(lambda: len(watching()) == 1)  # a former one may be on its way out
        with pytest.raises(RuntimeError, match="make another"):
            asc.Scheduler("cpu", instruments=[guard])
    await until(lambda: not watching())
    async with asc.Scheduler("cpu") as s:
        s.add_instrument(guard)
        await until(lambda: len(watching()) == 1)  # a former one may be on its way out
        s.remove_instrument(guard)
        await until(lambda: not watching())
    known = weakref.ref(guard)
    del guard
    gc.collect()
    assert known() is None


async def test_a_threshold_that_is_longer_than_any_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[object] = []
    monkeypatch.setattr("threading.excepthook", ends.append)
    before = threading.enumerate()
    async with asc.Scheduler("cpu", instruments=[asc.observe.LoopGuard(1e300)]):
        made = [one for one in threading.enumerate() if one.name == "asyncsched loop guard" and one not in before]
    for thread in made:
        await asyncio.to_thread(thread.join)
    assert ends == []


@pytest.mark.parametrize("threshold", [0, -1.0, float("nan"), "fast"])
def test_a_threshold_is_checked(threshold: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="threshold"):
        asc.observe.LoopGuard(threshold)


def test_a_loop_that_does_not_run_is_not_blocked(told: Told) -> None:
    loop, stopped = asyncio.new_event_loop(), SimpleQueue[None]()
    looked = iter(range(5))
    loop.is_running = lambda: next(looked, None) is None and bool(stopped.put(None))  # type: ignore[method-assign]
    watch(loop, threading.get_ident(), 0.001, stopped)
    loop.close()
    assert told.lines == []


class Loop:
    """A loop that runs. Its signs come once the test lets them."""

    def __init__(self) -> None:
        self.signs: list[Callable[[], None]] = []

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, callback: Callable[[object], None], argument: object) -> None:
        self.signs.append(lambda: callback(argument))


class Stopped(SimpleQueue[None]):
    """Notes how long it is waited for, and lets nobody wait."""

    def __init__(self) -> None:
        self.pauses: list[float | None] = []

    def get(self, block: bool = True, timeout: float | None = None) -> None:
        self.pauses.append(timeout)
        if self.empty() and len(self.pauses) < 2:
            raise Empty


@pytest.mark.parametrize("comes", [True, False])
async def test_after_a_block_it_rests_and_without_its_end_it_ends_with_the_scheduler(told: Told, comes: bool) -> None:
    loop, stopped = Loop(), Stopped()
    watching = threading.Thread(target=watch, args=(loop, threading.get_ident(), 0.02, stopped))
    watching.start()
    block(lambda: told.lines)
    loop.signs[0]() if comes else stopped.put(None)
    block(lambda: not watching.is_alive())
    assert stopped.pauses == [0.005, 1.0][: 1 + comes]
    heads = [line.partition(",")[0].rpartition(" for ")[0] or line.partition(",")[0] for line in told.lines]
    assert heads == ["the event loop is blocked", "the event loop was blocked"][: 1 + comes]


async def test_a_callback_in_c_has_no_line(all_told: Told, blockbuster: Any) -> None:
    blocked = threading.Event()

    def emit(record: logging.LogRecord) -> None:
        all_told.lines.append(record.getMessage())
        if " at C code\n" in all_told.lines[-1]:
            blocked.set()

    all_told.emit = emit  # type: ignore[method-assign]
    blockbuster.deactivate()
    lock = threading.Lock()
    lock.acquire()

    def release() -> None:
        blocked.wait(60)
        lock.release()

    threading.Thread(target=release, daemon=True).start()
    async with asc.Scheduler("cpu", instruments=[asc.observe.LoopGuard(0.02)]):
        asyncio.get_running_loop().call_soon(lock.acquire)
        await until(blocked.is_set)
    assert lock.locked()  # it was had in the end
