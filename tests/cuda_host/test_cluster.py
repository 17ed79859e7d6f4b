"""Dask's workers with the real CuPy: the programs that `tests/cluster` runs on the fake one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.cluster.device import DaskDevice
from tests.cluster import on_cards
from tests.cluster.local import cluster
from tests.cluster.on_cards import A

pytestmark = pytest.mark.one_loop


@pytest.fixture(scope="module")
def address(everything: Any) -> Iterator[str]:
    """Of the scheduler of a cluster of two workers with cards."""
    distributed = pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    distributed.versions.get_versions()
    with cluster(2, cards=2, fake=False) as address:
        yield address


@pytest.fixture
async def d(address: str, blockbuster: Any) -> AsyncIterator[asc.Scheduler]:
    async with asc.Scheduler(DaskDevice(address, workers=2)) as s:
        yield s


@pytest.mark.parametrize("program", on_cards.PROGRAMS)
async def test_a_program_runs_on_cards(d, program):
    await program(d)


async def test_errors_come_back_where_there_is_no_cupy(d):
    def fault(x: Any) -> None:
        import cupy

        cupy.RawKernel("this is no kernel", "f")((1,), (1,), (x,))

    with pytest.raises(RuntimeError, match="CompileException"):
        await d.call(fault, await d.put(A))
