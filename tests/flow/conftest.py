"""Fixtures of the tests of scopes, windows, batchers and pipelines."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import asyncsched as asc

from .asking import Model


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the clock by which batches are formed."""
    return lambda: monkeypatch.setattr("asyncsched.flow.batcher.runners.monotonic", lambda: time.monotonic() + 3600)


@pytest.fixture
def model(s: asc.Scheduler) -> Model:
    """The batch function of a batcher of the scheduler `s`."""
    return Model()
