"""The state of one installed fake: its GPUs, what went wrong, and what a test asks of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from .blocks import HOST, POISON, Block, Space
from .clocks import Clock, before, merge
from .errors import INVALID_HANDLE, NO_DEVICE, CUDARuntimeError
from .machine import GPU, LOST, Queue, Recording, Work

_HERE = str(Path(__file__).parent)


@dataclass(eq=False, repr=False)
class Fake:
    """A fake CuPy with its GPUs.

    Args:
        seed: makes each GPU's order of steps.
        devices: how many GPUs.
        memory: bytes on each GPU.
        laziness: the chance, each step, that a GPU lets the host go first.
        longest_pause: for how many seconds at most it does.
        fault_rate: the chance, each step, that a GPU fails for ever.
        apart: whether no GPU can reach another's memory.
        jit: whether the first call of each function on each set of dtypes compiles, which blocks.

    Attributes:
        races: readable lines, one for each pair of accesses without an order.
        loop_blocks: calls that may block, made on a thread whose event loop runs.
        default_stream_launches: launches on the legacy default stream.
        blocking_streams: where streams that wait for the legacy default stream were made.
        kernel_errors: what kernels raised; a GPU has no way to say it.
        duplicate_compiles: functions that two threads compiled at the same time.
        compiled: each function with its dtypes, compiled so far.
        ranges: the names of NVTX ranges that have not ended.
        blocking: calls that may block, by the last word of their thread's name.
        statistics: counts of launches, compiles, allocations and so on.
        earlier: the threads that were at work before, and so do not use this one.
    """

    seed: int = 0
    devices: int = 1
    _: KW_ONLY
    memory: int = 1 << 30
    laziness: float = 0.2
    longest_pause: float = 0.0005
    fault_rate: float = 0.0
    apart: bool = False
    jit: bool = True

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.launched = threading.Condition(self.lock)  # GPUs wait for it
        self.completed = threading.Condition(self.lock)  # the host waits for it
        self._stopped = self.paused = self.hurried = False
        self.held: set[int] = set()  # streams, by pointer, that take no step
        self.earlier = frozenset(t for t in threading.enumerate() if t.name.startswith("asyncsched"))
        self.races: list[str] = []
        self.loop_blocks: list[str] = []
        self.default_stream_launches: list[str] = []
        self.blocking_streams: list[str] = []
        self.ranges: dict[int, str] = {}
        self.kernel_errors: list[str] = []
        self.process = os.getpid()
        self.busy = 0  # threads that compile
        self.duplicate_compiles: list[str] = []
        self.compiling: set[tuple[object, ...]] = set()
        self.compiled: set[tuple[object, ...]] = set()
        self.statistics: Counter[str] = Counter()
        self.blocking: Counter[tuple[str, str]] = Counter()
        self.seen: Clock = {}  # what the host has seen complete
        self.space = Space()
        self.local = threading.local()
        self.free_pointers: list[int] = []
        self.events: dict[int, Recording | None] = {}
        self.event_gpus: dict[int, GPU] = {}
        self.timed: set[int] = set()  # events that note when the device passes them
        self.shared: dict[tuple[int, str], Block] = {}
        self.default_pool: Any = None
        self.default_pinned_pool: Any = None
        self._numbers = 0
        self.gpus = [GPU(self, number, self.seed * 1000 + number) for number in range(self.devices)]

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # What tests ask.

    def live_bytes(self) -> int:
        """Bytes on the devices that neither a pool nor the driver has back."""
        with self.lock:
            return sum(block.size for block in self.space.blocks() if block.used and block.device != HOST)

    def pinned_bytes(self) -> int:
        """The same of pinned memory."""
        with self.lock:
            return sum(block.size for block in self.space.blocks() if block.used and block.device == HOST)

    def fault_at(self, step: int, device: int = 0) -> None:
        """Fail a GPU at its `step`-th step from now."""
        with self.lock:
            self.gpus[device].fault_at = self.gpus[device].steps + step

    def fail(self, device: int = 0) -> None:
        """Fail a GPU now."""
        with self.lock:
            self.gpus[device].fail()

    def settle(self) -> None:
        """Run everything that is queued."""
        with self.lock:
            self.hurried = True
            self.launched.notify_all()
            while not all(gpu.idle() for gpu in self.gpus):
                self.completed.wait(LOST)
            self.hurried = False

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Within, the GPUs take no step."""
        self.paused = True
        try:
            yield
        finally:
            with self.lock:
                self.paused = False
                self.launched.notify_all()

    @contextlib.contextmanager
    def hold(self, stream: Any) -> Iterator[None]:
        """Within, one stream takes no step, while others do."""
        self.held.add(stream.ptr)
        try:
            yield
        finally:
            with self.lock:
                self.held.discard(stream.ptr)
                self.launched.notify_all()

    def problems(self) -> list[str]:
        """All that went wrong, in lines that name the seed."""
        found = {
            "race": self.races,
            "blocked the loop": self.loop_blocks,
            "on the legacy default stream": self.default_stream_launches,
            "blocking stream": self.blocking_streams,
            "kernel": self.kernel_errors,
        }
        return [f"{kind}: {line} ({self})" for kind, lines in found.items() for line in lines]

    @property
    def stopped(self) -> bool:
        """Whether it is over, as where the interpreter ends: a thread that is gone may have the lock for ever."""
        return self._stopped or sys.is_finalizing()

    def stop(self) -> None:
        """End the GPUs' threads; whoever waits for them gets an error."""
        with self.lock:
            self._stopped = True
            self.launched.notify_all()
            self.completed.notify_all()

    def __repr__(self) -> str:
        return f"fake CuPy, seed {self.seed}"

    # What the parts of the fake ask.

    def race(self, line: str) -> None:
        self.races.append(line)

    def blocks(self, what: str) -> None:
        """A call that may block its thread."""
        self.blocking[threading.current_thread().name.split()[-1], what] += 1
        if asyncio._get_running_loop() is not None:
            self.loop_blocks.append(f"{what} at {caller()}")

    def queries(self, what: str) -> None:
        """A call that keeps the GIL: while a thread compiles, with the driver's lock, it stops the whole process."""
        if self.busy:
            self.blocks(f"{what} while the driver was busy")

    def wait_until(self, done: Callable[[], bool], gpu: GPU) -> None:
        """Block until `done()`. The lock is held.

        Raises:
            CUDARuntimeError: once the GPU has failed.
        """
        while not gpu.fault and not done():
            if self.stopped:
                raise RuntimeError("the fake was uninstalled while a thread waited for it")
            self.completed.wait(LOST)
        gpu_works(gpu)

    def device(self) -> int:
        return getattr(self.local, "device", 0)

    def gpu(self) -> GPU:
        if not self.gpus:
            raise CUDARuntimeError(NO_DEVICE)
        return self.gpus[self.device()]

    def queue(self, pointer: int) -> Queue:
        """The stream of a pointer, on whichever GPU has it; the default stream is the current GPU's."""
        pointer = 0 if pointer in (1, 2) else pointer
        if pointer == 0:
            return self.gpu().null
        for gpu in self.gpus:
            if pointer in gpu.by_pointer:
                return gpu.by_pointer[pointer]
        raise CUDARuntimeError(INVALID_HANDLE)

    def poison(self, block: Block, start: int, nbytes: int, pointer: int) -> None:
        """A piece of a block goes back to the library's own pool: the stream at `pointer` may write to it now."""
        with self.lock:
            queue = self.gpus[block.device].by_pointer.get(pointer)
            if queue is not None and queue.capture is None and not queue.gpu.fault:
                place = block.slice(start, nbytes)
                work = Work("poison", lambda: place.fill(POISON), [(block, start, start + nbytes, True)])
                queue.gpu.launch(queue, work)

    def free(self, block: Block, pointer: int | None) -> None:
        """A block goes back to a pool: from now on the stream at `pointer`, or the host, may write to it."""
        with self.lock:
            gpu = self.gpus[block.device] if block.device != HOST else None
            queue = gpu.by_pointer.get(pointer) if gpu is not None and pointer is not None else None
            clock = dict(queue.clock) if queue is not None else {}
            merge(clock, self.seen)
            number = queue.number if queue is not None else 0
            faulty = any(gpu.fault for gpu in self.gpus)
            for access in block.accesses:
                if access.stream != number and not before(access, clock) and not faulty:
                    self.race(f"{access} may still use a block that was freed at {caller()}")
            block.used = False
            seen = all(before(access, self.seen) for access in block.accesses)
            if queue is None or not queue.work or seen:
                block.poison()
            elif queue.capture is None:
                queue.work.append(Work("poison", block.poison))


def gpu_works(gpu: GPU) -> None:
    if gpu.fault:
        raise CUDARuntimeError(gpu.fault)


def caller() -> str:
    """The line outside the fake that is being run."""
    frame = sys._getframe(1)
    while (
        frame.f_back is not None
        and frame.f_code.co_filename.startswith(_HERE)
        and "test_" not in frame.f_code.co_filename
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


_installed: list[Fake] = []


def current() -> Fake:
    """The fake that is installed."""
    if not _installed:
        raise RuntimeError("no fake CuPy is installed: call tests.fake_cupy.install()")
    return _installed[-1]
