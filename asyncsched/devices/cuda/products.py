"""Products of matrices in graphs.

CuPy (14.2) refuses each call of cuBLAS while its current stream captures. cuBLAS itself permits it. The graph then
keeps the address of cuBLAS's workspace, so the graph gives it one, which lasts as long.

While such a step is recorded, CuPy finds other functions in the place of those of its module of cuBLAS, on the
recording thread alone. They call cuBLAS by `ctypes`, with a handle of ours. Which function is called, with which types
and layouts, is CuPy's choice. So a replay has the bits of the operation alone, unless `CUBLAS_WORKSPACE_CONFIG` gives
CuPy's handles other workspaces than cuBLAS's own. Whatever else CuPy calls is refused as before, and the step's
operations are then issued one by one.

A device has one such handle, which is never destroyed: that waits for the device, and spoils each capture there.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from threading import get_ident
from typing import Any, Final

from ..._blocks import contextmanager

_LIBRARY: Final = "cublas64_{}.dll" if sys.platform == "win32" else "libcublas.so.{}"
_KINDS: Final = {"p": ctypes.c_void_p, "i": ctypes.c_int, "q": ctypes.c_longlong}
_BATCHED: Final = "piiiiippipippii"
# CuPy's functions: cuBLAS's names of them, and the arguments: pointers, integers, long ones.
_FUNCTIONS: Final = {
    "gemmEx": ("cublasGemmEx", "piiiiippiipiippiiii"),
    "gemmStridedBatchedEx": ("cublasGemmStridedBatchedEx", "piiiiippiiqpiiqppiiqiii"),
    **{f"{kind}gemmBatched": (f"cublas{kind.upper()}gemmBatched", _BATCHED) for kind in "sdcz"},
}
_COMPUTES_BY_DTYPE: Final = ("gemmStridedBatchedEx", -2)  # CuPy names a dtype there, as cuBLAS had it before version 11
_IN_SINGLE, _IN_DOUBLE = 68, 70  # cublasComputeType_t
_COMPUTES: Final = {0: _IN_SINGLE, 4: _IN_SINGLE, 1: _IN_DOUBLE, 5: _IN_DOUBLE}  # by cudaDataType


class Handle:
    """A handle of cuBLAS. Made where the thread may wait, with its device current.

    Args:
        number: of CUDA, the major one.

    Raises:
        OSError: if there is no cuBLAS.
        RuntimeError: if cuBLAS refuses.
    """

    def __init__(self, number: int) -> None:
        self._handle = ctypes.c_void_p()
        self._library = ctypes.CDLL(_LIBRARY.format(number))
        self._call("cublasCreate_v2", ctypes.byref(self._handle))

    def _call(self, name: str, *args: Any) -> None:
        if status := getattr(self._library, name)(*args):
            raise RuntimeError(f"{name} failed with status {status}")

    def function(self, name: str) -> Callable[..., None]:
        """In the place of one of CuPy's, whose first argument is CuPy's handle."""
        symbol, kinds = _FUNCTIONS[name]
        whose, place = _COMPUTES_BY_DTYPE

        def function(_: int, *args: Any) -> None:
            given = list(args)
            if name == whose:
                given[place] = _COMPUTES.get(given[place], given[place])
            typed = [_KINDS[kind](arg) for kind, arg in zip(kinds[1:], given, strict=True)]
            self._call(symbol, self._handle, *typed)

        return function

    @contextmanager
    def in_place(self, stream: Any, workspace: Any) -> Iterator[None]:
        """Within, products of the calling thread go by this handle, to a stream. One thread at a time may be within.

        Args:
            stream, workspace: CuPy's, and its memory. Graphs that are recorded within use it.
        """
        pointer, nbytes = ctypes.c_void_p(workspace.ptr), ctypes.c_size_t(workspace.mem.size)
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream.ptr))  # takes back the one of before
        self._call("cublasSetWorkspace_v2", self._handle, pointer, nbytes)
        libraries: Any = import_module("cupy_backends.cuda.libs")
        before = libraries.cublas
        libraries.cublas = _InPlace(before, self)
        try:
            yield
        finally:
            libraries.cublas = before
            self._call("cublasSetStream_v2", self._handle, None)  # the stream and the workspace may end now


@cache
def handle_of(cupy: Any, device: int) -> Handle:
    """A device's handle. Raises as `Handle`."""
    return Handle(cupy.cuda.runtime.runtimeGetVersion() // 1000)


class _InPlace:
    """CuPy's module of cuBLAS, some of whose functions are others on one thread."""

    def __init__(self, module: Any, handle: Handle) -> None:
        self._module, self._thread = module, get_ident()
        self._functions = {name: handle.function(name) for name in _FUNCTIONS}

    def __getattr__(self, name: str) -> Any:
        found = self._functions.get(name) if get_ident() == self._thread else None
        return getattr(self._module, name) if found is None else found
