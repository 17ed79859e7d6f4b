"""What this machine offers: devices, libraries and their versions, and how to install what is missing."""

from __future__ import annotations

import ctypes
import importlib
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from .cuda import device as cuda
from .host.blas import available

Line = tuple[str, str]


def describe() -> str:
    """Devices with their memory, versions, and a command for each thing missing: aligned text, several lines."""
    sections = {"devices": [*_cpu(), *_gpus()], "software": list(_software()), "to install": list(_missing())}
    width = max(len(name) for lines in sections.values() for name, _ in lines)
    text = [f"asyncsched {_version('asyncsched') or '(not installed)'}"]
    for heading, lines in sections.items():
        if lines:
            text += ["", heading, *(f"  {name:{width}}  {value}" for name, value in lines)]
    return "\n".join(text)


def _cpu() -> Iterator[Line]:
    memory = _host_memory()
    sizes = f", {_gib(memory['MemTotal'])} of memory, {_gib(memory['MemAvailable'])} free" if memory else ""
    yield "cpu", f"{available()} processors{sizes}"


def _host_memory() -> dict[str, int]:
    """Bytes, as Linux tells them; empty elsewhere."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":") for line in file)
    except OSError:
        return {}
    return {name: int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable")}


def _gpus() -> Iterator[Line]:
    if not cuda.usable():
        yield "cuda", f"none: {_why_no_gpu()}"
        return
    import cupy

    runtime = cupy.cuda.runtime
    for number in range(runtime.getDeviceCount()):
        found = runtime.getDeviceProperties(number)
        with cupy.cuda.Device(number):
            free, total = runtime.memGetInfo()
        name, capability = found["name"].decode(), f"{found['major']}.{found['minor']}"
        yield f"cuda:{number}", f"{name}, compute capability {capability}, {_gib(total)} of memory, {_gib(free)} free"


def _why_no_gpu() -> str:
    if not _driver():
        return "no NVIDIA driver found"
    return "CuPy finds no device" if _cupy() is not None else "CuPy is not installed"


def _software() -> Iterator[Line]:
    yield "Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    yield "event loop", f"uvloop {uvloop}" if (uvloop := _version("uvloop")) else "asyncio"
    yield "NumPy", np.__version__
    for blas in threadpool_info():
        if blas["user_api"] == "blas":
            yield "BLAS", f"{blas['internal_api']} {blas['version']}, {blas['num_threads']} threads"
    cupy = _cupy()
    if cupy is not None:
        yield "CuPy", f"{cupy.__version__}, for CUDA {_dotted(cupy.cuda.runtime.runtimeGetVersion())}"
    if driver := _driver():
        yield "NVIDIA driver", f"for CUDA up to {_dotted(driver)}"
    if torch := _version("torch"):
        yield "PyTorch", torch


def _missing() -> Iterator[Line]:
    cupy = _cupy()
    if cupy is None:
        extra = "cuda13" if _driver() >= 13_000 else "cuda12"
        no_use = "" if _driver() else " (of use with an NVIDIA GPU and its driver only)"
        yield "CuPy", f'pip install "asyncsched[{extra}]"{no_use}'
    elif _driver() and not _has_libraries(cupy.cuda):
        wheel = f"cupy-cuda{cupy.cuda.runtime.runtimeGetVersion() // 1000}x"
        yield "CUDA libraries", f'pip install "{wheel}[ctk]" (CuPy finds no NVRTC or no cuBLAS)'
    if not _version("uvloop") and sys.platform != "win32":
        yield "uvloop", 'pip install "asyncsched[uvloop]"'
    if not _version("torch"):
        yield "PyTorch", "pip install torch (tasks may run its modules; nothing here needs it)"


def _has_libraries(cuda: Any) -> bool:
    """Whether CuPy finds the compiler and the matrix products that its wheel does not contain."""
    try:
        cuda.nvrtc.getVersion()
        return bool(cuda.cublas)  # looked for when it is named
    except Exception:  # each loader has an error of its own
        return False


def _cupy() -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError:
        return None


def _driver() -> int:
    """The newest CUDA that the NVIDIA driver knows, as 1000 * major + 10 * minor; 0 without a driver."""
    if cuda.usable():
        return int(_cupy().cuda.runtime.driverGetVersion())
    found = ctypes.c_int(0)
    with suppress(OSError):
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1").cuDriverGetVersion(ctypes.byref(found))
    return found.value


def _version(package: str) -> str | None:
    """The installed version of a package, which is not imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _dotted(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"
