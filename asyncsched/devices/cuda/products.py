"""Products of matrices in graphs.

CuPy (14.2) refuses each call of cuBLAS while its current stream captures. cuBLAS itself permits it. The graph then
keeps the address of cuBLAS's workspace, so a handle that lasts as long as the graph is given one that does.

While such a step is recorded, CuPy finds other functions in the place of those of its module of cuBLAS, on the
recording thread alone. They call cuBLAS by `ctypes`, with that handle. Which function is called, with which types and
layouts, is CuPy's choice. So a replay has the bits of the operation alone. Whatever else CuPy calls is refused as
before, and the step's operations are then issued one by one.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from threading import get_ident
from typing import Any, Final

from ..._blocks import contextmanager
from ..._interrupts import finaliser

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
    """A handle of cuBLAS for the current stream, with a workspace. Made where the thread may wait.

    Args:
        cupy: the namespace.
        nbytes: of the workspace, which CuPy's current allocator gives.

    Raises:
        OSError: if there is no cuBLAS.
        RuntimeError: if cuBLAS refuses.
    """

    def __init__(self, cupy: Any, nbytes: int) -> None:
        self._handle = ctypes.c_void_p()
        self._library = ctypes.CDLL(_LIBRARY.format(cupy.cuda.runtime.runtimeGetVersion() // 1000))
        self._workspace = cupy.cuda.alloc(nbytes)
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(cupy.cuda.get_current_stream().ptr))
        workspace = ctypes.c_void_p(self._workspace.ptr)  # after the stream, which takes back the one of before
        self._call("cublasSetWorkspace_v2", self._handle, workspace, ctypes.c_size_t(nbytes))

    @finaliser(lambda *_: None)  # a second call would destroy what is gone
    def __del__(self) -> None:  # waits for the device
        if self._handle:
            self._library.cublasDestroy_v2(self._handle)

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
    def in_place(self) -> Iterator[None]:
        """Within, products of the calling thread go by this handle. One thread at a time may be within."""
        libraries: Any = import_module("cupy_backends.cuda.libs")
        before = libraries.cublas
        libraries.cublas = _InPlace(before, self)
        try:
            yield
        finally:
            libraries.cublas = before


class _InPlace:
    """CuPy's module of cuBLAS, some of whose functions are others on one thread."""

    def __init__(self, module: Any, handle: Handle) -> None:
        self._module, self._thread = module, get_ident()
        self._functions = {name: handle.function(name) for name in _FUNCTIONS}

    def __getattr__(self, name: str) -> Any:
        found = self._functions.get(name) if get_ident() == self._thread else None
        return getattr(self._module, name) if found is None else found
