"""Puts a fake into `sys.modules` as `cupy` and `cupyx`, and takes it out again."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any

import numpy as np

from . import devices, errors, given_back, graphs, linalg, memory, methods, nvtx, pinned, plans, runtime, streams
from .arrays import Capsule, asarray_host, ndarray
from .fake import Fake, _installed, current
from .functions import dispatch, function, ufunc
from .generator import Generator, Philox4x3210
from .kernels import ElementwiseKernel

_DTYPES = (
    "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 intp uintp"
    " dtype pi e inf nan newaxis iinfo finfo number integer floating inexact complexfloating signedinteger"
    " unsignedinteger generic bool"
)

_PATIENCE = 20.0  # seconds


def install(seed: int = 0, devices: int = 1, **options: Any) -> Fake:
    """A new fake, as `cupy`. `uninstall` takes it away."""
    fake = Fake(seed, devices, **options)
    _installed.append(fake)
    given_back.poison()
    sys.modules.update(_modules())
    return fake


def uninstall(fake: Fake) -> None:
    """Stop its threads, and forget its modules if it is the last.

    Threads of the library under test that are about to end are waited for: they may be on their last call.

    Raises:
        RuntimeError: if one does not end.
    """
    stuck = at_rest(fake)
    fake.stop()
    _wait_for(lambda thread: thread in [gpu.thread for gpu in fake.gpus])
    _installed.remove(fake)
    if not _installed:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("cupy", "cupyx", "cupy_backends")]:
            del sys.modules[name]
    if stuck:
        raise RuntimeError(f"threads still use {fake}: {stuck}: close what they belong to first")


def at_rest(fake: Fake) -> list[str]:
    """Wait until the threads of the library under test have ended their work. Gives those that did not."""
    gc.collect()  # arrays in a cycle, for which a thread waits
    return _wait_for(lambda thread: thread.name.startswith("asyncsched") and thread not in fake.earlier)


def _wait_for(wanted: Callable[[threading.Thread], bool]) -> list[str]:
    """Wait until these threads have ended, with no lock, so also where an event loop runs. Gives those that did not."""
    deadline = time.monotonic() + _PATIENCE
    while names := [thread.name for thread in threading.enumerate() if wanted(thread)]:
        if time.monotonic() > deadline:
            return names
        os.sched_yield()
    return []


@contextlib.contextmanager
def fake_cupy(seed: int = 0, devices: int = 1, **options: Any) -> Iterator[Fake]:
    """A fake for a block."""
    fake = install(seed, devices, **options)
    try:
        yield fake
    finally:
        uninstall(fake)


# The namespace `cupy`.


def array(
    obj: Any,
    dtype: Any = None,
    copy: bool | None = True,
    order: Any = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> Any:
    if isinstance(obj, ndarray):
        options = {"dtype": dtype, "copy": copy or None, "order": order, "ndmin": ndmin}
        return dispatch("array", np.array, (obj,), options)
    result = asarray_host(np.array(obj, dtype, order=order, ndmin=ndmin))
    if blocking:
        streams.get_current_stream().synchronize()
    return result


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: bool | None = None, blocking: bool = False) -> Any:
    return array(a, dtype, bool(copy), order or "K", blocking=blocking)


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    return array(a, dtype, False, "C", ndmin=1)


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return ndarray(shape, dtype, order=order)


def empty_like(
    prototype: ndarray, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> ndarray:
    like = np.empty_like(prototype.dummy(), dtype, order, shape=shape)
    return ndarray(like.shape, like.dtype, strides=like.strides)


def from_dlpack(array: Any, *, device: Any = None, copy: Any = None) -> Any:
    """Shares memory with an array of the fake, in stream order."""
    if array.__dlpack_device__()[0] != 2:
        raise TypeError(
            "CPU arrays cannot be directly imported to CuPy. Use `cupy.array(numpy.from_dlpack(input))` instead."
        )
    capsule = array.__dlpack__(stream=streams.get_current_stream().ptr or 1)
    assert isinstance(capsule, Capsule)
    return capsule.array.view()


def scatter_add(a: ndarray, slices: Any, value: Any) -> None:
    dispatch("scatter_add", np.add.at, (a, slices, value), {})


def is_available() -> bool:
    return bool(current().gpus)


def _of_each(scalar: Callable[[float], float]) -> Callable[..., Any]:
    def called(x: Any, out: Any = None) -> Any:
        out = np.empty_like(x) if out is None else out
        out[...] = np.vectorize(scalar, otypes=[float])(x)
        return out

    return called


def _erfinv(x: float) -> float:
    return NormalDist().inv_cdf((1 + x) / 2) / math.sqrt(2) if abs(x) < 1 else math.copysign(math.inf, x)


@functools.cache
def _modules() -> dict[str, types.ModuleType]:
    methods.add_methods()
    cupy, cuda = _Namespace("cupy", ""), types.ModuleType("cupy.cuda")
    for made in (array, asarray, ascontiguousarray, empty, empty_like, from_dlpack):
        setattr(cupy, made.__name__, made)
    cupy.ndarray, cupy.ufunc, cupy.ElementwiseKernel = ndarray, ufunc, ElementwiseKernel
    cupy.get_default_memory_pool = memory.get_default_memory_pool
    cupy.get_default_pinned_memory_pool = pinned.get_default_pinned_memory_pool
    cupy.__version__ = "14.0.0"
    for name in _DTYPES.split():
        setattr(cupy, name, getattr(np, name))
    cupy.lib = types.SimpleNamespace(stride_tricks=_Namespace("cupy.lib.stride_tricks", "lib.stride_tricks."))
    cupy.fft, cupy.random = _Namespace("cupy.fft", "fft."), _Namespace("cupy.random", "random.")
    cupy.fft.config, cupy.linalg = types.SimpleNamespace(get_plan_cache=plans.get_plan_cache), linalg.Namespace()
    cupy.random.Generator, cupy.random.Philox4x3210 = Generator, Philox4x3210
    for module in (streams, devices, graphs, memory, pinned):
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_"):
                setattr(cuda, name, value)
    cuda.is_available, cuda.runtime, cuda.memory, cuda.stream = is_available, runtime, memory, streams
    cuda.device, cuda.graph, cuda.pinned_memory, cuda.nvtx = devices, graphs, pinned, nvtx
    cuda.nvrtc = types.SimpleNamespace(getVersion=lambda: (12, 9))
    cuda.cublas = types.SimpleNamespace(getVersion=lambda handle: 120_900)
    cupy.cuda = cuda
    cupyx = types.ModuleType("cupyx")
    cupyx.scatter_add, cupyx.errstate = scatter_add, linalg.errstate
    special = types.ModuleType("cupyx.scipy.special")
    special.erf, special.erfinv = ufunc("erf", _of_each(math.erf)), ufunc("erfinv", _of_each(_erfinv))
    cupy._util = types.ModuleType("cupy._util")
    cupy._util.PerformanceWarning = errors.PerformanceWarning
    parts = {"runtime": runtime, "memory": memory, "stream": streams, "device": devices, "graph": graphs}
    parts |= {"pinned_memory": pinned, "nvtx": nvtx}
    names = {f"cupy.cuda.{name}": module for name, module in parts.items()}
    return names | {
        "cupy": cupy,
        "cupy.cuda": cuda,
        "cupy.fft": cupy.fft,
        "cupy.linalg": cupy.linalg,
        "cupy.random": cupy.random,
        "cupy._util": cupy._util,
        "cupyx": cupyx,
        "cupyx.scipy": types.ModuleType("cupyx.scipy"),
        "cupyx.scipy.special": special,
    }


class _Namespace(types.ModuleType):
    """A module whose functions are NumPy's, run on the fake."""

    def __init__(self, name: str, prefix: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = function(self._prefix + name)
        setattr(self, name, found)
        return found
