"""What NVIDIA's libraries keep, and what they give at the edges: plans and their memory, singular matrices, NaN, ties.

And random programs, on pools that hide nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.linalg import LinAlgError

import asyncsched as asc
from asyncsched import linalg

from .._interrupts import finaliser
from ..devices.cuda import requirements
from ..devices.cuda.pool import PrivatePool, Spare, untracked
from ..ops.declare import UNPACK
from ..ops.meta import meta
from ..ops.op import CARD_GRANULE, plan
from ..ops.table import TABLE
from ..tensors.tensor import apply
from .arguments import arguments
from .entries import NotHere, Program, Report
from .probes import MIB, TRANSFORMS, agree, raised

_REDUCTIONS: Final = "max min argmax argmin any all sum count_nonzero nanmax nanmin nanargmax nanargmin"
_DELAY: Final = """
extern "C" __global__ void delay(long long cycles) {
    for (long long start = clock64(); clock64() - start < cycles; ) { }
}
"""
_LONGEST: Final = 400_000  # cycles: some tenths of a millisecond
_HELD_UP: Final = 0.1  # of the allocations
Step = Callable[[Any, Any], Any]


# Steps of one array, by a namespace.
STEPS: Final[Mapping[str, Step]] = {
    **{name: lambda xp, x, name=name: abs(getattr(xp.fft, name)(x)) * 1.0 for name in TRANSFORMS},  # type: ignore[misc]
    "convolve": lambda xp, x: xp.convolve(x[0], x[1], mode="full") * 1.0,
}
# Of an array with NaN, ties and infinities, by a namespace.
_EDGES: Final[Mapping[str, Step]] = {
    **{name: lambda xp, x, name=name: getattr(xp, name)(x, axis=-1) for name in _REDUCTIONS.split()},  # type: ignore[misc]
    "max of all": lambda xp, x: x.max(),
    "argmin of all": lambda xp, x: xp.argmin(x),
    "sort": lambda xp, x: xp.sort(x, axis=-1),
    "argsort": lambda xp, x: xp.argsort(x, axis=-1, stable=True),
    "cumulative_sum": lambda xp, x: xp.cumulative_sum(x, axis=-1),
    "unique_values": lambda xp, x: xp.sort(xp.unique_values(xp.where(xp.isnan(x), xp.zeros_like(x), x))),
}


async def plans(report: Report) -> None:
    """A captured transform writes to no work area of a plan that is gone: not over what others hold."""
    array = np.random.default_rng(0).random((6, 64))
    for name, step in STEPS.items():
        async with asc.Scheduler("cuda", streams=1, max_bytes=256 * MIB) as s:
            x = await s.put(array)
            await step(asc, x)
            graph = await s.capture(lambda x, step=step: step(asc, x), x)
            for _ in range(2):
                agree(await graph(x).numpy(), step(np, array), 1e-10)
                await evict_plans(s)
                held = [await s.put(np.full(64 * n, n, np.float64)) for n in range(1, report.size(40, 10))]
                for n, h in enumerate([*held, *[h + 0.0 for h in held]]):
                    await graph(x)
                    assert (await h.numpy() == n % len(held) + 1).all(), f"{name} wrote over another array"


async def evict_plans(s: asc.Scheduler) -> None:
    """Transforms of more lengths than CuPy keeps plans for."""
    for n in range(65, 85):
        asc.fft.fft(asc.ones(n, scheduler=s))
    await s.barrier()


async def plans_back(report: Report) -> None:
    """No plan holds memory of a scheduler that closed, whoever called for it."""
    ways: dict[str, Callable[[asc.Scheduler, asc.Tensor], Any]] = {
        "operation": lambda s, x: s.call(lambda x: x, asc.fft.fft(x)),
        "captured": _transformed_by_a_graph,
        "function": lambda s, x: s.call(lambda array: requirements.cupy().fft.fft(array), x),
    }
    for n, (name, way) in enumerate(ways.items()):
        async with asc.Scheduler("cuda", max_bytes=64 * MIB) as s:
            await way(s, await s.put(np.ones(5000 + n)))
            device: Any = s.devices[0]
        async with asyncio.timeout(20):
            while device.memory.pool.reserved():  # noqa: ASYNC110  # a thread gives it back
                await asyncio.sleep(0.01)
        report.tell(name, "nothing is left")


async def _transformed_by_a_graph(s: asc.Scheduler, x: asc.Tensor) -> None:
    await (await s.capture(asc.fft.fft, x))(x)


async def replays(report: Report) -> None:
    """Each operation that takes a tensor gives the same in three replays of a captured step, plans evicted between."""
    alone, count = list[str](), 0
    async with asc.Scheduler("cuda", streams=1, max_bytes=256 * MIB) as s:
        for name in list(TABLE)[:: report.size(1, 8)]:
            operands, options = arguments(name)
            tensors = [await s.put(a) for a in operands if isinstance(a, np.ndarray)]
            if not tensors:
                continue
            try:
                await asc.gather(*captured(name, operands, options)(*tensors))
            except Exception as error:  # not for want of a graph
                alone.append(f"{name}: {error}")
                continue
            with suppress(asc.CaptureError):  # a length that depends on data
                await replayed(s, name, operands, options)
                count += 1
    report.tell("replayed", count, f"of {len(TABLE)} operations")
    report.tell("fail alone", alone)


async def replayed(s: asc.Scheduler, name: str, operands: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The graph of one operation, after three replays that gave what it gives, with plans evicted between.

    Raises:
        AssertionError: if they did not.
        CaptureError: if it goes into none.
    """
    tensors = [await s.put(a) for a in operands if isinstance(a, np.ndarray)]
    step = captured(name, operands, options)
    expected = [await one.numpy() for one in step(*tensors)]
    graph = await s.capture(step, *tensors)
    for _ in range(3):
        found = [await one.numpy() for one in graph(*tensors)]
        assert [a.tobytes() for a in found] == [a.tobytes() for a in expected], f"a replay of {name} differs"
        await evict_plans(s)
    return graph


