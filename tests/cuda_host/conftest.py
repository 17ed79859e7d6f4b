"""Tests of what is imitated: that what goes wrong on a card goes wrong here. Skipped where it is not loaded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from .runtime import Runtime, loaded

SPIN = """
extern "C" __global__ void spin(unsigned long long flag) {
    volatile int* set = (volatile int*) flag;
    for (long long start = clock64(); !*set && clock64() - start < 20000000000LL; ) { }
}
"""


@pytest.fixture(scope="session")
def everything() -> Runtime:
    runtime = loaded()
    if runtime is None:
        pytest.skip("needs CuPy in host memory: python -m tests.cuda_host DIRECTORY run")
    return runtime


@pytest.fixture(autouse=True)
def runtime(everything: Runtime) -> Iterator[Runtime]:
    """Nothing counted, and every device well."""
    everything.reset()
    yield everything
    gc.collect()
    for device in range(2):
        everything.fail(device, 0)


@pytest.fixture
def cuda(runtime: Runtime) -> Any:
    """CUDA's runtime, as CuPy has it."""
    import cupy

    return cupy.cuda.runtime


class Gate:
    """Kernels that end when it is opened."""

    _flags: ClassVar[list[Any]] = []  # kept, since a kernel may still look at one: see `tests.gpu.conftest`

    def __init__(self) -> None:
        import cupy

        self._spin = cupy.RawKernel(SPIN, "spin")
        self._flag = np.frombuffer(cupy.cuda.alloc_pinned_memory(8), np.int32, 2)
        self._flag[:] = 0
        self._flags.append(self._flag)

    def shut(self, stream: Any) -> None:
        """What comes on the stream from now on waits."""
        with stream:
            self._spin((1,), (1,), (np.uint64(self._flag.ctypes.data),))

    def open(self) -> None:
        self._flag[:] = 1


@pytest.fixture
def gate(runtime: Runtime) -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def streams(cuda: Any) -> Any:
    """Makes streams that do not know of the null stream."""
    import cupy

    return lambda: cupy.cuda.Stream(non_blocking=True)
