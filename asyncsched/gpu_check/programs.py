"""Every program by its name, in the order in which they run.

Those here describe the machine, and measure how fast a card is driven, beside plain CuPy, and how long first calls
take.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

import asyncsched as asc
from asyncsched import nn

from ..devices.cuda import requirements
from . import libraries, probes
from .entries import CHECKOUT, ROOT, NotHere, Program, Report

_SETTINGS: Final = re.compile("(CUPY|CUDA|CUBLAS|NVIDIA|NVRTC|NCCL|PYTORCH|ASYNCSCHED|HOSTCUDA)_|LD_LIBRARY_PATH")
_PACKAGES: Final = re.compile("asyncsched|cupy|nvidia|cuda|numpy|torch|jax|numba|uvloop", re.IGNORECASE)
_PRIVATE: Final = {"uuid", "luid"}  # properties that identify a device: left out, since nobody needs them
_IDENTIFIES: Final = re.compile(r".*(UUID|Serial|GUID|Board ID|Hostname).*\n")
_TICK: Final = 0.002  # seconds
_STEPS: Final[Mapping[str, Callable[[Any], Any]]] = {"x + 1": lambda x: x + 1, "x @ x": lambda x: x @ x}
_NVML: Final = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


def machine(report: Report) -> None:
    """The device, driver and versions, and the settings of CUDA and CuPy."""
    report.tell("commit", _commit())
    report.tell("system", f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors")
    report.tell("settings", {name: value for name, value in os.environ.items() if _SETTINGS.match(name)})
    report.tell("all that it needs", _installs())
    report.tell("driver's release", _release())
    report.tell("core files", _core_files())
    report.tell("packages", {d.name: d.version for d in distributions() if _PACKAGES.match(d.name or "")})
    if lacks := requirements.missing():
        raise NotHere("; ".join(f"{lack.how}: {lack.cure}" for lack in lacks))
    import cupy

    runtime = cupy.cuda.runtime
    report.tell("CuPy", f"{cupy.__version__}, for CUDA {requirements.dotted(runtime.runtimeGetVersion())}")
    report.tell("driver", f"for CUDA up to {requirements.dotted(runtime.driverGetVersion())}")
    for number in range(runtime.getDeviceCount()):
        found = runtime.getDeviceProperties(number)
        named = f"{found['name'].decode()}, compute capability {found['major']}.{found['minor']}"
        report.tell(f"cuda:{number}", f"{named}, PCI {runtime.deviceGetPCIBusId(number)}")
        report.tell(f"properties of cuda:{number}", {k: v for k, v in found.items() if k not in _PRIVATE})
    with suppress(ImportError, AttributeError):  # not in every version
        report.tell("libraries", str(import_module("cupyx").get_runtime_info()).splitlines())


def state(report: Report) -> None:
    """The devices' clocks, temperatures, errors, and the processes that use them; and errors that the kernel noted."""
    run = partial(subprocess.run, capture_output=True, text=True, errors="replace", timeout=15, check=False)
    with suppress(OSError):
        print(*[line for line in run(["dmesg"]).stdout.splitlines(keepends=True) if "Xid" in line], sep="", end="")
    try:
        found = run(["nvidia-smi", "-q"])
    except OSError as error:
        raise NotHere(f"nvidia-smi: {error.strerror}") from None
    print(_IDENTIFIES.sub("", found.stdout + found.stderr))


def _installs() -> str:
    """The command that installs all that `gpu-check` needs."""
    extra = "cuda13" if requirements.driver() >= 13_000 else "cuda12"
    if CHECKOUT:
        return f'pip install -e ".[{extra},test]"'
    return f'pip install "asyncsched[{extra}]"; the groups test and bench need a checkout'


def _release() -> str:
    """The driver's version, by the library that `nvidia-smi` asks, too."""
    text = ctypes.create_string_buffer(96)
    with suppress(OSError, AttributeError):
        nvml = ctypes.CDLL(_NVML)
        if nvml.nvmlInit_v2() == nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0:
            return text.value.decode()
    return "not known"


