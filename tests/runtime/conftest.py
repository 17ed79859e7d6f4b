"""What the tests of stalls and deadlocks share."""

from __future__ import annotations

from typing import Any

import pytest

from asyncsched.runtime import deadlock, stall


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[deadlock.Finding]:
    """What each search found. A deadlock is told soon here, also beside the threads of the test's process."""
    found: list[deadlock.Finding] = []

    class Case(deadlock.Case):
        def findings(self, stuck: Any) -> dict[Any, deadlock.Finding]:
            findings = super().findings(stuck)
            found.extend(findings.values())
            return findings

    monkeypatch.setattr(stall, "Case", Case)
    monkeypatch.setattr(stall, "FIRST_LOOK", 0.01)
    monkeypatch.setattr(stall, "PROBABLE", 0.02)
    monkeypatch.setattr(stall, "RARE", 1e9)
    return found
