"""NVIDIA's driver without CuPy. A call by `ctypes` lets go of the GIL, which CuPy keeps in what takes long at first."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from functools import cache
from typing import Any, Final

_NAME: Final = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


def initialize() -> bool:
    """Begin with CUDA in this process, if that can be done. Other threads go on for those tenths of a second."""
    return _call("cuInit", 0) == 0


def version() -> int:
    """The newest CUDA that it knows, as 1000 * major + 10 * minor; 0 without a driver."""
    found = ctypes.c_int(0)
    _call("cuDriverGetVersion", ctypes.byref(found))
    return found.value


def make_context(number: int) -> None:
    """Make a device's primary context, the one that CuPy uses, for as long as the process lives.

    What goes wrong here goes wrong in CuPy again, which says so.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if initialize() and _call("cuDeviceGet", ctypes.byref(device), number) == 0:
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)


def mind_no_captures() -> None:
    """Let the calling thread do what another stream's capture would forbid it."""
    _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(_RELAXED)))


def _call(name: str, *args: Any) -> int | None:
    """The status of a call; None where there is no driver, or none that has this function."""
    with suppress(OSError, AttributeError):
        return int(getattr(_library(), name)(*args))
    return None


@cache
def _library() -> ctypes.CDLL:
    """Opened once: each opening is a cycle for the collector. Where it fails it is tried again."""
    return ctypes.CDLL(_NAME)