def _core_files() -> str:
    """How large a core file may be, and where it would go."""
    try:
        resource = import_module("resource")
        pattern = Path("/proc/sys/kernel/core_pattern").read_text("utf-8").strip()
    except (ImportError, OSError):
        return "not known"
    return f"{' of '.join(map(str, resource.getrlimit(resource.RLIMIT_CORE)))} bytes (-1: any), {pattern}"


def _commit() -> str:
    """The revision of a checkout, and whether it was changed; or the origin that pip noted."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError, PackageNotFoundError):
        if not CHECKOUT:
            return distribution("asyncsched").read_text("direct_url.json") or "from the package index"
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return "not known"


# -- how fast a card is driven, beside plain CuPy; and how long first calls take ---------------------------------------


async def cold(report: Report) -> None:
    """First calls, without kernels kept from before; and how long the event loop stood still meanwhile."""
    os.environ["CUPY_CACHE_DIR"] = str(report.folder.parent / "kernels")
    report.tell("import of CuPy", await _spent(partial(asyncio.to_thread, requirements.cupy)), "s")
    cupy, worst = requirements.cupy(), [0.0]
    report.tell("context", await _spent(partial(asyncio.to_thread, cupy.cuda.runtime.memGetInfo)), "s")
    ticking, s = asyncio.create_task(_tick(worst)), asc.Scheduler("cuda")
    report.tell("opening", await _spent(s.__aenter__), "s")
    x = await s.put(_small())
    firsts: dict[str, Callable[[], Awaitable[Any]]] = {
        "kernel": lambda: x + 1, "reduction": x.sum, "product": lambda: x @ x, "second kernel": lambda: x * 2,
        "put of 16 MiB": lambda: s.put(np.ones(1 << 24, np.uint8)),
        "captured step": lambda: s.capture(lambda x: asc.tanh(x @ x) + 1, x),
    }  # fmt: skip
    for name, first in firsts.items():
        report.tell(name, await _spent(first), "s")
    ticking.cancel()
    report.tell("the loop stood still", worst[0], "s")
    await s.aclose()


async def _tick(worst: list[float]) -> None:
    while True:
        worst[0] = max(worst[0], await _spent(partial(asyncio.sleep, _TICK)) - _TICK)


async def launches(report: Report) -> None:
    """A small operation in a chain, from issue to end, beside plain CuPy on one stream."""
    count = report.size(5_000, 50)
    async with asc.Scheduler("cuda") as s:
        x = await s.put(_small())
        for name, step in _STEPS.items():
            chain = partial(_chain, step, count)
            report.tell(f"{name}, plain CuPy", await asyncio.to_thread(_plain, chain) / count * 1e6, "us")
            report.tell(name, await _spent(partial(chain, x), 2) / count * 1e6, "us")
        graph = await s.capture(partial(_chain, _STEPS["x + 1"], 50), x)
        seconds = await _spent(partial(_chain, graph, count // 50, x), 2)
        report.tell("x + 1, captured", seconds / count * 1e6, "us")


async def latency(report: Report) -> None:
    """From issuing one small operation to the end of its `await`: beside plain CuPy, which blocks the thread."""
    async with asc.Scheduler("cuda") as s:
        x = await s.put(_small())
        found = [await _spent(lambda: x + 1) for _ in range(report.size(2_000, 20))]
    for percent in (50, 99):
        report.tell(f"{percent}th percentile", float(np.percentile(found, percent)) * 1e6, "us")
    plain = [await asyncio.to_thread(_plain, _STEPS["x + 1"]) for _ in range(report.size(200, 5))]
    report.tell("plain CuPy, synchronised", float(np.median(plain)) * 1e6, "us")


async def copies(report: Report) -> None:
    """Copies in and out: beside raw ones from pinned memory, and beside one in the host's memory."""
    nbytes = report.size(256 << 20, 1 << 16)
    array, pinned = np.ones(nbytes, np.uint8), await asyncio.to_thread(_raw, report, nbytes)
    async with asc.Scheduler("cuda") as s:
        x = await s.put(array)
        ways: dict[str, Callable[[], Awaitable[Any]]] = {
            "put": partial(_put, s, array), "put of a pinned array": partial(_put, s, pinned), "numpy": x.numpy,
            "in the host's memory": lambda: asyncio.to_thread(array.copy),
        }  # fmt: skip
        for name, way in ways.items():
            report.tell(name, nbytes / 1e9 / await _spent(way, 2), "GB/s")


