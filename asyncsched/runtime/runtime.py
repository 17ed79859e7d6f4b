"""One open scheduler: its state machine, its devices, and the event loop it belongs to.

Everything here runs on the loop's thread, but for the wake-up, which any thread may call.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final, NoReturn, Protocol, cast

import numpy as np

from .._core.callsite import line_of
from .._core.completions import Completions
from .._core.engine import Engine
from .._core.failure import Failure
from .._core.instrument import Instrument
from .._core.model import LAUNCHED, Lane, Task, Value
from .._core.refcounts import require_gil
from ..devices.contract import Device, Point, RemoteDevice, in_stream_thread
from ..devices.host.allowed import NO_DESCRIPTOR
from ..devices.host.memory import run_small
from ..errors import QueueFull, SchedulerClosed, TaskCancelled
from .cancellation import to_its_end
from .commits import commit
from .instruments import Instruments
from .rates import Meter
from .resuming import resume
from .threads import in_thread
from .wakeup import Wakeup

log = logging.getLogger("asyncsched")

# Copies up to this many bytes are made on the loop's thread. It takes them 20 us, and a hop to another thread 50 us of
# the loop's own time (two processors).
INLINE_COPY: Final = 256 * 1024
INLINE_BUDGET: Final = 1e-3  # seconds for which quick rows may hold the loop's thread between two of its turns

# Devices that a scheduler was opened on. Each serves one alone: what outlives that, threads and tensors, goes on using
# its memory and its streams.
_spent: weakref.WeakSet[Device] = weakref.WeakSet()


class Life(Enum):
    """Where a scheduler is in its life."""

    NEW = auto()
    OPEN = auto()
    CLOSING = auto()  # takes nothing new
    CLOSED = auto()  # its devices have stopped
    FORKED = auto()  # this is the child process of a fork: its threads are not here, and its loop is the parent's


_CLOSED: Final = "the scheduler is closed: submit inside `async with asyncsched.Scheduler()`"
_TORN: Final = (
    "{} came in the middle of the scheduler's own bookkeeping. So it has closed: what was unfinished is lost, what is"
    " done can be read. `await s.aclose()` it or leave its block, and open another"
)
_REFUSALS: Final = {
    Life.NEW: "the scheduler is not open yet: use `async with asyncsched.Scheduler() as s`",
    Life.CLOSING: _CLOSED,
    Life.CLOSED: _CLOSED,
    Life.FORKED: "a scheduler does not survive a fork: open one in the child, or use the 'spawn' start method",
}


class Sink(Protocol):
    """Takes tasks in place of the backlog: a transaction gathers them, a capture records them."""

    def take(self, task: Task, *, bounded: bool = True, hold: bool = False) -> None:
        """Take a task, as `Engine.submit` does; raise for one that cannot be had here."""

    def refuse(self, what: str) -> None:
        """Raise for what cannot begin here."""


class Runtime:
    """One scheduler's engine, devices and event loop."""

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        max_ops: int | None,
        max_bytes: int | None,
        max_pending: int | None,
        auto_bytes: bool = False,
    ) -> None:
        self.devices = devices
        # Rows that run inline do so in a context of their own, where NumPy's error state is quiet.
        self.quiet = contextvars.Context()
        self.quiet.run(np.seterr, all="ignore")
        self.completions = Completions(_waker(self))
        self._wakeup: Wakeup | None = None
        self.engine = Engine(
            max_ops=max_ops,
            max_bytes=max_bytes,
            max_pending=max_pending,
            completions=self.completions,
            launch=self._launch,
            here=self._here,
            run=self._run_small,
            on_overrun=self._on_overrun,
            on_cancel=self._on_cancel,
            on_torn=self.give_up,
            runtime=self,
        )
        self._auto_bytes = auto_bytes  # the devices say the limit
        self.dispatch = self.engine.dispatch
        self.submit: Callable[..., None] = self.engine.submit  # or the sink's `take`
        self.life = Life.NEW
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread = 0  # the loop's thread while open; 0 makes every call ask `refuse` why
        self.inline_thread = 0  # the same, while quick rows may run on it
        self._spent = 0.0  # seconds for which they held it since the loop last turned, by estimate
        self.torn: Failure | None = None  # why it closed itself, see `_core.torn`
        self.abandoned = False  # the loop ended while something ran: nothing is waited for any more
        self.sink: Sink | None = None  # where tasks go instead of the backlog
        self.lanes: dict[Any, list[Lane]] = {}
        self.serial_lanes: dict[Any, list[Lane]] = {}  # whose tasks run one after the other
        self.copy_lanes: dict[Any, list[Lane]] = {}
        self.loop_lanes: dict[Any, Lane] = {}  # for what runs on the loop's thread
        self._overrun_told = False
        self.instruments = Instruments(self._observe)
        self.scheduler: weakref.ref[Any] | None = None  # whose this is
        self.waited = 0.0  # seconds that callers waited for admission
        self.meter = Meter(self.engine.admission)
        # The asyncio tasks that wait, and for which tasks: where a search for a deadlock begins.
        self.parked: dict[asyncio.Future[None], tuple[asyncio.Task[Any] | None, Sequence[Task]]] = {}
        self.answered: list[asyncio.Future[None]] | None = None  # see `resuming`; None where a future is set at once
        self.reclaimers: set[Callable[[], bool]] = set()  # asked, when the queue is stuck, to free what they can spare

    def __repr__(self) -> str:
        admission, names = self.engine.admission, ", ".join(device.name for device in self.devices)
        state = "closed" if self.life is Life.CLOSED else "not open" if self.loop is None else (
            f"{admission.pending} pending, {admission.in_flight} in flight, {self.engine.account.used:,} bytes"
        )  # fmt: skip
        return f"Scheduler({names}; {state})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a scheduler lives on its event loop: neither it nor what belongs to it can be pickled or copied;"
            " open one where it is needed"
        )

    # -- opening and closing ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Bind to the running loop and start the devices.

        Raises:
            RuntimeError: for a device that a scheduler was opened on before, or is listed twice.
        """
        require_gil()
        self.loop = running_loop()
        if self.loop is None:
            raise RuntimeError(
                "a scheduler is opened on an event loop of asyncio's or uvloop's, and none runs here: use"
                " `asyncsched.run(main)`; a program on trio can run under `anyio.run(main, backend='asyncio')`"
            )
        for device in self.devices:
            if device in _spent:
                raise RuntimeError(
                    f"device {device.name!r} was given to a scheduler before, and serves one alone, also when that is"
                    f" closed: make another {type(device).__name__}, or give its name"
                )
            _spent.add(device)
        try:
            for device in self.devices:
                await to_its_end(in_thread(device.prepare, f"opens {device.name}"))
                if device.remote:
                    await to_its_end(cast(RemoteDevice, device).connect())
            if self._auto_bytes:
                self._set_default_limit()
            for device in self.devices:
                device.open(self.completions, self.engine.account.limit)
                device.memory.observer = self.engine.observer
                remote = cast(RemoteDevice, device) if device.remote else None
                place = None if remote is None else remote.place
                lanes = self.lanes[device] = [Lane(device, stream, place=place) for stream in device.streams]
                self.serial_lanes[device] = lanes if remote is None else [Lane(device, one) for one in remote.serial]
                self.copy_lanes[device] = [Lane(device, device.copier, copies=True)]
                self.loop_lanes[device] = Lane(device, LoopStream())
        except BaseException as error:
            self.close()
            await self.disconnect()
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
                told = "no file descriptor is left, and a scheduler needs some: close files, or raise `ulimit -n`"
                raise OSError(error.errno, told) from error
            raise
        with contextlib.suppress(NotImplementedError, OSError):
            self._wakeup = self.completions.wake = Wakeup(self.loop, self)
        self.life = Life.OPEN
        self.thread = threading.get_ident()
        self._allow_inline()
        self.instruments.opened()

    def _allow_inline(self) -> None:
        """From now on quick rows may run on the loop's thread, where all arrays are NumPy's."""
        self._spent = 0.0
        if all(device.inline for device in self.devices):
            self.inline_thread = self.thread

    def spend(self, seconds: float) -> None:
        """A row held the loop's thread for so long. After `INLINE_BUDGET` none does before the loop has turned."""
        if not self._spent:
            assert self.loop is not None
            try:
                self.loop.call_soon(self._allow_inline)
            except RuntimeError:  # it is closed, and will not turn: `done()` takes in what ended after that
                self.inline_thread = 0
        self._spent += seconds
        if self._spent > INLINE_BUDGET:
            self.inline_thread = 0

    def _set_default_limit(self) -> None:
        """The smallest that a device asks for, so that none is ever overfilled."""
        limits = [limit for device in self.devices if (limit := device.default_bytes()) is not None]
        self.engine.account.limit = min(limits, default=None)

    def add_instrument(self, instrument: Instrument) -> None:
        """Have an instrument told what happens from now on. Raises as `Instruments.add`."""
        self.instruments.add(instrument, self.scheduler and self.scheduler())
        if self.life is Life.OPEN:
            instrument.opened()

    def _observe(self, observer: Instruments | None) -> None:
        self.engine.observer = observer
        self.completions.direct = 0
        if self.lanes:  # the devices are open
            for device in self.devices:
                device.memory.observer = observer

    def refuse_new(self) -> None:
        """Take no more work."""
        self._move_on(Life.CLOSING)

    def close(self) -> None:
        """Stop the devices; nothing may be in flight."""
        self._move_on(Life.CLOSED)
        self.engine.on_stuck(())
        self.stop_devices()
        self._stop_wakeup()
        self.instruments.remove_all()

    def give_up(self, error: BaseException) -> None:
        """An exception was raised in the middle of a change of state: fail what is unfinished, and close."""
        if self.life is Life.FORKED:
            return
        failure = self.torn
        if failure is None:
            failure = Failure(SchedulerClosed(_TORN.format(type(error).__name__)), "the scheduler", None)
            if self.engine.unfinished:
                self.engine.root.record(failure)
            self.torn = failure
        self._move_on(Life.CLOSED)
        self.engine.abandon(failure)
        self.dispatch()
        for future in list(self.parked):  # also for what was lost on the way
            if not future.done():
                future.set_exception(failure.exception)
        self.close()

    def _stop_wakeup(self) -> None:
        """From now on the loop is woken in its own way: a body that `aclose(timeout=)` left behind may have someone
        waiting for it."""
        if self._wakeup is None:
            return
        self._wakeup.stop()
        self._wakeup = None
        self.completions.wake = _waker(self)
        if self.completions.awake:  # by the one that was stopped, perhaps
            self.completions.wake()

    async def disconnect(self) -> None:
        """Let remote devices go. After `close`."""
        for device in self.devices:
            if device.remote:
                await to_its_end(cast(RemoteDevice, device).disconnect())

    def stop_devices(self) -> None:
        """Let the streams' threads end. Safe on any thread, and when opened only half."""
        for device in self.devices:
            device.close()

    def forked(self) -> None:
        """This is the child of a fork."""
        self._move_on(Life.FORKED)
        if self._wakeup is not None:
            self._wakeup.forget()

    def _move_on(self, life: Life) -> None:
        self.life = life
        self.thread = self.inline_thread = 0

    def check(self) -> None:
        """Raise unless this thread, on this event loop, may submit."""
        loop = self.loop
        if threading.get_ident() != self.thread or loop is None or not (loop.is_running() or _rests(loop)):
            self.refuse()

    def check_waiting(self) -> None:
        """Raise unless the calling thread may wait, as it may also while the scheduler closes, and after."""
        if self.life is not Life.CLOSED and (self.life is not Life.CLOSING or running_loop() is not self.loop):
            self.check()

    def refuse(self) -> None:
        """Raise why this thread, at this moment, may not submit anything."""
        if self.torn is not None:
            self.torn.rethrow()
        if self.life in _REFUSALS:
            raise SchedulerClosed(_REFUSALS[self.life])
        assert self.loop is not None
        if self.loop.is_closed():
            raise SchedulerClosed("the scheduler's event loop is closed: open a scheduler in the running loop")
        if threading.get_ident() == self.thread:
            raise RuntimeError(
                "a scheduler is used on the event loop on which it was opened, and another one runs now: open a"
                " scheduler on this loop, or keep to one loop (`asyncio.run` makes a new one each time)"
            )
        if in_stream_thread():
            raise RuntimeError(
                "a scheduler is used from its event loop's thread alone, and this is a task's: give it tensors as"
                " arguments, which arrive as arrays, and compute with NumPy's functions there"
            )
        raise RuntimeError(
            "a scheduler is used from its event loop's thread alone: from elsewhere use"
            " `asyncio.run_coroutine_threadsafe(coroutine, loop)`, and in a server `async def` handlers"
        )

    # -- devices ------------------------------------------------------------------------------------------------

    def lane_of(self, resource: Hashable, device: Device) -> list[Lane]:
        """The one stream on which a device's tasks that use a resource run."""
        lanes = self.serial_lanes[device]
        return [lanes[hash(resource) % len(lanes)]]

    def device(self, wanted: object) -> Device:
        """One of the scheduler's devices, by itself or by name; None for the first."""
        for device in self.devices:
            if wanted is None or wanted is device or wanted == device.name:
                return device
        if isinstance(wanted, type | np.dtype):
            raise TypeError(f"a device is a name or a Device, not {wanted!r}; `t.astype(dtype)` is another dtype")
        names = ", ".join(device.name for device in self.devices)
        raise ValueError(f"device {wanted!r} is not among this scheduler's ({names}): list it in Scheduler([...])")

    # -- moving things along ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(
        self,
        what: str,
        *,
        expedited: bool = False,
        captured: bool = False,
        versions: Mapping[Value, Value | None] | None = None,
    ) -> Iterator[None]:
        """What is issued inside joins the backlog at the end: all, or nothing if anything raises. `dispatch` launches.

        A tiny row may run at once all the same, but in a commit: if the rest is dropped, so is its result.

        Args:
            what: for the message.
            expedited: queue it before the rest of its scope.
            captured: it may be part of a captured step, since it moves no handle: what is recorded has no value.
            versions: make it a commit, with these versions (see `commits`); filled inside.

        Raises:
            QueueFull: if the backlog has no room for all.
        """
        self.check()
        if self.sink is not None:
            if not captured:
                self.sink.refuse(what)
            yield
            return
        inline = self.inline_thread
        gathered = _Gathered(self)
        tasks = gathered.tasks
        # No function is entered between here and `try`, nor in `finally`, where a signal could be handled.
        self.sink, self.submit = gathered, gathered.take
        if versions is not None:
            self.inline_thread = 0
        try:
            try:
                yield
            finally:
                self.sink, self.submit, self.inline_thread = None, self.engine.submit, inline
            self.dispatch()
            if versions is not None:
                tasks.insert(0, commit(what, tasks, versions, self.lanes[next(iter(versions)).device]))
                self.engine.require(tasks[0])
            self._require_room(what, len(tasks))
        except BaseException:
            for task in tasks:
                task.refused()
            raise
        try:
            for task in tasks:
                task.expedited = expedited
                self.engine.submit(task, bounded=False, hold=True)
        except BaseException as error:  # half of it has joined
            self.give_up(error)
            raise

    def _require_room(self, what: str, count: int) -> None:
        limit = self.engine.max_pending
        room = limit and limit - self.engine.admission.pending
        if room is not None and count > room:
            raise QueueFull(
                f"{what} takes {count:,} tasks and the backlog (max_pending) has room for {room:,}:"
                " `await s.barrier()` first, bound the run-ahead with `async with s.window(2)`, or raise max_pending"
            )

    def _here(self, task: Task) -> Lane | None:
        """The lane for a quick task that is about to be launched, if it may run here, now: all that it reads is there.

        It is the moment that `tensors.issue.run_inline` waits for, come later.
        """
        if not self.inline_thread or task.move is not None:
            return None
        for value in task.inputs:
            if type(value.array) is not np.ndarray:
                return None
        assert task.value is not None
        return self.loop_lanes[task.value.device]

    def _run_small(self, task: Task) -> bool:
        """Run a quick task with a small result here, to its end, if it may."""
        if not self.inline_thread:
            return False
        seconds = task.quick.seconds
        if not self.quiet.copy().run(run_small, task):  # a copy: see `quiet_in_use`
            return False
        if self.meter.since is None:
            self.meter.since = self.meter.clock()
        if seconds:
            self.spend(seconds)
        return True

    def quiet_in_use(self) -> bool:
        """Whether an inline row runs in it, and who asks is a finaliser: a context is entered once at a time."""
        try:
            self.quiet.run(bool)
        except RuntimeError:
            return True
        return False

    def _launch(self, task: Task) -> bool:
        """Put an admitted task on its stream. Returns whether it has run already: what is quick does, here."""
        lane = task.lane
        assert lane is not None
        if self.meter.since is None:  # there is work, after a rest
            self.meter.since = self.meter.clock()
        if task.quick is not None and type(lane.stream) is LoopStream:
            seconds = task.quick.seconds
            self.quiet.copy().run(lane.device.run_here, task)
            if seconds:
                self.spend(seconds)
            return True
        if lane.copies and task.cost <= INLINE_COPY and not task.inputs and lane.device.inline:
            lane.device.run_here(task)
            return True
        points: tuple[Point, ...] = ()
        reads = task.reads
        for value in (reads,) if type(reads) is Value else reads:
            producer = value.task
            if producer is not None and producer.state == LAUNCHED and producer.lane is not lane:
                assert producer.lane is not None
                points = (*points, (producer.lane.stream, producer.number))
        # The stream may have begun by the end of `launch`: nothing more is to hold what it reads.
        reads = value = producer = None
        task.number = lane.stream.launch(task, points)
        return False

    def on_wake(self) -> None:
        """What a wake-up schedules: take in what has ended, and have who waited for it go on at once."""
        answered: list[asyncio.Future[None]] = []
        self.answered = answered
        try:
            self.catch_up()
        finally:
            self.answered = None
            if answered:
                assert self.loop is not None
                resume(answered, self.loop.get_debug())

    def catch_up(self) -> None:
        """What has ended is taken in, also without a wake-up."""
        self.completions.awake = False
        self.dispatch()  # when closed too: a body that aclose(timeout=) left behind may have someone waiting for it
        if self.meter.since is not None:
            self.meter.sample(self.engine.unfinished > 0)
            if not self.engine.unfinished:
                for device in self.devices:
                    if device.rest is not None:
                        device.rest()

    def _on_cancel(self, task: Task) -> None:
        """Have a remote device end a launched task; a thread cannot be ended."""
        assert task.lane is not None
        if task.lane.device.remote:
            task.lane.device.stop(task)

    def _on_overrun(self, task: Task) -> None:
        """Log the first result by which tracked bytes passed a limit, since too little was charged for it.

        Not of a task that no line of a program submitted: whoever made it tells, in words that its users know.
        """
        if self._overrun_told or task.site is None:
            return
        self._overrun_told = True
        account = task.scope.account.open
        log.warning(
            f"{task.name}, submitted at {line_of(task.site)}, was charged {task.cost:,} bytes and made"
            f" {task.cost - task.refund:,}: {account.used:,} bytes are tracked, and the limit is {account.limit:,}."
            " Until they are below it, nothing more is admitted that makes results. Declare them by nbytes=, or shape="
            " and dtype="
        )

    def cancel(self, task: Task, by: str) -> bool:
        """Cancel a task and everything that needs it. Returns whether it had not ended."""
        return self.cancel_all([task], by) == 1

    def cancel_all(self, tasks: Iterable[Task], by: str) -> int:
        """Cancel many tasks. Returns how many had not ended."""
        self.engine.take()
        found = 0
        for task in tasks:
            error = TaskCancelled(f"{task.name} was cancelled by {by}")
            found += self.engine.cancel(task, Failure.of(error, task.name, task.site))
        self.dispatch()
        return found


class LoopStream:
    """The event loop's thread, where streams are listed."""

    name = "event loop"


class _Gathered:
    """The tasks of a transaction."""

    def __init__(self, runtime: Runtime) -> None:
        self.tasks: list[Task] = []
        self._runtime = runtime

    def take(self, task: Task, **_: bool) -> None:
        self._runtime.engine.require(task)
        self._runtime.inline_thread = 0  # what follows may depend on it
        self.tasks.append(task)

    def refuse(self, what: str) -> None:
        raise RuntimeError(f"{what} inside another transaction: issue one after the other")


def _rests(loop: asyncio.AbstractEventLoop) -> bool:
    """On the thread of a loop that does not run: whether it may go on, and no other runs in its place.

    A thread runs one loop at a time. To ask for that one takes five times as long (on CPython 3.11) as to ask whether
    this one does.
    """
    return not (loop.is_closed() or running_loop())


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs on this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _waker(runtime: Runtime) -> Callable[[], None]:
    """A wake-up callable on any thread, which keeps an abandoned scheduler collectable."""
    reference = weakref.ref(runtime)

    def wake() -> None:
        runtime = reference()
        if runtime is not None and runtime.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to wake
                runtime.loop.call_soon_threadsafe(runtime.on_wake)

    return wake
