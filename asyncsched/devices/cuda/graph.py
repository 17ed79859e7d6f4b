"""A program as a CUDA graph: recorded once, and then replayed by one launch.

Products of matrices. CuPy (14.2) refuses each call of cuBLAS while its current stream captures. cuBLAS itself permits
it. The graph then keeps the address of cuBLAS's workspace, so the graph gives it one, which lasts as long.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import zip_longest
from threading import get_ident
from typing import Any, Final

from ..._blocks import contextmanager
from ...errors import CaptureError
from ...ops.kernels import checks
from .context import of_capture
from .driver import capturing
from .fused import FusedProgram
from .pool import behind, untracked

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


class _Recorded:
    """A graph's memory on the device. When it dies, a thread that may wait frees all of it, since that may block.

    Not before its stream is past what uses it: a first run whose recording failed may still be under way.
    """

    def __init__(self, xp: Any, dispose: Callable[[list[Any], dict[int, Any]], None]) -> None:
        self._dispose, self._stream = dispose, xp.cuda.get_current_stream()
        self.graph: Any = None
        self.workspace: Any = None  # of cuBLAS
        self.pool = xp.cuda.MemoryPool()  # also of intermediates, which nobody holds: the graph writes to them
        self.own: list[Any] = []  # copies of the inputs; None for those that it does not read
        self.results: list[Any] = []  # None for those that are made after the graph
        self.values: list[Any] = []  # by their slots, behind the inputs: what is read after the graph
        self.checks: list[checks.Check] = []

    def __del__(self) -> None:
        parts = vars(self)
        dispose, stream = parts.pop("_dispose"), parts.pop("_stream")
        held = list(parts.values())
        parts.clear()  # now only the list holds it: else the last reference could go here, and block
        dispose(held, {stream.ptr: stream})


class CUDAGraph:
    """Runs a program on CuPy's arrays as a graph, which the first run records.

    Operations that go element by element become one kernel for each run of them, see `fused`. Products of matrices use
    a workspace that the graph has for itself. A program never becomes a graph if it writes
    over its inputs, or calls a library that keeps memory for later calls (`Op.resource`: a plan of cuFFT's may be gone
    at a replay), or one that CuPy lets into no graph. Its operations are issued one by one, in one task all the same.

    The graph's kernels contain the addresses of buffers. So the graph owns those buffers: copies of the inputs, the
    intermediates and the results are in a pool of its own, whose blocks nobody else ever gets. So are the numbers that
    say whether an operation failed: each replay writes them anew, and they are read after it. What a replay copies, in
    and out, may be more than it saves. So the last kernels of the program may be launched after the graph, to write to
    new arrays; and a program of few kernels is no graph.

    A graph is always called on one stream. The collector does not see its memory on the device (see `untracked`), so a
    finaliser may still call it.

    Args:
        program: what to run.
        inputs: how many of its arrays change from run to run; the others are constants.
        nbytes: that it takes for itself, but for cuBLAS's workspace.
        workspace: bytes of that, if it has products.
        make_room: has the device's pool give back as much idle memory as so many bytes lack. May block.
        dispose: empties a list on a thread that may wait, once streams, by their pointers, have done their work. It
            refers to nothing of the user's.
    """

    def __init__(
        self, program: FusedProgram, inputs: int, nbytes: int, workspace: int, make_room: Callable[[int], None],
        dispose: Callable[[list[Any], dict[int, Any]], None],
    ) -> None:  # fmt: skip
        self._nbytes, self._workspace = nbytes, workspace
        self._make_room = make_room
        self._dispose = dispose
        self._program = program
        self._inputs = inputs
        self._recorded: Any = None  # holds a `_Recorded`
        self._after = program.after_graph(inputs)
        self._refused = program.unrecordable or not self._after  # or refused by CuPy

    def let_go(self) -> None:
        """Give up everything on the device."""
        self._recorded = None

    def run(self, xp: Any, arrays: Sequence[Any], outs: Sequence[Any] | None = None) -> list[Any]:
        """Results of the program for these inputs and constants: in `outs` if given, else as arrays of their own."""
        if self._recorded is None and not self._refused:
            self._record(xp, arrays)
        if self._refused:
            found = self._program.results(self._program.through(xp, self._program.slots(arrays), outs=outs or ()))
            return found if outs is None else _put(xp, found, outs)
        recorded = behind(self._recorded)
        for own, array in zip(recorded.own, arrays, strict=False):
            if own is not None:
                _copied(xp, array, own)
        recorded.graph.launch(stream=xp.cuda.get_current_stream())
        for numbers, judge in recorded.checks:
            checks.require(xp, numbers, judge)
        slots = self._program.through(xp, [*arrays, *recorded.values], self._after, outs=outs or ())
        made = self._program.results(slots)
        if outs is None:
            outs = [one if result is None else None for result, one in zip(recorded.results, made, strict=True)]
        return _put(xp, [a if b is None else b for a, b in zip(made, recorded.results, strict=True)], outs)

    def _record(self, xp: Any, arrays: Sequence[Any]) -> None:
        self._make_room(self._nbytes)
        recorded = _Recorded(xp, self._dispose)
        with xp.cuda.using_allocator(recorded.pool.malloc):
            read, given = self._program.reads(self._after), arrays[: self._inputs]
            recorded.own = [a.copy(order="K") if slot in read else None for slot, a in enumerate(given)]
            operands = [own if own is not None else a for own, a in zip_longest(recorded.own, arrays)]
            # Once for real: this compiles the kernels and fills the pool, and a capture can do neither.
            with checks.deferred():
                self._program.run(xp, operands)
            with capturing:
                refused = not self._captured(xp, operands, recorded)
            if refused and (handle := self._handle(xp)) is not None:
                recorded.workspace = xp.cuda.alloc(self._workspace)
                with capturing, handle.in_place(xp.cuda.get_current_stream(), recorded.workspace):
                    with checks.deferred():  # what cuBLAS takes at first is not to become part of this graph
                        self._program.run(xp, operands)
                    refused = not self._captured(xp, operands, recorded)
            self._refused = refused
        if not self._refused:
            self._recorded = untracked(recorded)

    def _handle(self, xp: Any) -> Handle | None:
        self._make_room(self._workspace)
        with suppress(OSError, RuntimeError, MemoryError):  # no cuBLAS, or it refuses
            return handle_of(xp, xp.cuda.runtime.getDevice())
        return None

    def _captured(self, xp: Any, operands: Sequence[Any], recorded: _Recorded) -> bool:
        """Whether CuPy lets the operations into a graph."""
        stream = xp.cuda.get_current_stream()
        stream.begin_capture()
        try:
            with checks.deferred() as recorded.checks:
                slots = self._program.through(xp, self._program.slots(operands), 0, self._after)
            recorded.results, recorded.values = self._program.results(slots), slots[len(operands) :]
        except NotImplementedError:
            stream.end_capture()
            return False
        except Exception as error:
            with suppress(xp.cuda.runtime.CUDARuntimeError):  # it says that the capture is invalid, as is known
                stream.end_capture()
            if not of_capture(error):
                raise  # the device itself failed
            where = "; ".join(getattr(error, "__notes__", []))
            raise CaptureError(f"CUDA cannot capture this step: {error} ({where})") from error
        recorded.graph = stream.end_capture()
        return True


def _put(xp: Any, found: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    """Arrays, each copied to another one, or where that is None to a new one, unless it is that."""
    return [one if one is out else _copied(xp, one, out) for one, out in zip(found, outs, strict=True)]


def _copied(xp: Any, source: Any, target: Any = None) -> Any:
    """A copy of an array, in another of its shape and dtype if that is given.

    An array in one piece is copied as bytes: CuPy's own functions launch a kernel for that, and take ten times as long.
    """
    if not (source.flags.c_contiguous and (target is None or target.flags.c_contiguous)):
        if target is None:
            return source.copy(order="K")
        xp.copyto(target, source)
        return target
    if target is None:
        target = xp.empty(source.shape, source.dtype)
    runtime, stream = xp.cuda.runtime, xp.cuda.get_current_stream()
    if source.nbytes:  # else there is no pointer
        pointers = target.data.ptr, source.data.ptr
        runtime.memcpyAsync(*pointers, source.nbytes, runtime.memcpyDeviceToDevice, stream.ptr)
    return target


# -- products of matrices ---------------------------------------------------------------------------------------------


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
