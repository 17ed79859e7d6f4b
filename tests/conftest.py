"""Every asynchronous test runs on both loops, with nothing allowed to block them, and with a hard timeout."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

LOOPS = [pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio")]
if importlib.util.find_spec("uvloop") is not None:
    LOOPS.append(pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"))


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def blockbuster() -> Iterator[BlockBuster]:
    """Blocking calls on a thread that runs a loop raise."""
    with blockbuster_ctx() as guard:
        guard.functions["io.TextIOWrapper.write"].deactivate()  # where log records go is the user's business
        yield guard