def captured(name: str, operands: Sequence[Any], options: Mapping[str, Any]) -> Callable[..., list[asc.Tensor]]:
    """A step of one operation of the table: its results, by a function of the arrays among its operands."""
    forms = [meta(a.shape, a.dtype, a.flags.c_contiguous) if isinstance(a, np.ndarray) else a for a in operands]
    parts = plan(TABLE[name], tuple(forms), options).parts

    def step(*tensors: asc.Tensor) -> list[asc.Tensor]:
        given = iter(tensors)
        args = tuple([next(given) if isinstance(a, np.ndarray) else a for a in operands])
        found = apply(TABLE[name], args, options)
        return [apply(UNPACK, (found,), place) for place in parts] or [found]  # there are gaps between packed results

    return step


async def singular(report: Report) -> None:
    """What has no inverse or no factor raises where it is awaited, and later work goes on."""
    ones = np.ones((4, 4))
    async with asc.Scheduler("cuda") as s:
        x, some = await s.put(ones), await s.put(np.stack([np.eye(4), ones, np.eye(4)]))
        for tensor in (linalg.inv(x), linalg.inv(some), linalg.solve(x, x), linalg.cholesky(-x)):
            await raised(LinAlgError, tensor)
            agree(await (x + 1).numpy(), ones + 1)
        agree(await linalg.det(x).numpy(), 0.0)
        agree(await linalg.matrix_rank(some).numpy(), [4, 1, 4])
        agree(await linalg.pinv(x).numpy(), ones / 16, 1e-12)


