"""Helpers of the GPU benchmarks: the card's name, a gate, and the facts about the card in results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from shutil import which
from time import perf_counter
from typing import Any

import numpy as np

from asyncsched.devices.cuda.device import CUDADevice, usable

from ..harness.rows import Result, Unavailable

FAKE = "fake"
WAYS: dict[str, dict[str, Any]] = {"spin 20 us": {"spin": 20e-6}}
"""Options of a device that are compared with its defaults."""
# Waits for the host, but not for ever: some seconds at any clock.
_SPIN = """
extern "C" __global__ void spin(unsigned long long flag) {
    volatile int* set = (volatile int*) flag;
    for (long long start = clock64(); !*set && clock64() - start < 20000000000LL; ) { }
}
"""


@contextmanager
def around(result: Result) -> Iterator[None]:
    """The context in which the harness measures. Results have the card's name, and are kept under it."""
    with card(result["quick"]) as name:
        import cupy

        runtime = cupy.cuda.runtime
        driver, version, memory = runtime.driverGetVersion(), runtime.runtimeGetVersion(), runtime.memGetInfo()[1]
        result |= {"gpu": name, "fake": name == FAKE, "driver": driver, "runtime": version, "cupy": cupy.__version__}
        result |= {"memory": memory, "file": f"gpu-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}"}
        meaning = " (A FAKE GPU: the numbers mean nothing)" if name == FAKE else ""
        result["notes"] += [
            f"{name}{meaning}, driver for CUDA {driver}, runtime {version}, CuPy {cupy.__version__}",
            not_checked(),
        ]
        yield


@contextmanager
def card(quick: bool) -> Iterator[str]:
    """The name of the GPU, while it is used; "fake" if there is none and this is a smoke run.

    Raises:
        Unavailable: if there is none, and numbers are wanted.
    """
    if usable():
        import cupy

        yield cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        return
    if not quick:
        raise Unavailable("no CUDA device that CuPy can use: `python -m asyncsched` says why; --quick runs on a fake")
    from tests.fake_cupy import fake_cupy

    with fake_cupy(memory=4 << 30, laziness=0.0, jit=False):
        yield FAKE


def fake() -> bool:
    """Whether there is no card: the fake compiles nothing."""
    import cupy

    return not hasattr(cupy, "RawKernel")


def device(streams: int = 2, **how: Any) -> CUDADevice:
    """A device that is not open yet, for one scheduler."""
    return CUDADevice(0, streams, **how)


def fitting(side: int, arrays: int) -> int:
    """The side of square arrays of float32, at most `side`, of which this number fits into half of the free memory."""
    import cupy

    free = cupy.cuda.runtime.memGetInfo()[0]
    while side * side * 4 * arrays * 2 > free:
        side //= 2
    return side


def now() -> float:
    """The host's time, with the device idle."""
    import cupy

    cupy.cuda.runtime.deviceSynchronize()
    return perf_counter()


class Gate:
    """A kernel that ends when the host says so. On the fake the whole device stands still meanwhile."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._paused = ExitStack()
        self._flag = np.frombuffer(cupy.cuda.alloc_pinned_memory(8), np.int32, 2)
        self._spin = None if fake() else cupy.RawKernel(_SPIN, "spin")
        self.open()
        with cupy.cuda.Stream(non_blocking=True) as stream:
            self.enqueue()  # compiles it
            stream.synchronize()

    def shut(self) -> None:
        """From now on the kernel waits."""
        self._flag[:] = 0
        if self._spin is None:
            from tests.fake_cupy.fake import current

            self._paused.enter_context(current().pause())

    def enqueue(self) -> None:
        """Launch the kernel on the current stream. A task may call it."""
        if self._spin is None:
            self._cupy.zeros(1)
        else:
            self._spin((1,), (1,), (np.uint64(self._flag.ctypes.data),))

    def open(self) -> None:
        """Let the kernel end."""
        self._flag[:] = 1
        self._paused.close()


def not_checked() -> str:
    """One line: the things that neither this nor the tests can check on this machine."""
    import cupy

    missing = ["copies between two devices"] * (cupy.cuda.runtime.getDeviceCount() < 2)
    if find_spec("torch") is None or not __import__("torch").cuda.is_available():
        missing.append("PyTorch's tensors")
    missing += ["compute-sanitizer"] * (which("compute-sanitizer") is None)
    return f"not checked: {', '.join([*missing, 'other cards, drivers and versions of CUDA and CuPy'])}"
