"""An interrupt leaves locks free, and is not lost in a finaliser, wherever it comes."""

from __future__ import annotations

import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from asyncsched._interrupts import InterruptibleLock, Lock, finaliser, watch_for_interrupts
from asyncsched.devices.contract import Counter


@pytest.mark.parametrize("kind", [Lock, InterruptibleLock])
def test_other_threads_wait_for_the_lock(kind: Any) -> None:
    lock, order = kind(), list[str]()

    def other() -> None:
        with lock:
            order.append("second")

    with lock, lock:  # again, as a finaliser may
        thread = threading.Thread(target=other)
        thread.start()
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
@pytest.mark.parametrize("kind", [Lock, InterruptibleLock, Counter])
def test_an_interrupt_leaves_it_free(kind: Any) -> None:
    """By a real signal, at places that come by chance. A counter has one, too, which a loop's thread takes."""
    lock, armed = kind(), False
    take = lock.wake if kind is Counter else partial(_take, lock)

    def strike(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        for _ in range(300):
            with pytest.raises(KeyboardInterrupt):
                armed = True
                while True:
                    take()
            thread = threading.Thread(target=take, daemon=True)
            thread.start()
            thread.join(60)
            assert not thread.is_alive(), sys.version
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _take(lock: Any) -> None:
    with lock:
        pass


class Ends:
    """Its finaliser is interrupted so often."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors, self.calls = list(errors), list[int]()

    @finaliser()
    def __del__(self) -> None:
        self.calls.append(len(self.errors))
        if self.errors:
            raise self.errors.pop()


class Foreign:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


def generator(error: BaseException) -> Iterator[None]:
    try:
        yield
    finally:
        raise error


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """What the hook that was set before is told."""
    told: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: told.append(lost.exc_value))
    watch_for_interrupts()
    return told


def drop(thing: Any) -> list[int]:
    """Returns the lines that were reached while it was dropped."""
    box, lines = [thing], [0]
    del thing
    box.clear()
    lines.append(1)
    for _ in range(2):  # a place where Python looks for signals
        lines.append(2)
    return lines


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_an_interrupt_in_a_finaliser_is_raised_again_after_it(error: BaseException, told: list[Any]) -> None:
    ends = Ends(error)
    calls = ends.calls
    box = [ends]
    del ends
    with pytest.raises(type(error)) as caught:
        drop(box.pop())
    assert caught.value is error
    assert calls == [1, 0]
    assert told == []
    watch_for_interrupts()  # again, as each scheduler does
    drop(Ends())


def test_a_fault_of_a_finaliser_is_told_as_ever(told: list[Any]) -> None:
    faults: list[BaseException] = [ValueError(), LookupError()]
    ends = Ends(*faults)
    calls = ends.calls
    box = [ends]
    del ends
    assert drop(box.pop()) == [0, 1, 2, 2]
    assert calls == [2, 1]
    assert told == faults[1:]


def test_an_interrupt_in_any_other_is_raised_again_too_and_nothing_else_is(told: list[Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        drop(Foreign(KeyboardInterrupt()))
    dropped = generator(KeyboardInterrupt())
    next(dropped)
    box = [dropped]
    del dropped
    with pytest.raises(KeyboardInterrupt):
        drop(box.pop())
    errors: list[BaseException] = [ValueError(), SystemExit(3)]
    for error in errors:
        assert drop(Foreign(error)) == [0, 1, 2, 2]
    assert told == errors
    raised = KeyboardInterrupt()

    def callback(_: object) -> None:
        raise raised

    watched = set[int]()
    watching = weakref.ref(watched, callback)
    del watched
    assert watching() is None
    assert told == [*errors, raised]


def test_an_interrupt_of_a_set_of_weak_references_is_not_lost(told: list[Any]) -> None:
    known = weakref.WeakSet[Ends]()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "_remove":
            sys.setprofile(None)
            raise KeyboardInterrupt

    ends = Ends()
    known.add(ends)
    box = [ends]
    del ends
    sys.setprofile(look)
    try:
        with pytest.raises(KeyboardInterrupt):
            drop(box.pop())
    finally:
        sys.setprofile(None)
    assert len(known) == len(known.data) == 0  # type: ignore[attr-defined]
    assert told == []
