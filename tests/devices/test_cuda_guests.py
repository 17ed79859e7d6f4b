"""Memory beside the pool: PyTorch's allocator, captured steps and ours take from one device, and each gets what the
others have idle."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cuda import pool
from tests.fake_cupy import Fake, fake_cupy

from .conftest import checked, opened

pytestmark = pytest.mark.one_loop
MIB = 1 << 20


class Torch(ModuleType):
    """PyTorch's allocator: what tensors gave back is kept for the next, and goes back to the device when it is asked to
    or lacks memory."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.nn = SimpleNamespace(Module=Module)
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            ExternalStream=lambda pointer, device: pointer,
            stream=lambda stream: nullcontext(),
            memory_allocated=lambda device: self.used,
            max_memory_allocated=lambda device: self.peak,
            memory_reserved=lambda device: self.used + sum(block.size for block in self.idle),
            reset_peak_memory_stats=self.reset,
            empty_cache=lambda: self.idle.clear(),
        )
        self.no_grad, self.Tensor = nullcontext, Torch
        self.used = self.peak = 0
        self.idle: list[Any] = []

    def reset(self, device: int) -> None:
        self.peak = self.used

    def empty(self, nbytes: int) -> Any:
        """A tensor."""
        import cupy

        for block in self.idle:
            if block.size >= nbytes:
                self.idle.remove(block)
                break
        else:
            try:
                block = cupy.cuda.Memory(nbytes)
            except cupy.cuda.runtime.CUDARuntimeError:
                self.idle.clear()
                block = cupy.cuda.Memory(nbytes)
        self.used += block.size
        self.peak = max(self.peak, self.used)
        return block

    def drop(self, tensor: Any) -> None:
        self.used -= tensor.size
        self.idle.append(tensor)


class Module:
    """The base of modules."""


@pytest.fixture
def gpu() -> Iterator[Fake]:
    """One with 8 MiB."""
    yield from checked(fake_cupy(memory=8 * MIB))


@pytest.fixture
def torch(gpu: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Torch]:
    made = Torch()
    monkeypatch.setitem(sys.modules, "torch", made)
    yield made
    made.idle.clear()


class Works(Module):
    """Takes a tensor of some bytes, and drops it."""

    def __init__(self, torch: Torch, nbytes: int) -> None:
        self.torch, self.nbytes = torch, nbytes

    def __call__(self) -> int:
        self.torch.drop(self.torch.empty(self.nbytes))
        return self.nbytes


async def fill(s: asc.Scheduler, nbytes: int) -> int:
    """Have the pool take memory that nobody uses afterwards. Returns how much it has."""
    x = await s.put(np.ones(nbytes, np.uint8))
    del x
    await s.barrier()
    return s.devices[0].memory.pool.reserved()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("how", ["learned", "told"])
async def test_a_guest_gets_what_the_pool_has_idle(torch: Torch, gpu: Fake, how: str) -> None:
    cost = asc.LearnedCost() if how == "learned" else 3 * MIB
    work = Works(torch, 3 * MIB)
    async with opened(1, max_bytes=6 * MIB) as s:
        if how == "learned":
            assert await s.call(work.__call__, nbytes=cost) == 3 * MIB
            await s.call(torch.idle.clear)
        assert await fill(s, 6 * MIB) >= 6 * MIB
        if how == "learned":
            with pytest.raises(Exception, match="memory"):
                await s.call(work.__call__, nbytes=MIB)  # no guest as far as anybody knows, and not its first call
        assert await s.call(work if how == "told" else work.__call__, nbytes=cost) == 3 * MIB
        frees = gpu.statistics["frees"]
        await fill(s, MIB)
        assert await s.call(work if how == "told" else work.__call__, nbytes=cost) == 3 * MIB  # from PyTorch's cache
        assert gpu.statistics["frees"] == frees


async def test_the_pool_gets_what_a_guest_has_idle(torch: Torch) -> None:
    work = Works(torch, 4 * MIB)
    async with opened(1, max_bytes=6 * MIB) as s:
        await s.call(work, nbytes=4 * MIB)
        assert torch.cuda.memory_reserved(0) == 4 * MIB
        assert await fill(s, 6 * MIB) >= 6 * MIB
        assert torch.cuda.memory_reserved(0) == 0


@pytest.mark.parametrize(
    ("memory", "limit", "most"),
    [
        (8 << 30, None, int(0.8 * (8 << 30)) + (8 << 30) // 5 - (512 << 20)),
        (1 << 30, None, (1 << 30) * 7 // 8),
        (8 << 30, 1 << 30, 5 << 28),
        (8 << 30, 16 << 20, 80 << 20),
        (1 << 30, 1 << 30, 1 << 30),
    ],
)
async def test_what_the_pool_takes_at_most(monkeypatch: pytest.MonkeyPatch, memory: int, limit: int, most: int) -> None:
    """A quarter more than the limit, or all but the margin of what was free."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    for _ in checked(fake_cupy(memory=memory)):
        async with opened(1, max_bytes="auto" if limit is None else limit) as s:
            found = s.devices[0].memory.pool._most
            assert abs(found - most) <= 1
            assert found <= max(limit or 0, memory - min(pool.MARGIN, memory // pool.SHARE_OF_MARGIN))


async def test_a_captured_step_gets_what_the_pool_has_idle(gpu: Fake) -> None:
    """Its graph has a pool of its own."""
    async with opened(1, max_bytes=6 * MIB) as s:
        x = await s.put(np.ones(MIB // 4, np.float32))
        reserved = await fill(s, 5 * MIB)
        graph = await s.capture(lambda x: asc.tanh(x) * 2, x)
        assert graph.owned > gpu.memory - reserved
        assert (await graph(x).numpy()).max() == np.tanh(np.float32(1)) * 2
