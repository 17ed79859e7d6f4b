"""A program as a CUDA graph: recorded once, and then replayed by one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ...errors import CaptureError
from ...ops.kernels import checks
from ..untracked import behind, untracked
from .context import capturing, of_capture
from .fused import FusedProgram


class _Recorded:
    """A graph's memory on the device. When it dies, a thread that may wait frees all of it, since that may block."""

    def __init__(self, xp: Any, dispose: Callable[[list[Any]], None]) -> None:
        self._dispose = dispose
        self.graph: Any = None
        self.pool = xp.cuda.MemoryPool()  # also of intermediates, which nobody holds: the graph writes to them
        self.own: list[Any] = []
        self.results: list[Any] = []
        self.checks: list[checks.Check] = []

    def __del__(self) -> None:
        dispose, held = self._dispose, [self.graph, self.own, self.results, self.checks, self.pool]
        self.__dict__.clear()  # now only the list holds it: else the last reference could go here, and block
        dispose(held)


class CUDAGraph:
    """Runs a program on CuPy's arrays as a graph, which the first run records.

    CuPy (14.2) refuses to call cuBLAS while it captures. So a program with a matrix product never becomes a graph: its
    operations are issued one by one, in one task all the same. So are those of a program that writes over its inputs,
    or calls a library that keeps memory for later calls (`Op.resource`): a plan of cuFFT's may be gone at a replay.
    Operations that go element by element become one kernel for each run of them, see `fused`.

    The graph's kernels contain the addresses of buffers. So the graph owns those buffers: copies of the inputs, the
    intermediates and the results are in a pool of its own, whose blocks nobody else ever gets. So are the numbers that
    say whether an operation failed: each replay writes them anew, and they are read after it.

    A graph is always called on one stream. The collector does not see its memory on the device (see `untracked`), so a
    finaliser may still call it.

    Args:
        program: what to run.
        inputs: how many of its arrays change from run to run; the others are constants.
        make_room: has the device's pool give back as much idle memory as the graph lacks. May block.
        dispose: empties a list on a thread that may wait. It refers to nothing of the user's.
    """

    def __init__(
        self, program: FusedProgram, inputs: int, make_room: Callable[[], None], dispose: Callable[[list[Any]], None]
    ) -> None:
        self._make_room = make_room
        self._dispose = dispose
        self._program = program
        self._inputs = inputs
        self._recorded: Any = None  # holds a `_Recorded`
        self._refused = program.unrecordable  # or refused by CuPy

    def let_go(self) -> None:
        """Give up everything on the device."""
        self._recorded = None

    def run(self, xp: Any, arrays: Sequence[Any]) -> list[Any]:
        """Results of the program for these inputs and constants, as arrays of their own."""
        if self._recorded is None and not self._refused:
            self._record(xp, arrays)
        if self._refused:
            return self._program.run(xp, arrays)
        recorded = behind(self._recorded)
        for own, array in zip(recorded.own, arrays, strict=False):
            _copied(xp, array, own)
        recorded.graph.launch(stream=xp.cuda.get_current_stream())
        for numbers, judge in recorded.checks:
            checks.require(xp, numbers, judge)
        return [_copied(xp, result) for result in recorded.results]

    def _record(self, xp: Any, arrays: Sequence[Any]) -> None:
        self._make_room()
        recorded = _Recorded(xp, self._dispose)
        with xp.cuda.using_allocator(recorded.pool.malloc):
            recorded.own = [array.copy(order="K") for array in arrays[: self._inputs]]
            operands = [*recorded.own, *arrays[self._inputs :]]
            # Once for real: this compiles the kernels and fills the pool, and a capture can do neither.
            with checks.deferred():
                self._program.run(xp, operands)
            with capturing:
                self._capture(xp, operands, recorded)
        if not self._refused:
            self._recorded = untracked(recorded)

    def _capture(self, xp: Any, operands: Sequence[Any], recorded: _Recorded) -> None:
        stream = xp.cuda.get_current_stream()
        stream.begin_capture()
        try:
            with checks.deferred() as recorded.checks:
                recorded.results = self._program.run(xp, operands)
        except NotImplementedError:
            self._refused = True
        except Exception as error:
            with suppress(xp.cuda.runtime.CUDARuntimeError):  # it says that the capture is invalid, as is known
                stream.end_capture()
            if not of_capture(error):
                raise  # the device itself failed
            where = "; ".join(getattr(error, "__notes__", []))
            raise CaptureError(f"CUDA cannot capture this step: {error} ({where})") from error
        recorded.graph = stream.end_capture()


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
