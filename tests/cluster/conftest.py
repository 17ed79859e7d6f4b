"""Clusters that the tests here share: starting one takes seconds. And for each test of `get` a scheduler of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import asyncsched as asc

from .local import cluster


@pytest.fixture(scope="package")
def distributed() -> Any:
    found = pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    found.versions.get_versions()  # which starts a process: what makes a client of its own is not to do it
    return found


@pytest.fixture(scope="package")
def address(distributed: Any) -> Iterator[str]:
    """Of the scheduler of a cluster with two workers."""
    with cluster(2) as address:
        yield address


@pytest.fixture(scope="package")
def mortals(distributed: Any) -> Iterator[str]:
    """The same, of three workers that may be killed at any time: two with cards, 0 and 1, and one without, 2."""
    with cluster(3, mortal=True, cards=2) as address:
        yield address


@pytest.fixture(scope="package")
def one_worker(distributed: Any) -> Iterator[str]:
    """The same, of one worker with four threads, which its nanny starts again at another address."""
    with cluster(1, threads=4) as address:
        yield address


@pytest.fixture
async def d(address: str, blockbuster: Any) -> AsyncIterator[asc.Scheduler]:
    """A scheduler on the cluster."""
    async with asc.Scheduler(asc.cluster.DaskDevice(address, workers=2)) as scheduler:
        yield scheduler


@pytest.fixture
def kept() -> Iterator[None]:
    """No scheduler that `get` keeps open before, nor after."""
    from asyncsched.cluster import compute

    before = compute._kept.replace({"device": "cpu", "streams": 2})
    yield
    compute._kept.replace(before)
