"""NVIDIA's driver without CuPy. A call by `ctypes` releases the GIL, which CuPy keeps in its first, long calls, and
where it waits for a lock of the driver's."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Final

from ..._interrupts import Lock

_NAME: Final = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
# Held while a stream of a scheduler captures; while a thread records an event on another thread's stream, since that
# event would become part of the graph, and so would each stream that waits for it; and while a thread waits for the
# whole device, as a plan of cuFFT's may at its end, since that spoils all captures there, relaxed ones, too.
capturing: Final[AbstractContextManager[bool]] = Lock()
_STATUS: Final = {0: True, 600: False}  # of an event: CUDA_SUCCESS, CUDA_ERROR_NOT_READY


def initialize() -> bool:
    """Initialise CUDA in this process, if that is possible. It takes tenths of a second, in which other threads go
    on."""
    return _call("cuInit", 0) == 0


def version() -> int:
    """The newest CUDA that the driver knows, as 1000 * major + 10 * minor; 0 without a driver."""
    found = ctypes.c_int(0)
    _call("cuDriverGetVersion", ctypes.byref(found))
    return found.value


def make_context(number: int) -> ctypes.c_void_p:
    """Make a device's primary context, the one that CuPy uses, for as long as the process lives.

    An error here is ignored, and the context is null: the error comes again in CuPy, which raises it.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if initialize() and _call("cuDeviceGet", ctypes.byref(device), number) == 0:
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context


def push(context: ctypes.c_void_p) -> bool:
    """Make a context the calling thread's current one, until `pop`. Returns whether it did.

    CUDA's own way, `cudaSetDevice`, cannot be taken back: the device of before is 0 on a thread that has set none, and
    to set that makes a context there.
    """
    return bool(context) and _call("cuCtxPushCurrent_v2", context, library=ctypes.PyDLL) == 0


def pop() -> None:
    """Make the context of before `push` current again, or none."""
    _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()), library=ctypes.PyDLL)


def passed(event: int) -> bool | None:
    """Whether the device has passed an event; None if it is lost, or there is no driver."""
    status = _call("cuEventQuery", ctypes.c_void_p(event))
    return None if status is None else _STATUS.get(status)


def free_bytes(context: ctypes.c_void_p) -> int | None:
    """Bytes that are free on a context's device; None if it is lost, or there is no driver.

    The context is pushed, since none is current on a thread that has not called the CUDA runtime yet.
    """
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if not push(context):
        return None
    status = _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    pop()
    return free.value if status == 0 else None


def mind_no_captures() -> None:
    """Let the calling thread make calls that another thread's capture would forbid."""
    _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(_RELAXED)))


def _call(name: str, *args: Any, library: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> int | None:
    """The status of a call; None without a driver, or if the driver does not have this function.

    Args:
        library: `PyDLL` keeps the GIL, for what never waits: to get the GIL back may take longer.
    """
    try:
        return int(getattr(_library(library), name)(*args))
    except (OSError, AttributeError):
        return None


@cache
def _library(kind: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    """Opened once, since each opening leaves a cycle for the collector. If it fails, it is tried again."""
    return kind(_NAME)
