"""A loop that was blocked is told of, with the line that did it; one that rests, or stops with all else, is not."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.observe.loop_guard import Watch

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
    monkeypatch.setattr("asyncsched.observe.loop_guard._EVERY", 0.0)
    return told


async def test_the_line_that_blocks_is_told_while_it_does(all_told: Told) -> None:
    def about_it() -> list[str]:
        return [line for line in all_told.lines if "test_loop_guard.py" in line]

    def guilty() -> weakref.ref[Held]:
        held = Held()
        block(about_it)
        return weakref.ref(held)

    async with asc.Scheduler("cpu", instruments=[asc.observe.LoopGuard(0.02)]) as s:
        assert guilty()() is None  # nobody kept the frame
        await until(lambda: len(about_it()) > 1)
        assert await s.call(max, 1, 2) == 2
    first, second, *_ = about_it()
    assert first.startswith("the event loop is blocked, since ")
    assert " in guilty\n    block(about_it)" in first
    assert "await s.call(fn" in first
    assert "run_until_complete" not in first  # what is below the callback says nothing
    assert second.startswith("the event loop was blocked for ")
    assert " s of a processor), at " in second
    assert any(f" in {name}" in second for name in ("block", "about_it", "<listcomp>"))


async def test_a_log_that_fails_does_not_end_it(failing_log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncsched.observe.loop_guard._EVERY", 0.0)
    texts = failing_log.texts

    async with asc.Scheduler("cpu", instruments=[asc.observe.LoopGuard(0.02)]):
        for _ in range(2):
            before = len(texts)
            block(lambda before=before: len(texts) > before)  # by a thread that lives
            await until(lambda before=before: len(texts) > before + 1)
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


@pytest.mark.parametrize("threshold", [0, -1.0, float("nan"), "fast"])
def test_a_threshold_is_checked(threshold: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="threshold"):
        asc.observe.LoopGuard(threshold)


class Rig:
    """A watch whose clocks and timers are the test's, and no thread but that of the test."""

    def __init__(self, threshold: float = 0.04) -> None:
        self.now = self.loops = self.used = 0.0
        self.running = True
        self.pauses: list[float] = []
        self.watch = Watch(self, threshold, lambda: self.now, lambda: self.loops, lambda: self.used)  # type: ignore[arg-type]

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.pauses.append(seconds)

    def is_running(self) -> bool:
        return self.running

    def passes(self, seconds: float, *, loops: float = 0.0, used: float = 0.0) -> None:
        self.now += seconds
        self.loops += loops
        self.used += used


def test_a_loop_at_rest_is_left_to_rest() -> None:
    rig = Rig()
    pause = 0.01
    for _ in range(10):
        rig.passes(pause)
        rig.watch.beat()
        pause = rig.pauses[-1]
    assert rig.pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.4, 0.4, 0.4, 0.4, 0.4]
    assert rig.watch.look() == pytest.approx(0.44)  # nor does its watcher wake before that
    rig.passes(pause, loops=0.1)
    rig.watch.beat()
    assert rig.pauses[-1] == 0.01


def test_what_blocked_without_computing_is_no_rest(told: Told) -> None:
    rig = Rig()
    rig.passes(0.2)
    rig.watch.beat()
    assert rig.pauses == [0.01]


def test_a_block_is_told_once_and_others_soon_after_are_counted(told: Told) -> None:
    rig = Rig()
    for beat in range(4):
        for _ in range(2):
            rig.passes(0.1, used=0.1)
            rig.watch.look()
        rig.watch.beat()
        if beat == 2:
            rig.passes(1.0, used=1.0)
            rig.watch.beat()
    rig.watch.look()
    heads = [line.partition("\n")[0].partition(", at ")[0].partition(" (")[0] for line in told.lines]
    assert heads == [
        "the event loop is blocked, since 0.090 s",
        "the event loop was blocked for 0.190 s",
        "the event loop is blocked, since 0.090 s",
        "the event loop was blocked for 0.190 s",
    ]
    assert "(2 more times since the last that was told)" in told.lines[2]


def test_a_stopped_process_is_no_block(told: Told) -> None:
    rig = Rig()
    rig.watch.look()
    rig.passes(3600)  # a debugger held all its threads, or the machine slept
    pause = rig.watch.look()
    assert told.lines == []
    rig.passes(pause)
    rig.watch.beat()
    rig.watch.look()
    assert told.lines == []
    rig.passes(3600, used=3600)  # but this one kept the GIL, and so its watcher from looking
    rig.watch.look()
    assert len(told.lines) == 1


def test_a_loop_that_does_not_run_is_not_blocked(told: Told) -> None:
    rig = Rig()
    rig.running = False
    for _ in range(5):
        rig.passes(0.05, used=0.05)
        rig.watch.look()
    assert told.lines == []


def test_a_debugger_at_work_on_the_loop_is_no_block(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    import traceback

    stack = [traceback.FrameSummary("mine.py", 1, "mine"), traceback.FrameSummary("/lib/bdb.py", 2, "trace_dispatch")]
    monkeypatch.setattr("asyncsched.observe.loop_guard.stack_of", lambda thread: stack)
    rig = Rig()
    for _ in range(3):
        rig.passes(0.05, used=0.05)
        rig.watch.look()
    assert told.lines == []


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
