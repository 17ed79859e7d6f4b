"""What the tests of stalls and deadlocks share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from asyncsched.runtime import deadlock, stall


@pytest.fixture(autouse=True, scope="session")
def another_thread() -> Iterator[None]:
    """It might act, so that here no deadlock is certain. So might those of pytest-xdist; with -n 0 there are none."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait, daemon=True)
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[deadlock.Finding]:
    """What each investigation found. The first comes soon here, and they have the time they need on a busy machine.

    So has whoever was told of a stall, until the next look: to let go of what it holds.
    """
    found: list[deadlock.Finding] = []

    def look(*args: Any, **options: Any) -> dict[Any, deadlock.Finding]:
        findings = deadlock.investigate(*args, **options)
        found.extend(findings.values())
        return findings

    monkeypatch.setattr(stall, "investigate", look)
    for name, value in {"FIRST_LOOK": 0.01, "NEXT_LOOK": 0.2, "PROBABLE": 0.005, "RARE": 1.0}.items():
        monkeypatch.setattr(stall, name, value)
    monkeypatch.setattr(stall, "LONGEST_SEARCH", 60.0)
    return found