async def _put(s: asc.Scheduler, array: Any) -> None:
    await (await s.put(array))


def _raw(report: Report, nbytes: int) -> Any:
    """Note the time of CUDA's own copies, and return an array in pinned memory."""
    import cupy

    host, device = np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes), cupy.empty(nbytes, np.uint8)
    runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True)
    host[:] = 1
    ends = host.ctypes.data, device.data.ptr
    for name, target, source, kind in (("in", *ends[::-1], 1), ("out", *ends, 2)):  # cudaMemcpyKind
        copy = partial(runtime.memcpyAsync, target, source, nbytes, kind, stream.ptr)
        report.tell(f"raw, {name}", nbytes / 1e9 / _second(copy, stream), "GB/s")
    return host


async def convolution(report: Report) -> None:
    """A convolution, alone and with its gradient, beside one product of as many multiplications."""
    channels, side, count = report.size(32, 4), report.size(32, 8), report.size(20, 2)
    async with asc.Scheduler("cuda"):
        x, w = asc.ones((32, channels, side, side), dtype="f4"), asc.ones((channels, channels, 3, 3), dtype="f4")
        a, b = asc.ones((32 * side * side, 9 * channels), dtype="f4"), asc.ones((9 * channels, channels), dtype="f4")
        leaf = w.detach()
        leaf.requires_grad = True
        works: dict[str, Callable[[], asc.Tensor]] = {
            "product": lambda: a @ b,
            "convolution": lambda: nn.functional.conv2d(x, w, padding=1),
            "with its gradient": lambda: asc.autograd.grad(nn.functional.conv2d(x, leaf, padding=1).sum(), leaf)[0],
        }
        for name, work in works.items():
            seconds = await _spent(lambda work=work: asc.gather(*[work() for _ in range(count)]), 2)  # type: ignore[misc]
            report.tell(name, seconds / count * 1e6, "us")


def _small() -> Any:
    return np.full((64, 64), 1 / 64, np.float32)


def _chain(step: Callable[[Any], Any], count: int, x: Any) -> Any:
    for _ in range(count):
        x = step(x)
    return x


async def _spent(work: Callable[[], Awaitable[Any]], times: int = 1) -> float:
    """Seconds of the last round, from its issue on."""
    for _ in range(times):
        began = perf_counter()
        await work()
        seconds = perf_counter() - began
    return seconds


def _plain(work: Callable[[Any], Any]) -> float:
    """The same for plain CuPy on one stream."""
    import cupy

    with cupy.cuda.Stream(non_blocking=True) as stream:
        return _second(partial(work, cupy.asarray(_small())), stream)


def _second(work: Callable[[], Any], stream: Any) -> float:
    """Seconds of the second call, to its end on the stream."""
    for _ in range(2):
        stream.synchronize()
        began = perf_counter()
        kept = work()
        stream.synchronize()
        seconds = perf_counter() - began
        del kept
    return seconds


FIRST: Final[Mapping[str, Program]] = {"cold": cold, "warm": cold}  # with the kernels that the first call kept
RATES: Final[Mapping[str, Program]] = {
    "launches": launches, "latency": latency, "copies": copies, "convolution": convolution,
}  # fmt: skip
GROUPS: Final[Mapping[str, Mapping[str, Program]]] = {
    "machine": {"machine": machine, "before": state, **FIRST},
    "probe": {**probes.PROBES, **libraries.PROBES},
    "rate": RATES,
}
AFTER: Final[Mapping[str, Program]] = {"after": state}