async def edges(report: Report) -> None:
    """NaN, ties, infinities and zeros of both signs are reduced, sorted and counted as NumPy does it, to the bit."""
    differ, rng = list[str](), np.random.default_rng(0)
    async with asc.Scheduler("cuda") as s:
        for shape in ((40, 300), (report.size(1 << 18, 3000),)):
            for dtype in ("i4", "f2", "f4", "f8"):
                for name, step in _EDGES.items():
                    array = rng.integers(0, 5, shape).astype(dtype)
                    if dtype != "i4":
                        array.reshape(-1, shape[-1])[::2, [5, 60, 7]] = np.nan, np.inf, -0.0
                    with np.errstate(all="ignore"):
                        expected = np.asarray(step(np, array))
                    found = await step(asc, await s.put(array)).numpy()
                    if found.dtype != expected.dtype or not np.array_equal(found, expected, equal_nan=True):
                        differ.append(f"{name} of {dtype}{list(shape)}")
    assert not differ, f"other results in {', '.join(differ)}"


async def two_devices(report: Report) -> None:
    """Results go from one device to the other and back, each behind the work that makes it."""
    if requirements.cupy().cuda.runtime.getDeviceCount() < 2:
        raise NotHere("there is one device")
    array = np.random.default_rng(0).integers(0, 9, (300, 400)).astype("f4")
    async with asc.Scheduler(["cuda:0", "cuda:1"], max_bytes=64 * MIB) as s:
        x = await s.put(array)
        for i in range(report.size(100, 10)):
            there = (x.mT if i % 2 else x).to("cuda:1") * 2
            back = there.to("cuda:0") + i
            agree(await back[:3, :3].numpy(), (array.T if i % 2 else array)[:3, :3] * 2 + i)
        agree(await (back.to("cuda:1") - 1).numpy(), (array.T if i % 2 else array) * 2 + i - 1)


# -- random programs --------------------------------------------------------------------------------------------------


class Block:
    """Some memory of the device, for as long as anything refers to it."""

    made: int = 0

    def __init__(self, cuda: Any, nbytes: int) -> None:
        self._free, self._stream = cuda.runtime.freeAsync, cuda.get_current_stream().ptr
        self.start: Any = cuda.runtime.mallocAsync(nbytes, self._stream)
        cuda.runtime.memsetAsync(self.start, 0xFF, nbytes, self._stream)
        Block.made += 1

    @finaliser(lambda *_: None)  # with its one line the block is free
    def __del__(self) -> None:
        self._free(self.start, self._stream)


def one_for_each() -> None:
    """Have the pools of this process hand out one block for each allocation.

    Each block goes back in the order of the stream that took it, and at once. So whoever reads it later faults, on
    whatever stream, or is found by a tool that watches memory. What a pool has free stays mapped, and such a reader
    most often gets what it hoped for. Each block is full of 0xff, and some streams are held up at random: who reads too
    early, or what was not written, gets NaN or -1.

    Raises:
        NotHere: if CuPy is a fake.
    """
    cupy = requirements.cupy()
    if not hasattr(cupy, "RawKernel"):
        raise NotHere("this CuPy takes no kernels of one's own")
    delay, rng = cupy.RawKernel(_DELAY, "delay"), random.Random(1)
    delay.compile()

    def malloc(self: PrivatePool, nbytes: int) -> Any:
        nbytes, device = -(-nbytes // CARD_GRANULE) * CARD_GRANULE, cupy.cuda.runtime.getDevice()
        if not nbytes:
            return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0, 0, None, device), 0)
        if rng.random() < _HELD_UP:
            delay((1,), (1,), (rng.randrange(_LONGEST),))
        block = Block(cupy.cuda, nbytes)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(block.start, nbytes, untracked(block), device), 0)

    def drop(self: Spare, array: Any) -> None:
        """Keep no array: the next one has a block of its own, too."""

    PrivatePool.malloc = malloc  # type: ignore[method-assign]
    Spare.keep = drop  # type: ignore[method-assign]


def _written(a: asc.Tensor, b: asc.Tensor) -> asc.Tensor:
    c = a + 0
    c[3] = b[1]
    return c


