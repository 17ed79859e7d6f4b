"""The fake GPUs: streams as queues, and a thread for each GPU that runs what is in them, in an order as bad as allowed.

Races are found when work is launched, from the clocks alone, so no lucky timing hides them. The bytes are moved later,
by the GPU's thread, so what a race would do to them happens, too.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from .blocks import Block
from .clocks import Access, Clock, conflicts, merge, note

if TYPE_CHECKING:
    from .fake import Fake

# Seconds after which whoever waits looks again. What the collector finalizes in a thread that is about to wait may
# wait, too, and let the lock go meanwhile: what was notified then is lost to the first.
LOST = 0.1

Touch = tuple[Block, int, int, bool]  # a block, the first and the last address plus one, and whether it is written


@dataclass(eq=False)
class Recording:
    """One recording of an event: a point in a stream, and what was known there."""

    gpu: GPU
    clock: Clock
    capture: Capture | None = None
    done: bool = False
    at: float = field(default_factory=perf_counter)  # when the device passed it


class Capture:
    """Work of one stream, recorded instead of launched."""

    def __init__(self) -> None:
        self.work: list[Work] = []
        self.valid = True


@dataclass(eq=False, slots=True)
class Work:
    """A step of a stream: wait for a recording, or run something that touches memory, or pass a recording."""

    what: str
    run: Callable[[], None] | None = None
    touches: Sequence[Touch] = ()
    wait: Recording | None = None
    signal: Recording | None = None
    replayed: bool = False  # from a graph, which may use free blocks of a pool that gave them to nobody since


class Queue:
    """A stream as the driver knows it. Its pointer may be another's before and after; its number never is."""

    def __init__(self, gpu: GPU, number: int, pointer: int, blocking: bool) -> None:
        self.gpu = gpu
        self.number = number
        self.pointer = pointer
        self.blocking = blocking
        self.work: deque[Work] = deque()
        self.clock: Clock = {number: 0}
        self.capture: Capture | None = None

    def ready(self) -> bool:
        """Whether its next step, which there must be, can be taken."""
        wait = self.work[0].wait
        return wait is None or wait.done or bool(wait.gpu.fault)


class GPU:
    """One fake GPU."""

    def __init__(self, fake: Fake, number: int, seed: int) -> None:
        self.fake = fake
        self.number = number
        self.random = random.Random(seed)
        self.queues: list[Queue] = []
        self.by_pointer: dict[int, Queue] = {}
        self.fault = 0
        self.fault_at: int | None = None
        self.steps = 0
        self.peers: set[int] = set()
        self.null = self.add_queue(0, True)
        self.thread = threading.Thread(target=self._run, name=f"fake GPU {number}", daemon=True)
        self.thread.start()

    def add_queue(self, pointer: int, blocking: bool) -> Queue:
        queue = Queue(self, self.fake.next_number(), pointer, blocking)
        self.queues = [*(q for q in self.queues if q.work or q.pointer in self.by_pointer), queue]
        self.by_pointer[pointer] = queue
        return queue

    def launch(self, queue: Queue, work: Work) -> None:
        """Queue some work: check what it touches against all that came before. The lock is held."""
        if queue.capture is not None:
            queue.capture.work.append(work)
            return
        merge(queue.clock, self.fake.seen)
        if queue.blocking:
            self._serialise(queue)
        queue.clock[queue.number] += 1
        for block, low, high, writes in work.touches:
            access = Access(low, high, writes, queue.number, queue.clock[queue.number], work.what)
            if not block.used and not work.replayed:
                self.fake.race(f"{access} touches a block that was given back to its pool")
            self.check(block, access, queue.clock)
            note(block, access)
        queue.work.append(work)
        self.fake.launched.notify_all()

    def check(self, block: Block, access: Access, clock: Clock) -> None:
        """Record every race of an access."""
        for earlier in conflicts(block, access, clock):
            self.fake.race(f"{access} is not ordered after {earlier}")

    def record(self, queue: Queue, *, ordered: bool = False) -> Recording:
        """A point in a stream, after what blocking streams have if it is `ordered`. The lock is held."""
        if queue.capture is not None:
            return Recording(self, dict(queue.clock), queue.capture)
        if ordered and queue.blocking:
            self._serialise(queue)
        recording = Recording(self, dict(queue.clock))
        if queue.work:
            queue.work.append(Work("record", signal=recording))
        else:
            recording.done = True
        return recording

    def wait(self, queue: Queue, recording: Recording) -> None:
        """The stream waits for a recording. The lock is held."""
        if recording.capture is not None:
            return
        merge(queue.clock, recording.clock)
        queue.work.append(Work("wait", wait=recording))
        self.fake.launched.notify_all()

    def idle(self) -> bool:
        return bool(self.fault) or not any(queue.work for queue in self.queues)

    def _serialise(self, queue: Queue) -> None:
        """The legacy default stream and the streams made without `non_blocking=True` wait for each other."""
        others = [q for q in self.queues if q.blocking] if queue is self.null else [self.null]
        for other in others:
            if other is not queue and other.capture is None:
                self.wait(queue, self.record(other))

    def _run(self) -> None:
        np.seterr(all="ignore")
        fake = self.fake
        while True:
            with fake.lock:
                queue = self._next()
                if queue is None:
                    return
                work = queue.work[0]
            if work.run is not None:
                self._execute(work)
            with fake.lock:
                if queue.work:  # else the GPU was made to fail meanwhile
                    queue.work.popleft()
                if work.signal is not None and not self.fault:
                    work.signal.at = perf_counter()
                    work.signal.done = True
                    fake.launched.notify_all()  # another GPU may wait for it
                if work.signal is not None or not queue.work:
                    fake.completed.notify_all()
            work = queue = None  # type: ignore[assignment]  # nothing is kept alive from here

    def _next(self) -> Queue | None:
        """Wait for a stream that can take a step, and let the host run ahead now and then. None to stop."""
        fake = self.fake
        while not fake.stopped:
            ready = [] if fake.paused else [q for q in self.queues if q.work and q.ready()]
            if fake.held:
                ready = [q for q in ready if q.pointer not in fake.held]
            if not ready:
                fake.launched.wait(LOST)
            elif not fake.hurried and self.random.random() < fake.laziness:
                fake.launched.wait(fake.longest_pause)
            else:
                queue = self.random.choice(ready)
                self.steps += 1
                wait = queue.work[0].wait
                if self._faults() or (wait is not None and wait.gpu.fault):
                    self.fail()
                    continue
                return queue
        return None

    def _execute(self, work: Work) -> None:
        assert work.run is not None
        try:
            work.run()
        except BaseException as error:  # what a kernel cannot do is the test's business
            self.fake.kernel_errors.append(f"{work.what}: {error!r} ({self.fake})")

    def _faults(self) -> bool:
        if self.fault_at is not None and self.steps >= self.fault_at:
            return True
        return self.random.random() < self.fake.fault_rate

    def fail(self) -> None:
        """From now on every call fails, no work runs and no event completes."""
        self.fault = 700
        self.fake.statistics["faults"] += 1
        for queue in self.queues:
            queue.work.clear()
        self.fake.completed.notify_all()
        self.fake.launched.notify_all()  # another GPU may wait for what never comes
