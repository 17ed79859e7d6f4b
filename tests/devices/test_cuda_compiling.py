"""First runs of kernels, which compile: threads take turns at one kernel, and nobody waits for another's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cuda.memory import CUDAMemory
from asyncsched.devices.cuda.threads import first_run
from tests.fake_cupy import Fake
from tests.waiting import LONGEST, until

from .conftest import BLOCK, opened

pytestmark = pytest.mark.one_loop


@pytest.fixture
def first_runs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Within a block, first runs of `tanh` do something before they run. Gives the names of all that have begun."""
    run = CUDAMemory._run

    @contextmanager
    def first_runs(does: Callable[[], object]) -> Iterator[list[str]]:
        begun: list[str] = []

        def held(self: Any, task: Any, *args: Any) -> None:
            begun.append(task.name)
            if task.name == "tanh" and begun.count("tanh") == 1:
                does()
            run(self, task, *args)

        monkeypatch.setattr(CUDAMemory, "_run", held)
        yield begun
        monkeypatch.setattr(CUDAMemory, "_run", run)

    return first_runs


def test_one_thread_at_a_time() -> None:
    inside, most, begin = list[int](), list[int](), threading.Barrier(8)

    def run(number: int) -> None:
        begin.wait(60)
        for _ in range(50):
            with first_run("kernel"):
                inside.append(number)
                most.append(len(inside))
                inside.remove(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST)
    assert set(most) == {1}
    assert len(most) == 400


def test_one_that_fails_ends_its_turn() -> None:
    with pytest.raises(ValueError, match="no"), first_run("kernel"):
        raise ValueError("no")
    with first_run("kernel"):
        pass


async def test_streams_that_meet_a_new_kernel_compile_it_once(fake: Fake) -> None:
    async with opened(4) as s:
        tensors = [await s.put(BLOCK[: n + 1]) for n in range(8)]
        before = fake.statistics["compiles"]
        await asc.gather(*[asc.tanh(x) for x in tensors])
        assert fake.statistics["compiles"] == before + 1


async def test_other_kernels_do_not_wait(fake: Fake, first_runs: Callable[..., Any]) -> None:
    go = threading.Event()
    async with opened(2) as s:
        x = await s.put(BLOCK)
        with first_runs(lambda: go.wait(60)) as begun:
            held = asc.tanh(x)
            await until(lambda: begun)
            try:
                for function in (asc.exp, asc.sinh):
                    assert (await function(x).numpy()).shape == BLOCK.shape
                assert not held.done()
            finally:
                go.set()
            await held


async def test_one_that_frees_memory_keeps_nobody_waiting(fake: Fake, first_runs: Callable[..., Any]) -> None:
    """Freeing waits for the device, as long as that computes."""
    freed, other_began = threading.Event(), threading.Event()
    async with opened(2, max_bytes="64 MiB") as s:
        pool: Any = s.devices[0].memory.pool  # type: ignore[attr-defined]
        x, small, large = await s.put(BLOCK), await s.put(BLOCK[:8]), await s.put(np.ones(1 << 21))
        del large
        await s.barrier()

        def free() -> None:
            before = pool.reserved()
            pool.free()
            assert pool.reserved() < before
            freed.set()
            other_began.wait(60)

        with first_runs(free) as begun:
            one = asc.tanh(x)
            await until(freed.is_set)
            other = asc.tanh(small)  # the same kernel
            try:
                await until(lambda: begun.count("tanh") == 2)
            finally:
                other_began.set()
            await asc.gather(one, other)
