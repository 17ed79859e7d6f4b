"""CuPy's errors, with CUDA's numbers and names."""

from __future__ import annotations

SUCCESS = 0
INVALID_VALUE = 1
MEMORY_ALLOCATION = 2
INITIALIZATION = 3
NO_DEVICE = 100
INVALID_DEVICE = 101
INVALID_HANDLE = 400
NOT_READY = 600
ILLEGAL_ADDRESS = 700
PEER_ALREADY_ENABLED = 704
CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
CAPTURE_IMPLICIT = 906

_TEXT = {
    1: ("cudaErrorInvalidValue", "invalid argument"),
    2: ("cudaErrorMemoryAllocation", "out of memory"),
    3: ("cudaErrorInitializationError", "initialization error"),
    46: ("cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"),
    100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    400: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    600: ("cudaErrorNotReady", "device not ready"),
    700: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    704: ("cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"),
    900: ("cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    901: ("cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"),
    906: ("cudaErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing one"),
}


class CUDARuntimeError(RuntimeError):
    """`status` is CUDA's number."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__("{}: {}".format(*_TEXT.get(status, ("cudaErrorUnknown", "unknown error"))))

    def __reduce__(self):
        return type(self), (self.status,)


class OutOfMemoryError(MemoryError):
    """What a pool raises."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        self._size, self._total, self._limit = size, total, limit
        text = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(text + (f", limit set to: {limit:,} bytes)." if limit else ")."))

    def __reduce__(self):
        return type(self), (self._size, self._total, self._limit)


class PerformanceWarning(RuntimeWarning):
    """Of `cupy._util`."""
