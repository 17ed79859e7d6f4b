"""Locks of the package are free after an interrupt, wherever it came."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import pytest

from asyncsched._locks import InterruptibleLock, Lock


@pytest.mark.parametrize("kind", [Lock, InterruptibleLock])
def test_what_one_thread_has_others_wait_for(kind: Any) -> None:
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
@pytest.mark.parametrize("kind", [Lock, InterruptibleLock])
def test_an_interrupt_leaves_it_free(kind: Any) -> None:
    """By a real signal, at places that come by chance."""
    lock, armed = kind(), False

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
                    with lock:
                        pass
            taken = list[bool]()
            thread = threading.Thread(target=_take, args=(lock, taken), daemon=True)
            thread.start()
            thread.join(60)
            assert taken == [True], sys.version
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _take(lock: Any, taken: list[bool]) -> None:
    with lock:
        taken.append(True)
