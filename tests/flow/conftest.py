"""Fixtures of the tests of scopes, windows, batchers and pipelines."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import asyncsched as asc

from .asking import Model
from .stepping import STEPS

MakeTable = Callable[[dict[str, Any]], Any]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the clock by which batches are formed."""
    return lambda: monkeypatch.setattr("asyncsched.flow.batcher.runners.monotonic", lambda: time.monotonic() + 3600)


@pytest.fixture
def model(s: asc.Scheduler) -> Model:
    """The batch function of a batcher of the scheduler `s`."""
    return Model()


@pytest.fixture(params=["pandas", "polars", "pyarrow"])
def table(request: pytest.FixtureRequest) -> MakeTable:
    """Makes a table of columns by name, of a library that is installed."""
    package = pytest.importorskip(request.param)
    return package.table if request.param == "pyarrow" else package.DataFrame


@pytest.fixture(params=["pandas", "polars"])
def frame(request: pytest.FixtureRequest) -> MakeTable:
    """The same, of those whose tables NumPy takes for arrays."""
    return pytest.importorskip(request.param).DataFrame


@pytest.fixture
def pandas() -> Any:
    """The package, imported where that may block."""
    return pytest.importorskip("pandas")


@pytest.fixture(params=STEPS)
def step(request: pytest.FixtureRequest) -> Callable[[list[Any]], Any]:
    """A step of a stepper: on a stream, and on the loop."""
    return STEPS[request.param]


@pytest.fixture
async def limited(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asc.Scheduler]:
    """10,000 bytes; it looks soon at who is stuck."""
    monkeypatch.setattr("asyncsched.runtime.stall.FIRST_LOOK", 0.01)
    async with asc.Scheduler("cpu", max_bytes=10_000) as s:
        yield s
