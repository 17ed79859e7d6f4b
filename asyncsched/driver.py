"""The asyncio side of the engine: draining the inbox, launching what is admitted, waking who waits.

Everything here runs on the loop's thread, but for `_wake`, which any thread may call.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._core.engine import Engine
from ._core.failure import Failure
from ._core.inbox import Inbox
from ._core.placement import Lane
from ._core.refcounts import require_gil
from ._core.scope import Scope as CoreScope
from ._core.task import LAUNCHED, Task
from .ambient import ambient, opened
from .devices.contract import Device
from .errors import QueueFull, SchedulerClosed, TaskCancelled
from .meter import Meter
from .stall import StallWatch
from .waiting import to_its_end

if TYPE_CHECKING:
    from .recorder import Recorder

# Copies up to this many bytes are made on the loop's thread: about as long as a hop to another.
INLINE_COPY = 64 * 1024
_MOST_TURNS = 4


class Driver:
    """One open scheduler's engine, devices and event loop."""

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        max_ops: int | None,
        max_bytes: int | None,
        max_pending: int | None,
        stall_timeout: float | None,
    ) -> None:
        self.devices = devices
        self.inbox = Inbox(_waker(self))
        self.engine = Engine(max_ops=max_ops, max_bytes=max_bytes, max_pending=max_pending, inbox=self.inbox, host=self)
        self.thread = 0  # the loop's thread while open; 0 makes every call ask `refuse` why
        self.loop: asyncio.AbstractEventLoop | None = None
        self.inline_thread = 0  # the same, where tiny rows may run on it
        self.lanes: dict[Any, list[Lane]] = {}
        self.copy_lanes: dict[Any, list[Lane]] = {}
        self.waited = 0.0  # seconds that callers waited for admission
        self.meter = Meter(self.engine.admission)
        self._ran_here = False
        self._gathered: list[Task] | None = None  # inside `together`
        self.recorder: Recorder | None = None  # while a step is captured
        self.closing = False
        self.closed = False
        self.forked = False
        self.parked: dict[asyncio.Future[None], tuple[asyncio.Task[Any] | None, Sequence[Task]]] = {}
        self.stall = StallWatch(self, stall_timeout)
        self.reclaimers: set[Callable[[], bool]] = set()  # asked, when the queue is stuck, to free what they can spare
        # Rows that run inline do so in a context of their own, where NumPy's error state is quiet.
        self.quiet = contextvars.Context()
        self.quiet.run(np.seterr, all="ignore")

    # -- opening and closing ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Bind to the running loop and start the devices."""
        require_gil()
        self.loop = asyncio.get_running_loop()
        try:
            for device in self.devices:
                await to_its_end(device.prepare)
            self._set_default_limit()
            for device in self.devices:
                device.open(self.inbox, self.engine.account.limit)
                self.lanes[device] = [Lane(device, stream) for stream in device.streams]
                self.copy_lanes[device] = [Lane(device, device.copier, copies=True)]
        except BaseException:
            self.close()
            raise
        self.thread = threading.get_ident()
        if all(device.inline for device in self.devices):
            self.inline_thread = self.thread
        opened.add(self)

    def _set_default_limit(self) -> None:
        """Where no limit is given: the smallest that a device asks for, so that none is ever overfilled."""
        limits = [limit for device in self.devices if (limit := device.default_bytes()) is not None]
        if self.engine.account.limit is None and limits:
            self.engine.account.limit = min(limits)

    def refuse_new(self) -> None:
        """Take no more work."""
        self.closing = True
        self.inline_thread = 0

    def close(self) -> None:
        """Stop the devices; nothing may be in flight."""
        self.refuse_new()
        self.closed = True
        self.thread = 0
        self.stall.stop()
        self.stop_devices()
        opened.discard(self)

    def stop_devices(self) -> None:
        """Let the streams' threads end. Safe on any thread, and when opened only half."""
        for device in self.devices:
            device.close()

    def refuse(self) -> None:
        """Raise why this thread, at this moment, may not submit anything."""
        if self.forked:
            raise SchedulerClosed(
                "a scheduler does not survive a fork: open one in the child, or use the 'spawn' start method"
            )
        if self.closed or self.closing:
            raise SchedulerClosed("the scheduler is closed: submit inside `async with asyncsched.Scheduler()`")
        if self.loop is None:
            raise SchedulerClosed("the scheduler is not open yet: use `async with asyncsched.Scheduler() as s`")
        if self.loop.is_closed():
            raise SchedulerClosed("the scheduler's event loop is closed: open a scheduler in the running loop")
        if threading.get_ident() != self.thread or self.thread == 0:
            raise RuntimeError(
                "a scheduler is used from its event loop's thread alone: from elsewhere use"
                " `asyncio.run_coroutine_threadsafe(coroutine, loop)`"
            )

    def check(self) -> None:
        """Raise unless the calling thread may submit."""
        if threading.get_ident() != self.thread or self.closing:
            self.refuse()

    def check_waiting(self) -> None:
        """Raise unless the calling thread may wait."""
        if threading.get_ident() != self.thread and not self.closed:
            self.refuse()

    def lane_of(self, resource: Hashable, device: Device) -> list[Lane]:
        """The one stream on which a device's tasks that use a resource run."""
        lanes = self.lanes[device]
        return [lanes[hash(resource) % len(lanes)]]

    def device(self, wanted: object) -> Device:
        """One of the scheduler's devices, by itself or by name; None for the first."""
        for device in self.devices:
            if wanted is None or wanted is device or wanted == device.name:
                return device
        names = ", ".join(device.name for device in self.devices)
        raise ValueError(f"device {wanted!r} is not among this scheduler's ({names}): list it in Scheduler([...])")

    # -- the ambient scope --------------------------------------------------------------------------------------

    def scope(self) -> CoreScope:
        """The innermost ambient scope of this scheduler, else its root."""
        here = ambient.get()
        while here is not None:
            if here.driver is self:
                if not here.core.closed:
                    return here.core
                if not here.passing:
                    raise SchedulerClosed(
                        f"scope {here.core.name!r} is closed, and this coroutine inherited it: "
                        "wait for such coroutines inside the scope, or submit through another scope"
                    )
            here = here.outer
        return self.engine.root

    # -- moving things along ------------------------------------------------------------------------------------

    def submit(self, task: Task, *, bounded: bool = True, hold: bool = False) -> None:
        """A task joins the backlog, and, but for `hold`, whatever can be launched is."""
        engine = self.engine
        if self.recorder is not None:
            self.recorder.refuse(task.name)
        engine.require(task.account, task.cost, task.inputs, task.name)
        if self._gathered is not None:
            self._gathered.append(task)
            self.inline_thread = 0  # what follows may depend on it
            return
        if bounded and self.inbox.items:
            self.drain()
        engine.submit(task, bounded=bounded)
        if engine.unfinished == 1:
            self.meter.start()
        self.inbox.hungry = True  # the flag first, a look at the deque second: see Inbox
        if not hold and (self.inbox.items or not engine.admission.full):
            self.pump()

    @contextlib.contextmanager
    def together(self, what: str, *, front: bool = False, captured: bool = False) -> Iterator[None]:
        """What is issued inside joins the backlog at the end, all or, if anything raises, nothing. `pump` launches it.

        A tiny row may run at once all the same: if the rest is dropped, so is its result.

        Args:
            what: for the message.
            front: queue it before the rest of its scope.
            captured: it may be part of a captured step, since it moves no handle: what is recorded has no value.

        Raises:
            QueueFull: if the backlog has no room for all.
        """
        self.check()
        if self.recorder is not None and not captured:
            self.recorder.refuse(what)
        inline = self.inline_thread
        gathered = self._gathered = []
        try:
            yield
        finally:
            self._gathered, self.inline_thread = None, inline
        self.pump()
        engine = self.engine
        room = engine.max_pending if engine.max_pending is None else engine.max_pending - engine.admission.pending
        if room is not None and len(gathered) > room:
            raise QueueFull(
                f"{what} takes {len(gathered):,} tasks and the backlog (max_pending) has room for {room:,}:"
                " `await s.barrier()` first, bound the run-ahead with `async with s.window(2)`, or raise max_pending"
            )
        for task in gathered:
            task.front = front
            engine.submit(task, bounded=False)
            if engine.unfinished == 1:
                self.meter.start()
        self.inbox.hungry = True

    def drain(self) -> None:
        """Take in every completion and drop that was posted."""
        while (job := self.engine.take(self.inbox.items)) is not None:
            for waiter in job.waiters:
                waiter(job)

    def pump(self) -> None:
        """Drain, launch what is admitted, call who waits; again until nothing is left to do."""
        engine, inbox, admission = self.engine, self.inbox, self.engine.admission
        if not (inbox.items or admission.pending or engine.settled):
            inbox.hungry = inbox.starved = False
            self.stall.update(())
            return
        for turn in range(_MOST_TURNS):
            self.drain()
            for task in engine.admit():
                self._start(task)
            settled, engine.settled = engine.settled, []
            for task in settled:
                waiters, task.waiters = task.waiters, None
                for waiter in waiters or ():
                    waiter(task)
            # Flags first, a look at the deque second: see Inbox.
            inbox.hungry = bool(admission.pending)
            inbox.threshold = max(1, admission.in_flight // 2)
            inbox.starved = inbox.hungry and not admission.full
            if not inbox.items or not (self._ran_here or inbox.starved or len(inbox.items) >= inbox.threshold):
                break
            self._ran_here = False
            if turn == _MOST_TURNS - 1 and not inbox.awake:  # the streams keep up: let the loop breathe
                inbox.awake = True
                inbox.wake()
        self.stall.update(admission.stuck() if inbox.starved and not inbox.items else [])

    def _start(self, task: Task) -> None:
        lane = task.lane
        assert lane is not None
        if lane.copies and task.cost <= INLINE_COPY and not task.inputs and lane.device.inline:
            lane.device.run_here(task)
            self._ran_here = True
        else:
            waits = [
                producer.event
                for value in task.inputs
                if (producer := value.task) is not None
                and producer.state == LAUNCHED
                and producer.lane is not lane
                and producer.event is not None
            ]
            task.event = lane.device.launch(task, lane.stream, waits)
        if task.granted is not None:
            task.granted(task)

    def on_wake(self) -> None:
        """What `_wake` schedules."""
        self.inbox.awake = False
        self.pump()  # when closed too: a body that aclose(timeout=) left behind may have someone waiting for it
        if self.meter.busy:
            self.meter.sample(self.engine.unfinished > 0)

    def cancel(self, task: Task, by: str) -> bool:
        """Cancel a task and everything that needs it. Returns whether it had not ended."""
        self.drain()
        text = f"{task.name} was cancelled by {by}"
        done = self.engine.cancel(task, Failure.of(TaskCancelled(text), task.name, task.where))
        self.pump()
        return done

    def cancel_all(self, tasks: Iterable[Task], by: str) -> None:
        """Cancel many tasks."""
        self.drain()
        for task in tasks:
            error = TaskCancelled(f"{task.name} was cancelled by {by}")
            self.engine.cancel(task, Failure.of(error, task.name, task.where))
        self.pump()


def _waker(driver: Driver) -> Callable[[], None]:
    """A wake-up callable on any thread, which keeps an abandoned scheduler collectable."""
    reference = weakref.ref(driver)

    def wake() -> None:
        driver = reference()
        if driver is not None and driver.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to wake
                driver.loop.call_soon_threadsafe(driver.on_wake)

    return wake


def _after_fork() -> None:
    for driver in list(opened):
        driver.forked = True
        driver.thread = driver.inline_thread = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
