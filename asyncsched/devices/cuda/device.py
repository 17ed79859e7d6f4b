"""CUDA through CuPy: compute streams, a stream for copies in, one for copies out, and a private memory pool."""

from __future__ import annotations

import atexit
import sys
import weakref
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from ..._arguments import check_number
from ..._core.completions import Completions
from ..._interrupts import Lock
from ..._tree import find
from ...ops.program import Program
from ..contract import Device, Job
from . import threads
from .context import CUDAContext, unusable
from .fused import FusedProgram
from .graph import CUDAGraph
from .janitor import Janitor, loan_of, thread_name
from .memory import CUDAMemory, pending_on
from .requirements import refused
from .requirements import usable as usable
from .stream import CUDAStream

# Without `max_bytes`, this share of the memory that is free at the start, less cuBLAS's workspace. The rest is for
# untracked memory: kernels, and gaps between blocks.
SHARE_OF_FREE = 0.8
# Seconds. On the host of an H200 it takes 5e-5 to wake a thread; and the ends of a burst are told late.
_HOP = 5e-4
_NO_ROOM = 2  # cudaErrorMemoryAllocation
SWITCH_SECONDS = 5e-4  # see `_switch_after`
_HALF = 5e-7  # a microsecond: CPython cuts off fractions of one
_switching = Lock()
_wanted: dict[object, float] = {}  # switch intervals by owner
_before = _ours = 0.0  # the interval that somebody else set, and the one set here
_open: Final[weakref.WeakSet[CUDADevice]] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    for device in list(_open):
        for stream in list(device._running):
            stream.leave()
    threads.leave()


