"""What the GPU benchmarks share: which card this is, a clock, a gate, and what results say of the card."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from shutil import which
from time import perf_counter
from typing import Any

import numpy as np

from asyncsched.devices.cuda.device import CUDADevice, usable

from ..harness.rows import Here, Result, Unavailable

FAKE = "fake"
WAYS: dict[str, dict[str, Any]] = {"spin 20 us": {"spin": 20e-6}, "inline_launch": {"inline_launch": True}}
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
    """What the harness does its measuring in. Results say which card it was, and are kept under its name."""
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
    """The name of the GPU, for as long as it is used; "fake" where there is none and the run is only for smoke.

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
    """The side of square arrays of float32, at most `side`, so many of which fit into half of what is free."""
    import cupy

    free = cupy.cuda.runtime.memGetInfo()[0]
    while side * side * 4 * arrays * 2 > free:
        side //= 2
    return side


class Clock:
    """Seconds on the host, each time around a synchronise of the device; and beside them, what CUDA's events say.

    An event tells when its stream came to it, so they are recorded on the streams that do the work.
    """

    def __init__(self) -> None:
        self._by_events = 0.0  # the last time

    def start(self, *streams: Any) -> None:
        """Begin, with the device idle. The streams are those that will work."""
        import cupy

        self._cuda = cupy.cuda
        self._cuda.runtime.deviceSynchronize()
        self._spans = [(stream, cupy.cuda.Event(), cupy.cuda.Event()) for stream in streams]
        self._began = perf_counter()
        for stream, begin, _ in self._spans:
            begin.record(stream)

    def stop(self) -> float:
        for stream, _, end in self._spans:
            end.record(stream)
        self._cuda.runtime.deviceSynchronize()
        seconds = perf_counter() - self._began
        if hasattr(self._cuda, "get_elapsed_time"):  # the fake's events have no time
            spans = [self._cuda.get_elapsed_time(begin, end) for _, begin, end in self._spans]
            self._by_events = max(spans)
        return seconds

    def note(self) -> str:
        """What the events said."""
        return f"the last round by events {self._by_events:.2f} ms" if self._by_events else ""


def streams_of(s: Any) -> list[Any]:
    """The CUDA streams of a scheduler's first device, those for copies too."""
    first = s.devices[0]
    return [stream.cuda for stream in (*first.streams, first.copier, first._copies_out)]


class Gate:
    """A kernel that ends when the host says so; on the fake the whole device stands still meanwhile."""

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


def here(run: Callable[[Clock], float], ops: int = 1) -> Here:
    """A contestant that is timed by a clock of its own."""
    clock = Clock()
    return Here(partial(run, clock), ops, clock.note)


def on_loop(main: Callable[[], Coroutine[Any, Any, float]]) -> float:
    """What a coroutine function returns, in an event loop of its own."""
    return asyncio.run(main())


def not_checked() -> str:
    """One line of what neither this nor the tests can check on this machine."""
    import cupy

    torch = find_spec("torch") is not None and __import__("torch").cuda.is_available()
    unchecked = {
        "copies between two devices": cupy.cuda.runtime.getDeviceCount() < 2,
        "PyTorch's tensors": not torch,
        "compute-sanitizer": which("compute-sanitizer") is None,
    }
    missing = [what for what, lacks in unchecked.items() if lacks]
    return f"not checked: {', '.join([*missing, 'other cards, drivers and versions of CUDA and CuPy'])}"
