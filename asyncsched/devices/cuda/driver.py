"""NVIDIA's driver without CuPy. A call by `ctypes` releases the GIL, which CuPy keeps in its first, long calls."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from functools import cache
from typing import Any, Final

_NAME: Final = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


def initialize() -> bool:
    """Initialise CUDA in this process, if that is possible. It takes tenths of a second, in which other threads go
    on."""
    return _call("cuInit", 0) == 0


def version() -> int:
    """The newest CUDA that the driver knows, as 1000 * major + 10 * minor; 0 without a driver."""
    found = ctypes.c_int(0)
    _call("cuDriverGetVersion", ctypes.byref(found))
    return found.value


def make_context(number: int) -> None:
    """Make a device's primary context, the one that CuPy uses, for as long as the process lives.

    An error here is ignored: it comes again in CuPy, which raises it.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if initialize() and _call("cuDeviceGet", ctypes.byref(device), number) == 0:
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)


def mind_no_captures() -> None:
    """Let the calling thread make calls that another thread's capture would forbid."""
    _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(_RELAXED)))


def _call(name: str, *args: Any) -> int | None:
    """The status of a call; None without a driver, or if the driver does not have this function."""
    with suppress(OSError, AttributeError):
        return int(getattr(_library(), name)(*args))
    return None


@cache
def _library() -> ctypes.CDLL:
    """Opened once, since each opening leaves a cycle for the collector. If it fails, it is tried again."""
    return ctypes.CDLL(_NAME)