class CUDADevice(Device):
    """One CUDA device.

    Its name is enough for most uses; made by hand, it takes the options below::

        async with asyncsched.Scheduler("cuda") as s:                   # the first device, 2 streams
            ...
        device = asyncsched.devices.cuda.CUDADevice(1, streams=4, spin=1e-4)
        async with asyncsched.Scheduler(device, max_bytes="4 GiB") as s:
            x = await s.put(array)                                      # host -> device, on a stream of its own
            y = await (x @ x + 1)                                       # a cupy.ndarray

    Nothing of CUDA is touched before the scheduler opens. After a fault (an illegal address, a lost card) all
    unfinished tasks fail with CUDA's error, and so do all later ones: CUDA allows no more in this process.

    Args:
        number: the device's number, as CUDA counts them.
        streams: how many compute streams.
        spin: seconds for which a thread asks again and again whether a task is done, before it sleeps until it is. It
            makes waits shorter, and a processor busier.
        switch_interval: most seconds for which threads wait for the interpreter while a scheduler on this device is
            open. Python's own 5 ms would delay operations while the event loop computes in Python. It is a setting of
            the process (`sys.setswitchinterval`), and is set back at the end. None leaves it as it is.

    Raises:
        TypeError, ValueError: for a `switch_interval` that is no positive number.
    """

    kind = "cuda"
    hop: float = _HOP
    owns_captures = True

    def __init__(
        self,
        number: int = 0,
        streams: int = 2,
        *,
        spin: float = 0.0,
        switch_interval: float | None = SWITCH_SECONDS,
    ) -> None:
        check_number("switch_interval", switch_interval, "seconds", none="Python's own")
        self._switch_interval = switch_interval
        self.name: str = f"cuda:{number}"
        self.number = number
        self.dlpack: tuple[int, int] = (2, number)
        self.streams: list[CUDAStream] = []
        self.inline = False  # on the instance, where CPython finds it in one step: each operation reads it
        if streams == 1:  # there is no choice, and nothing to estimate
            self.hop = 0.0
        self._make_stream = partial(CUDAStream, spin=spin)
        self._count = streams
        self._running: set[CUDAStream] = set()  # streams whose threads have not ended
        self._ending = Lock()
        self._graphs: weakref.WeakSet[CUDAGraph] = weakref.WeakSet()

    # -- opening and closing ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Load CuPy, make the context and the streams.

        Raises:
            RuntimeError: if there is no such device, or something is missing: the driver, CuPy, parts of the toolkit.
        """
        context = CUDAContext(self.name, self.number)
        self.context: CUDAContext = context
        self.xp: Any = context.cupy
        with context.current():
            self.streams = [self._make_stream(context, f"{self.name} stream {i}") for i in range(self._count)]
            self.copier: CUDAStream = self._make_stream(context, f"{self.name} copies in")
            self._copies_out = self._make_stream(context, f"{self.name} copies out")

    def default_bytes(self) -> int | None:
        """The limit if the user gives none: a share of the memory that was free when the device was prepared.

        Each stream's thread has a handle of cuBLAS's, which takes a workspace beside every pool.
        """
        tracked = self.context.free_at_start - self._count * self.context.cublas_workspace()
        if tracked <= 0:
            raise unusable(self.name, [refused(self.context.runtime.CUDARuntimeError(_NO_ROOM))])
        return max(1, int(tracked * SHARE_OF_FREE))

    def open(self, completions: Completions, max_bytes: int | None) -> None:
        streams = (*self.streams, self.copier, self._copies_out)
        threads.prepare([thread_name(self.context), *[name for stream in streams for name in stream.threads]])
        self.context.open(max_bytes)
        self._janitor = Janitor(self.context, completions)
        self._janitor.open()
        self.memory: CUDAMemory = CUDAMemory(self.context, self._janitor, completions)
        self._running = set(streams)
        _open.add(self)
        self.context.pool.own = frozenset([stream.cuda.ptr for stream in self._running])
        for stream in streams:
            stream.open(self.memory, self._ended)
        _switch_after(self, self._switch_interval)

    def close(self) -> None:
        _switch_after(self, None)
        streams, self.streams = self.streams, []
        for stream in (*streams, self.copier, self._copies_out) if streams else ():
            stream.close()

    def _ended(self, stream: CUDAStream) -> None:
        """A stream's last thread is about to end. The last of all lets go of the memory, since that may block."""
        with self._ending:
            self._running.discard(stream)
            if self._running:
                return
        if self.context.fault is not None:
            self.context.fault = None  # its error holds, by its traceback, frames of the last one to get it
            self.memory.pool.abandon()
        else:
            for graph in list(self._graphs):
                graph.let_go()
            self.memory.pool.close(self._janitor.wake)
        self._janitor.close()

    # -- the contract -------------------------------------------------------------------------------------------

    def offload(self, job: Job) -> None:
        self._copies_out.offload(job)

    def fetch(self, array: Any) -> np.ndarray[Any, Any]:
        """A host copy. Blocks the calling thread, which is never the loop's."""
        stream = self._copies_out.cuda
        with self.context.here(), stream:
            try:
                found: np.ndarray[Any, Any] = self.memory.with_room(self.memory.fetch, array, stream)
                return found
            except self.context.runtime.CUDARuntimeError as error:
                self.context.explain(error)
                raise

    def capture(self, program: Program, inputs: int) -> tuple[Callable[..., list[Any]], int, int]:
        fused = FusedProgram(self.xp, program)
        peak = fused.peak(self.memory.footprint)
        owned = peak + sum([self.memory.footprint(form.nbytes) for form in program.forms[:inputs]])
        workspace, dispose = self.context.cublas_workspace(), self._janitor.take
        graph = CUDAGraph(fused, inputs, owned, workspace, self.memory.make_room, dispose)
        self._graphs.add(graph)
        return graph.run, peak, 0 if program.given or not fused.after_graph(inputs) else owned

    def adopt(self, source: Any) -> Any:
        """An array of this device over another library's, by DLPack; copies in wait for that library's stream."""
        kind, number = source.__dlpack_device__()
        if number != self.number:
            raise ValueError(
                f"the array is on cuda:{number}: `put` it there with device=, or move it to {self.name} first"
            )
        # Its export is ordered before the copies. To make their stream current would not do: CuPy's arrays are ordered
        # behind the work of the current stream, which is the user's.
        ordered = SimpleNamespace(
            __dlpack__=lambda **_: source.__dlpack__(stream=self.copier.cuda.ptr),
            __dlpack_device__=lambda: (kind, number),
        )
        with self.context.here():
            return self.xp.from_dlpack(ordered)

    def note_arguments(self, context: Context, args: Sequence[Any]) -> None:
        own, cuda = self.xp.ndarray, self.xp.cuda
        for array in find((own,), args):
            if array.device.id == self.number and loan_of(array) is None:
                found = {**context.get(pending_on, {}), self.number: cuda.get_current_stream(self.number)}
                context.run(pending_on.set, found)
                return


def _switch_after(owner: object, seconds: float | None) -> None:
    """Have threads wait for the GIL no longer than this before they ask for it. None takes that back.

    It is a setting of the process. The shortest interval of all owners counts, and the last one sets back the interval
    from before.

    CPython's own is 5 ms (`sys.setswitchinterval`). A stream's issuing thread gives the GIL away with each launch.
    So beside an event loop that stays in Python it issues one operation in such a time or more, and the card runs
    dry. Measured on CuPy in host memory, on two busy processors: beside such a loop an operation is issued every
    600 us at 5 ms, every 180 us at 1 ms, every 130 us at 0.5 ms, and no more often below. A chain of operations
    takes the same time at all these settings, and a loop beside two busy streams is equally late.
    """
    global _before, _ours
    with _switching:
        if seconds is not None:
            _wanted[owner] = seconds
        elif _wanted.pop(owner, None) is None:
            return
        now = sys.getswitchinterval()
        if now != _ours:
            _before = now  # if somebody else has set it meanwhile, that is set back
        sys.setswitchinterval(min([_before, *_wanted.values()]) + _HALF)
        _ours = sys.getswitchinterval()
