"""Locks of the package are free after an interrupt, wherever it came."""

from __future__ import annotations

import signal
import sys
import threading
from functools import partial
from typing import Any

import pytest

from asyncsched._locks import InterruptibleLock, Lock
from asyncsched.devices.counter import Counter


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
