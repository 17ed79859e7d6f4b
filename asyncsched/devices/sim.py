"""A device without hardware, for tests: virtual time, seeded adversarial order, injected faults, poisoned frees.

Nothing runs when it is launched. In each iteration of the event loop the device picks, by its seed, a stream whose next
task is ready, and runs that task, or lets time pass. So any order that the contract allows can happen, and a seed
reproduces it.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from .._core.audit import failure_above
from .._core.completions import Completions
from .._core.failure import Failure
from .._core.model import Task
from .contract import Counter, Job, Point
from .execution import release
from .host.memory import HostDevice, HostMemory, execute

__all__ = ["SimDevice", "SimFault"]


class SimFault(RuntimeError):
    """An injected fault."""


class SimStream:
    """A FIFO. The device decides when its first task runs."""

    def __init__(self, name: str, tick: Callable[[], None]) -> None:
        self.name = name
        self._tick = tick
        self.queue: deque[tuple[Task, Sequence[Point]]] = deque()
        self.launched: int = 0
        self.finished: Counter = Counter()  # other devices' threads wait for it; a simulated stream never waits

    def launch(self, task: Task, waits: Sequence[Point]) -> int:
        self.launched += 1
        self.queue.append((task, waits))
        self._tick()
        return self.launched

    def ready(self) -> bool:
        return bool(self.queue) and all(stream.finished.count >= number for stream, number in self.queue[0][1])


class SimDevice(HostDevice):
    """A simulated device.

    Args:
        seed: makes the order.
        streams: how many compute streams.
        laziness: the chance, each step, that time passes and nothing runs.
        fault_rate: the chance that a task fails with `SimFault` instead of running.
        most_steps: the steps taken per iteration of the loop, at most.
    """

    kind = "sim"

    def __init__(
        self,
        seed: int = 0,
        streams: int = 2,
        *,
        name: str = "sim",
        laziness: float = 0.3,
        fault_rate: float = 0.0,
        most_steps: int = 4,
    ) -> None:
        self.name = name
        self.now: int = 0  # virtual time, in steps
        self.faults: int = 0
        self._random = random.Random(seed)
        self._laziness = laziness
        self._fault_rate = fault_rate
        self._most_steps = most_steps
        self.streams: list[SimStream] = [SimStream(f"{name} stream {i}", self._tick) for i in range(streams)]
        self.copier: SimStream = SimStream(f"{name} copies", self._tick)
        self._ticking = False
        # Kernels run under NumPy's quiet error state, which is a context variable, and must not leak it into the
        # caller.
        self._context = contextvars.copy_context()
        self._context.run(np.seterr, all="ignore")

    def open(self, completions: Completions, max_bytes: int | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.memory: HostMemory = HostMemory(completions, max_bytes, poison=True)

    def offload(self, job: Job) -> None:
        job.run()
        self._tell(job, True)

    def _tick(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._ticking = False
        for _ in range(self._random.randint(1, self._most_steps)):
            self.now += 1
            if self._random.random() >= self._laziness:
                self._step()
        if any(stream.queue for stream in (*self.streams, self.copier)):
            self._tick()

    def _step(self) -> None:
        ready = [stream for stream in (*self.streams, self.copier) if stream.ready()]
        if not ready:
            return
        stream = self._random.choice(ready)
        task, _ = stream.queue.popleft()
        # No faults in a step's commit: there a fault is a lost device, for which nothing is promised.
        faulty = self._fault_rate and not task.cancelled and task.move is None
        if faulty and self._random.random() < self._fault_rate:
            self.faults += 1
            above = failure_above(task.inputs)
            fault = Failure.of(SimFault(f"injected into {task.name}"), task.name, task.site)
            task.failure = fault if above is None else above.passed_to(task.name, task.site)
        if task.failure is None:
            self._context.run(execute, task, self.memory)
        else:
            task.refund = task.cost
            release(task)
        stream.finished.step()
        self._tell(task, not stream.queue)

    def _tell(self, job: Task | Job, dry: bool) -> None:
        if self.memory.completions.completed(job, dry):
            self.memory.completions.notify()