# Of whole numbers, which every device adds and multiplies to the same bits.
_OPERATIONS: Final[Sequence[Callable[[asc.Tensor, asc.Tensor], asc.Tensor]]] = (
    lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a @ b, lambda a, b: a.mT - b, _written,
    lambda a, b: asc.where(a > b, a, b), lambda a, b: a.sum(axis=0) + b, lambda a, b: asc.sort(a, axis=0),
    lambda a, b: asc.cumulative_sum(a, axis=1) - b, lambda a, b: asc.concat([a[8:], b[:8]]),
    lambda a, b: asc.flip(a, axis=1) * 3,
)  # fmt: skip


async def programs(report: Report) -> None:
    """Random programs have the CPU's bits: on the scheduler's pool, then with a block for each
    allocation."""
    count = report.size(60, 4)
    for seed in range(2 * count):
        if seed == count:
            with suppress(NotHere):
                one_for_each()
        results = []
        for device, streams in (("cpu", 1), ("cuda", 1 + seed % 4)):
            async with asc.Scheduler(device, streams=streams, max_bytes=MIB, max_ops=(None, 2)[seed % 2]) as s:
                rng, numbers = random.Random(seed), np.random.default_rng(seed)
                tensors = [await s.put(numbers.integers(-9, 9, (32, 32))) for _ in range(3)]
                for _ in range(60):
                    tensors.append(rng.choice(_OPERATIONS)(rng.choice(tensors), rng.choice(tensors)))
                    tensors = rng.sample(tensors, min(len(tensors), 6))
                results.append([await tensor.numpy() for tensor in tensors])
        assert all(map(np.array_equal, *results)), f"program {seed} differs"


# -- a full device ----------------------------------------------------------------------------------------------------


async def full_card(report: Report) -> None:
    """Where the device is full, the first call of a library, or of a kernel, gets the pool's idle memory; also within a
    function of the user's."""
    cupy, array = requirements.cupy(), np.random.default_rng(0).random((64, 64))
    if not hasattr(cupy, "RawKernel"):
        raise NotHere("the libraries of this CuPy need no memory")
    steps: dict[str, Callable[[Any, Any], Any]] = {
        "product": lambda xp, x: x @ x,
        "transform": lambda xp, x: abs(xp.fft.fft(x)),
        "decomposition": lambda xp, x: xp.linalg.cholesky(x @ x.mT + 64 * xp.eye(64)),
        "kernel": lambda xp, x: xp.expm1(x),
        "function": lambda xp, x: xp.arctan(abs(xp.fft.rfft(x, 77))),
    }
    for name, step in steps.items():
        async with asc.Scheduler("cuda", streams=1, max_bytes=1024 * MIB) as s:
            x, idle = await s.put(array), await s.put(np.ones(report.size(256, 16) * MIB, np.uint8))
            del idle
            await s.barrier()
            taken = await asyncio.to_thread(_fill, cupy.cuda.runtime)
            report.tell(f"filled before the {name}", sum(taken.values()), "bytes")
            try:
                found = step(asc, x) if name != "function" else await s.submit(partial(step, cupy), x)
                agree(await s.call(cupy.asnumpy, found), step(np, array), 1e-12)
            finally:
                for start in taken:
                    await asyncio.to_thread(cupy.cuda.runtime.free, start)


def _fill(runtime: Any) -> dict[int, int]:
    """Take all that is free on the device. Returns the size of each block by its address."""
    taken, size = dict[int, int](), runtime.memGetInfo()[0]
    while size >= 4096:
        try:
            taken[runtime.malloc(size)] = size
        except runtime.CUDARuntimeError:
            size //= 2
    return taken


PROBES: Final[Mapping[str, Program]] = {
    probe.__name__: probe for probe in (plans, plans_back, singular, edges, two_devices, programs, full_card, replays)
}
