"""Whether the library's promises hold on a card: small programs that raise AssertionError if one does not.

`SAME` has a row for each computation that must give the same on a card as on the CPU. Other probes are functions.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final

import numpy as np

import asyncsched as asc
from asyncsched import linalg, nn, optim

from ..devices.cuda import requirements
from .entries import NotHere, Program, Report

MIB: Final = 1 << 20
_OF_ONE: Final = "exp expm1 log log1p log2 log10 sqrt sin cos tan sinh cosh tanh asin acos atan asinh atanh square"
_OF_TWO: Final = "pow atan2 hypot remainder divide"
TRANSFORMS: Final = ("fft", "ifft", "rfft", "irfft", "fftn", "ifftn", "rfftn", "irfftn")
_FAR: Final = 'extern "C" __global__ void far(float* p) { p[1ll << 40] = 1; }'


def agree(found: Any, expected: Any, within: float = 0.0) -> float:
    """The largest difference, relative to the number or to one. Raises if it is more than `within`."""
    found, expected = np.asarray(found), np.asarray(expected, "f8")
    off = np.abs(found - expected) / np.maximum(np.abs(expected), 1.0)
    worst = float(off.max(initial=0.0))
    assert worst <= within, f"off by {worst:.3g} at {off.argmax()} of {off.size}, and {within:.3g} is allowed"
    return worst


async def raised(kinds: Any, awaitable: Awaitable[Any]) -> Exception:
    """The exception that it raises, of some kinds."""
    try:
        await awaitable
    except kinds as error:
        return error  # type: ignore[no-any-return]
    raise AssertionError(f"{kinds} was not raised")


# -- the same as on the CPU -------------------------------------------------------------------------------------------


def _chains(x: asc.Tensor, y: asc.Tensor) -> list[asc.Tensor]:
    """Short operations on some streams read the results of long products on others."""
    one = asc.eye(x.shape[0] or 0)
    for _ in range(30):
        left, right = x * 0.5, x + (one @ one)[0, 0]
        x = left + right * 0.5
    return [x]


def _functions(x: asc.Tensor, y: asc.Tensor) -> list[asc.Tensor]:
    ones, twos = ([getattr(asc, name) for name in names.split()] for names in (_OF_ONE, _OF_TWO))
    return [*[f(x) for f in ones], *[f(x, y) for f in twos], asc.acosh(x + 1), x * y + x]


def _decompositions(x: asc.Tensor, y: asc.Tensor) -> list[asc.Tensor]:
    square = x @ x.mT + asc.eye(x.shape[0] or 0)
    found = [linalg.solve(square, y), linalg.svdvals(x), linalg.cholesky(square), asc.abs(asc.fft.fft(x))]
    return [*found, asc.sort(x, axis=0), asc.cumulative_sum(y, axis=1)]


def _transforms(x: asc.Tensor, y: asc.Tensor) -> list[asc.Tensor]:
    """Of some lengths, with primes and powers, and of two axes."""
    return [asc.abs(getattr(asc.fft, name)(x[:, :n])) for n in (2, 7, 54, 61, 97, 243, 320) for name in TRANSFORMS]


def _training(x: asc.Tensor, y: asc.Tensor) -> list[asc.Tensor]:
    """Losses of three steps of a small network with a convolution."""
    images, classes = x.reshape(-1)[:2400].reshape((8, 3, 10, 10)), asc.arange(8) % 5
    weights = [y.reshape(-1)[:108].reshape((4, 3, 3, 3)) * 1.0, y.reshape(-1)[-1280:].reshape((256, 5)) * 1.0]
    for weight in weights:
        weight.requires_grad = True
    adam, losses = optim.Adam(weights, lr=0.01), []
    for _ in range(3):
        adam.zero_grad()
        features = nn.functional.relu(nn.functional.conv2d(images, weights[0])).reshape((8, -1))
        losses.append(nn.cross_entropy(features @ weights[1], classes))
        losses[-1].backward()
        adam.step()
    return losses


Same = tuple[Callable[[asc.Tensor, asc.Tensor], list[asc.Tensor]], str, float]
# By name: a function of two arrays of this dtype, with numbers from 0.05 to 0.95; and how far off results may be.
# Products of float32 in TF32 would be off by 1e-4.
SAME: Final[Mapping[str, Same]] = {
    "order": (_chains, "f8", 0.0),
    "functions_f4": (_functions, "f4", 4e-6),
    "functions_f8": (_functions, "f8", 1e-14),
    "products_f2": (lambda x, y: [x @ y.mT], "f2", 2e-3),
    "products_f4": (lambda x, y: [x @ y.mT], "f4", 1e-5),
    "products_f8": (lambda x, y: [x @ y.mT], "f8", 1e-13),
    "decompositions": (_decompositions, "f8", 1e-9),
    "transforms": (_transforms, "f8", 1e-10),
    "training": (_training, "f8", 1e-9),
}


async def _same(compute: Any, dtype: str, within: float, report: Report) -> None:
    found, arrays = [], _arrays(report, dtype)
    for device, streams in (("cpu", 1), ("cuda", 4)):
        async with asc.Scheduler(device, streams=streams, max_ops=None) as s:
            results = compute(*[await s.put(array) for array in arrays[:2]])
            found.append([await result.numpy() for result in results])
    offs = [agree(ours, theirs, within) for theirs, ours in zip(*found, strict=True)]
    report.tell("off by", max(offs), f"(in result {np.argmax(offs)})")


def _arrays(report: Report, dtype: str) -> list[Any]:
    """Three."""
    return list(np.random.default_rng(0).uniform(0.05, 0.95, (3, *[report.size(320, 64)] * 2)).astype(dtype))


# -- other probes -----------------------------------------------------------------------------------------------------


async def captured(report: Report) -> None:
    """Operations that a captured step runs as one kernel have the bits that each has alone, replay after replay."""
    names = [*_OF_ONE.split(), *_OF_TWO.split(), "acosh", "x * y + x"]
    differ = set[str]()
    async with asc.Scheduler("cuda") as s:
        for dtype in ("f2", "f4", "f8"):
            x, y, z = [await s.put(array) for array in _arrays(report, dtype)]
            graph = await s.capture(_functions, x, y)
            for pair in ((x, y), (z, y)):
                for name, alone, fused in zip(names, _functions(*pair), graph(*pair), strict=True):
                    if (await alone.numpy()).tobytes() != (await fused.numpy()).tobytes():
                        differ.add(f"{name} of {dtype}")
    assert not differ, f"other bits in {', '.join(sorted(differ))}"


async def half_sums(report: Report) -> None:
    """Sums and means of 100,000 halves are rounded once, at their end."""
    worst, array = 0.0, np.random.default_rng(0).random((8, 100_000)).astype(np.float16)
    async with asc.Scheduler("cuda") as s:
        x, exact = await s.put(array), array.astype("f8").sum(axis=1)
        for found, value in ((x.sum(axis=1), exact), (x.mean(axis=1), exact / 100_000)):
            worst = max(worst, float(np.max(abs(await found.numpy() - value) / np.spacing(value.astype("f2")))))
    report.tell("off by", worst, "units in the last place")
    assert worst <= 0.51, f"off by {worst:.3g} units in the last place: they are added up in halves"


async def reuse(report: Report) -> None:
    """Buffers are taken again and again on three streams, under a limit of 32 of them."""
    count, found = report.size(300, 30), list[Any]()
    async with asc.Scheduler("cuda", streams=3, max_bytes=32 * MIB, max_ops=None) as s:
        x = await s.put(np.ones(MIB // 4, np.float32))
        for i in range(count):
            y = (x + i) * 2 - x
            found += [y.min().item(), y.max().item()]
        agree(await asc.gather(*found), np.repeat(2 * np.arange(count) + 1, 2))
        assert s.statistics().peak_bytes <= 32 * MIB


async def dropped(report: Report) -> None:
    """Awaited arrays are dropped while streams of the user's still read them."""
    cupy = requirements.cupy()
    streams, found = [cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)], list[Any]()
    async with asc.Scheduler("cuda", streams=1) as s:
        x = await s.put(np.zeros(MIB // 4, np.float32))
        for i in range(report.size(200, 20)):
            array = await (x + i)
            with streams[i % 2]:
                found.append(array * 10)
            asc.record_stream(array, streams[i % 2])
            del array
        await asyncio.to_thread(cupy.cuda.runtime.deviceSynchronize)
        first = await asyncio.to_thread(lambda: [[y.min().get(), y.max().get()] for y in found])
        agree(first, [[10 * i] * 2 for i in range(len(found))])


async def wrong_index(report: Report) -> None:
    """An index out of range fails where the result is awaited, and later tasks go on."""
    async with asc.Scheduler("cuda") as s:
        x, wrong = await s.put(np.ones((8, 5), np.float32)), await s.put(np.arange(8))
        for tensor in (nn.cross_entropy(x, wrong) * 2, asc.take(x, wrong, axis=1)):
            assert "5" in str(await raised(IndexError, tensor))
        agree(await (x + 1).numpy(), np.full((8, 5), 2))


async def cancelled(report: Report) -> None:
    """Tasks and awaits are cancelled behind a busy stream, and nothing else is."""
    async with asc.Scheduler("cuda", max_ops=2) as s:
        x = await s.put(np.eye(report.size(2048, 32), dtype=np.float32))
        late = [x @ x + i for i in range(30)]
        reader, given_up = late[20] + 1, asyncio.ensure_future(asc.gather(late[5]))
        assert late[20].cancel()
        await raised(asc.TaskCancelled, reader)
        given_up.cancel()
        await asyncio.wait([given_up])
        for i in (5, 29):
            agree(await late[i][:2, :2].numpy(), np.eye(2) + i)


async def memory_back(report: Report) -> None:
    """Nothing is held after all was dropped, and the device has its memory back after the close."""
    cupy = requirements.cupy()
    async with asc.Scheduler("cuda", max_bytes=256 * MIB) as s:
        device: Any = s.devices[0]
        x = await s.put(np.ones((256, 256), np.float32))
        await asc.gather(*[(x @ x + i).sum().item() for i in range(report.size(100, 10))])
        await asc.real(asc.fft.fft(x)).sum().item()
        del x
        await s.barrier()
        assert s.statistics().bytes_retained == 0
        await s.call(lambda: cupy.fft.fft(cupy.ones(4096)))  # CuPy keeps its plan for the stream's thread
    async with asyncio.timeout(20):
        while device.memory.pool.reserved():  # noqa: ASYNC110  # a thread gives it back
            await asyncio.sleep(0.01)
    report.tell("free", cupy.cuda.runtime.memGetInfo()[0], "bytes")


async def round_trips(report: Report) -> None:
    """An array that is put comes back, whatever its size and layout. Its source may be changed at once, also a pinned
    one."""
    cupy = requirements.cupy()
    cube, pinned = np.arange(24.0).reshape(2, 3, 4), np.frombuffer(cupy.cuda.alloc_pinned_memory(8 * MIB), np.float32)
    flat = [np.arange(size) for size in (0, 1, 63, 65, report.size(4 << 20, 1000) + 1)]
    async with asc.Scheduler("cuda") as s:
        for array in (*flat, cube.T, cube[::-1, :, ::2], cube.swapaxes(0, 1), np.broadcast_to(cube[:1], (5, 3, 4))):
            agree(await (await s.put(array)).numpy(), array)
        for source in (np.zeros(2 * MIB, np.float32), pinned):
            tensors = []
            for i in range(8):
                source.fill(i)
                tensors.append(await s.put(source))
            agree(await asc.gather(*[t.item() for x in tensors for t in (x.min(), x.max())]), np.arange(8).repeat(2))


async def pytorch(report: Report) -> None:
    """A PyTorch module is a task; PyTorch's tensors enter and leave."""
    try:
        torch: Any = import_module("torch")
    except ImportError:
        raise NotHere("PyTorch is not installed") from None
    if not torch.cuda.is_available():
        raise NotHere(f"PyTorch {torch.__version__} finds no CUDA device")
    report.tell("PyTorch", f"{torch.__version__}, for CUDA {torch.version.cuda}")
    layer, inputs = torch.nn.Linear(64, 8).cuda(), torch.arange(640.0, device="cuda").reshape(10, 64) / 640
    expected = layer(inputs).detach().cpu().numpy()
    async with asc.Scheduler("cuda") as s:
        x = await s.put(inputs)
        for tensor in [await s.submit(layer, x, shape=(10, 8), dtype="float32") for _ in range(50)]:
            agree(await tensor.numpy(), expected, 1e-5)
        agree(torch.from_dlpack(await (x + 1)).cpu().numpy(), inputs.cpu().numpy() + 1)


async def fault(report: Report, *, at_once: bool = False) -> None:
    """A bad access raises where it is awaited, with the cure. Nothing waits for ever, and the process ends."""
    cupy = requirements.cupy()
    if not hasattr(cupy, "RawKernel"):
        raise NotHere("this CuPy takes no kernels of one's own")
    errors, far = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError), cupy.RawKernel(_FAR, "far")
    far.compile()

    def bad(array: Any) -> Any:
        far((1,), (1,), (array,))
        if at_once:
            cupy.cuda.get_current_stream().synchronize()
        return array

    try:
        async with asc.Scheduler("cuda") as s:
            x = await s.put(np.ones(1000, np.float32))
            y = await s.submit(bad, x, shape=(1000,), dtype="float32")
            for awaited in ((y + 1).numpy(), s.put(np.ones(3)), (x + 1).numpy()):
                error = await raised(errors, awaited)
                assert sum("unusable" in note for note in error.__notes__) == 1, error.__notes__
            report.tell("told", str(error))
    except BaseExceptionGroup as group:  # of tasks that nobody awaited
        assert group.split(errors)[1] is None, group  # noqa: PT017


async def work_left(report: Report) -> None:
    """A process may end with work on the card."""
    s = await asc.Scheduler("cuda", max_ops=None).__aenter__()
    x = await s.put(np.ones((512, 512), np.float32))
    for _ in range(50):
        x = x @ x * 0.001


def fork(report: Report) -> None:
    """The child of a fork gets an error: CUDA does not survive a fork."""
    if not hasattr(os, "fork"):
        raise NotHere("this system has no fork")

    async def use() -> None:
        async with asc.Scheduler("cuda") as s:
            await (await s.put(np.ones(3)) + 1)

    asc.run(use)
    report.tell("begun", "before the fork")
    child = os.fork()
    if not child:
        try:
            asc.run(use)
        except RuntimeError as error:
            report.tell("told", str(error))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert "it was forked" in (report.folder / "facts").read_text("utf-8"), "the child was told something else"


_OTHERS: Final = (
    captured, half_sums, reuse, dropped, wrong_index, fault, cancelled, memory_back, round_trips, pytorch,
    work_left, fork,
)  # fmt: skip
PROBES: Final[Mapping[str, Program]] = {
    **{name: partial(_same, *row) for name, row in SAME.items()},
    **{probe.__name__: probe for probe in _OTHERS},
    "fault_at_once": partial(fault, at_once=True),
}
