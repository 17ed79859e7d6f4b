"""A fake for each test, and what tests of it need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from . import Fake, fake_cupy

SEEDS = range(10)


@pytest.fixture(params=SEEDS)
def fake(request: pytest.FixtureRequest) -> Iterator[Fake]:
    """Several fakes, by seed, for what the order of steps must not change."""
    with fake_cupy(request.param) as fake:
        yield fake


@pytest.fixture
def one() -> Iterator[Fake]:
    """One fake, for what is decided at the call."""
    with fake_cupy() as fake:
        yield fake


@pytest.fixture
def cupy() -> Any:
    """The module, to be named after `fake` or `one`."""
    import cupy

    return cupy


@pytest.fixture
def a(cupy: Any) -> Any:
    """A new non-blocking stream."""
    return streams(cupy, 1)[0]


@pytest.fixture
def b(cupy: Any) -> Any:
    """Another."""
    return streams(cupy, 1)[0]


def streams(cupy: Any, count: int = 2) -> list[Any]:
    """New non-blocking streams."""
    return [cupy.cuda.Stream(non_blocking=True) for _ in range(count)]


def pinned(cupy: Any, content: Any) -> Any:
    """A copy in pinned memory, as a NumPy array."""
    memory = cupy.cuda.alloc_pinned_memory(content.nbytes)
    array = np.frombuffer(memory, content.dtype, content.size).reshape(content.shape)
    array[...] = content
    return array
