"""A program as a CUDA graph: recorded once, replayed with one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ...errors import CaptureError
from ...ops.kernels import checks
from .context import capturing, of_capture
from .fused import FusedProgram


class CUDAGraph:
    """Runs a program on CuPy's arrays as a graph, which the first run records.

    CuPy (14.2) refuses to call cuBLAS while it captures, so a program with a matrix product never becomes one: it is
    issued operation by operation, in one task all the same.

    What goes element by element is one kernel for each run of rows, see `fused`.

    The graph's kernels have the addresses of buffers in them. So it owns them: copies of the inputs, the intermediates
    and the results lie in a pool of its own, from which nobody else is ever given a block. So do the numbers that say
    whether an operation failed: each replay leaves them there anew, to be judged. Always called on one stream.

    Args:
        program: what to run.
        inputs: how many of its arrays change from run to run; the others are constants.
        dispose: empties a list of what may block the thread on which it is freed, on another.
    """

    def __init__(self, program: FusedProgram, inputs: int, dispose: Callable[[list[Any]], None]) -> None:
        self._dispose = dispose
        self._program = program
        self._inputs = inputs
        self._graph: Any = None
        self._pool: Any = None  # also of the intermediates: nobody holds those, but the graph writes to them
        self._own: list[Any] = []
        self._results: list[Any] = []
        self._checks: list[checks.Check] = []
        self._refused = False  # by CuPy

    def __del__(self) -> None:
        self._dispose(self.let_go())

    def let_go(self) -> list[Any]:
        """Give up everything on the device. It goes with the list: on a thread that may wait, since freeing may."""
        held = [self._graph, self._own, self._results, self._checks, self._pool]
        self._graph = self._pool = None
        self._own, self._results, self._checks = [], [], []
        return held

    def run(self, xp: Any, arrays: Sequence[Any]) -> list[Any]:
        """Results of the program for these inputs and constants, as arrays of their own."""
        if self._graph is None and not self._refused:
            self._record(xp, arrays)
        if self._refused:
            return self._program.run(xp, arrays)
        for own, array in zip(self._own, arrays, strict=False):
            xp.copyto(own, array)
        self._graph.launch(stream=xp.cuda.get_current_stream())
        for numbers, judge in self._checks:
            checks.require(xp, numbers, judge)
        return [result.copy(order="K") for result in self._results]

    def _record(self, xp: Any, arrays: Sequence[Any]) -> None:
        self._pool = xp.cuda.MemoryPool()
        with xp.cuda.using_allocator(self._pool.malloc):
            self._own = [array.copy(order="K") for array in arrays[: self._inputs]]
            operands = [*self._own, *arrays[self._inputs :]]
            # Once for real: it compiles the kernels and fills the pool, and a capture can do neither.
            with checks.deferred():
                self._program.run(xp, operands)
            with capturing:
                self._capture(xp, operands)
        if self._refused:
            self.let_go()

    def _capture(self, xp: Any, operands: Sequence[Any]) -> None:
        stream = xp.cuda.get_current_stream()
        stream.begin_capture()
        try:
            with checks.deferred() as self._checks:
                self._results = self._program.run(xp, operands)
        except NotImplementedError:
            self._refused = True
        except Exception as error:
            with suppress(xp.cuda.runtime.CUDARuntimeError):  # the capture is invalid already
                stream.end_capture()
            if not of_capture(error):
                raise  # the device itself failed
            where = "; ".join(getattr(error, "__notes__", []))
            raise CaptureError(f"CUDA cannot capture this step: {error} ({where})") from error
        self._graph = stream.end_capture()
