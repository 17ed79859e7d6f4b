"""One open scheduler: its state machine, its devices, and the event loop it belongs to.

Everything here runs on the loop's thread, but for the wake-up, which any thread may call.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, NoReturn, Protocol, cast

import numpy as np

from .._core.callsite import line_of
from .._core.completions import Completions
from .._core.engine import Engine
from .._core.failure import Failure
from .._core.host import Host
from .._core.instrument import Instrument
from .._core.ledger import Ledger, Limits
from .._core.model import DONE, LAUNCHED, Lane, Task, Value
from .._core.refcounts import require_gil
from .._log import Log
from ..devices.contract import Device, Point, RemoteDevice
from ..devices.host.allowed import NO_DESCRIPTOR
from ..errors import TaskCancelled
from .instruments import Instruments
from .late_finalisers import watch_for_signals
from .life import InlineMode, Life, OnOneLoop, running_loop
from .rates import Meter
from .room import Room
from .threads import in_thread, to_its_end
from .wakeup import Wakeup, plain_wakeup

log: Final = Log("asyncsched")

_NEVER, _ndarray = InlineMode.NEVER, np.ndarray  # each quick task asks for them

# Copies up to this many bytes are made on the loop's thread. It takes them 20 us, and a hop to another thread 50 us of
# the loop's own time (two processors).
INLINE_COPY: Final = 256 * 1024
INLINE_BUDGET: Final = 1e-3  # seconds for which quick operations may hold the loop's thread between two of its turns

# Devices that a scheduler was opened on. Each serves one alone: what outlives that, threads and tensors, goes on using
# its memory and its streams.
_taken: weakref.WeakSet[Device] = weakref.WeakSet()


class Sink(Protocol):
    """Takes tasks in place of the backlog: a transaction gathers them, a capture records them."""

    def submit(self, task: Task, *, bounded: bool = True, hold: bool = False) -> None:
        """Take a task, as `Engine.submit` does; raise for one that cannot be had here."""

    def refuse(self, what: str) -> None:
        """Raise for what cannot begin here."""


class Answerer(Protocol):
    """Has tasks answer others, through something that anybody may hold: a search for holders would end there."""

    def answered_by(self) -> dict[int, set[asyncio.Task[Any]]]:
        """The futures that others wait for, by identity, and the tasks of which one will set each."""

    def bound(self) -> set[int]:
        """Those of these futures whose waiters hold on to all they have until it is set, whatever they are told."""

    def explained(self) -> list[str]:
        """What it computes for others, a line each."""


class Runtime(OnOneLoop, Host):
    """One scheduler's engine, devices and event loop."""

    def __init__(
        self,
        devices: Sequence[Device],
        limits: Limits,
        *,
        auto_bytes: bool = False,
    ) -> None:
        super().__init__()
        self.devices = devices
        # Operations that run inline do so in a context of their own, where NumPy's error state is quiet.
        self.quiet: contextvars.Context = contextvars.Context()
        self.quiet.run(np.seterr, all="ignore")
        self.completions: Completions = Completions(plain_wakeup(self))
        self._wakeup: Wakeup | None = None
        self.engine: Engine = Engine(limits, self.completions, self, self)
        self.ledger: Ledger = self.engine.ledger
        self.clock = perf_counter
        self.stall_watch: Callable[[Sequence[Task]], None] | None = None  # told of what is stuck
        self._auto_bytes = auto_bytes  # the devices say the limit
        self.dispatch: Callable[[], None] = self.engine.dispatch
        self.submit: Callable[..., None] = self.engine.submit  # or the sink's
        self._held_for = 0.0  # seconds, by estimate, for which quick operations held this thread since the loop turned
        self.abandoned = False  # the loop ended while something ran: nothing is waited for any more
        self.sink: Sink | None = None  # where tasks go instead of the backlog
        self.lanes: dict[Any, Lanes] = {}  # of each device, once it is open
        self._overrun_told = False
        self.instruments: Instruments = Instruments(self._observe)
        self.scheduler: weakref.ref[Any] | None = None  # what users have of it
        self.waited: float = 0.0  # seconds that callers waited for admission
        self.meter: Meter = Meter(self.ledger)
        self.room: Room = Room(self.engine.admission)
        # The asyncio tasks that wait, and for which tasks: where a search for a deadlock begins.
        self.parked: dict[asyncio.Future[None], tuple[asyncio.Task[Any] | None, Sequence[Task]]] = {}
        self.reclaimers: set[Callable[[], bool]] = set()  # asked, when the queue is stuck, to free what they can spare
        self.answerers: weakref.WeakSet[Answerer] = weakref.WeakSet()  # asked then whom they keep waiting, and for whom

    def __repr__(self) -> str:
        ledger, names = self.ledger, ", ".join(device.name for device in self.devices)
        state = "closed" if self.life is Life.CLOSED else "not open" if self.loop is None else (
            f"{ledger.pending} pending, {ledger.in_flight} in flight, {ledger.account.used:,} bytes"
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
        watch_for_signals()
        self.loop: asyncio.AbstractEventLoop | None = running_loop()
        if self.loop is None:
            raise RuntimeError(
                "a scheduler is opened on an event loop of asyncio's or uvloop's, and none runs here: use"
                " `asyncsched.run(main)`; a program on trio can run under `anyio.run(main, backend='asyncio')`"
            )
        for device in self.devices:
            _take(device)
        try:
            for device in self.devices:
                await to_its_end(in_thread(device.prepare, f"opens {device.name}"))
                if device.remote:
                    await to_its_end(cast(RemoteDevice, device).connect())
            if self._auto_bytes:
                self._set_default_limit()
            for device in self.devices:
                device.open(self.completions, self.ledger.account.limit)
                device.memory.observer = self.ledger.observer
                self._add_lanes(device)
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
        self.thread: int = threading.get_ident()
        self._allow_inline()
        self.instruments.opened()

    def _add_lanes(self, device: Device) -> None:
        """A lane for each stream of a device that is open."""
        remote = cast(RemoteDevice, device) if device.remote else None
        place = None if remote is None else remote.place
        loop = Lane(device, LoopStream())
        compute = [Lane(device, stream, place=place, hop=device.hop, loop=loop) for stream in device.streams]
        serial = compute if remote is None else [Lane(device, one) for one in remote.serial]
        copy = [Lane(device, device.copier, copies=True)]
        self.lanes[device] = Lanes(compute, serial, copy)

    def _allow_inline(self) -> None:
        """Let quick operations run on the loop's thread from now on, if all devices have NumPy's arrays."""
        self._held_for = 0.0
        if all(device.inline for device in self.devices):
            self.inline = InlineMode.BACKLOG_ONLY if self.life is Life.CLOSING else InlineMode.ALWAYS

    def spend(self, seconds: float) -> None:
        """An operation held this thread for so long. After `INLINE_BUDGET` none does before the loop has turned."""
        if not self._held_for:
            assert self.loop is not None
            try:
                self.loop.call_soon(self._allow_inline)
            except RuntimeError:  # it is closed, and will not turn: `done()` takes in what ended after that
                self.inline = InlineMode.NEVER
        self._held_for += seconds
        if self._held_for > INLINE_BUDGET:
            self.inline = InlineMode.NEVER

    def _set_default_limit(self) -> None:
        """Take the smallest limit that a device asks for, so that none is overfilled."""
        limits = [limit for device in self.devices if (limit := device.default_bytes()) is not None]
        self.ledger.limit_bytes(min(limits, default=None))

    def add_instrument(self, instrument: Instrument) -> None:
        """Have an instrument told what happens from now on. Raises as `Instruments.add`."""
        self.instruments.add(instrument, self.scheduler and self.scheduler(), self.life is Life.OPEN)

    def _observe(self, observer: Instruments | None) -> None:
        self.ledger.observer = observer
        self.completions.immediate_thread = 0
        if self.lanes:  # the devices are open
            for device in self.devices:
                device.memory.observer = observer

    def refuse_new(self) -> None:
        """Take no more work. Quick operations that wait go on running on the loop's thread."""
        inline = self.inline
        self._move_on(Life.CLOSING)
        if inline is not InlineMode.NEVER:
            self._allow_inline()

    def _move_on(self, life: Life) -> None:
        super()._move_on(life)
        self.submit = self._submit_late

    def _submit_late(self, task: Task, **_: bool) -> None:
        """Refuse a task whose coroutine passed `check`, and the event loop after that, while the scheduler closed.

        Nobody waits for it now, and soon no stream would run it.
        """
        task.let_go()
        self.refuse()

    def close(self) -> None:
        """Stop the devices; nothing may be in flight."""
        self._move_on(Life.CLOSED)
        self.engine.release_reserves()
        self.on_stuck(())
        self.stop_devices()
        self._stop_wakeup()
        self.instruments.remove_all()

    def on_interrupted(self, error: BaseException) -> None:
        """An exception was raised in the middle of a change of state: fail what is unfinished, and close."""
        if self.life is Life.FORKED:
            return
        failure = self.interrupted
        if failure is None:
            failure = self._interruption(error)
            if self.ledger.unfinished:
                self.engine.root.record(failure)
            self.interrupted: Failure | None = failure
        self._move_on(Life.CLOSED)
        self.engine.abandon(failure)
        self.dispatch()
        for future in list(self.parked):  # also for what was lost on the way
            if not future.done():
                future.set_exception(failure.exception)
        self.close()

    def _stop_wakeup(self) -> None:
        """Wake the loop by `call_soon_threadsafe` from now on: somebody may wait for a body that `aclose(timeout=)`
        left behind."""
        if self._wakeup is None:
            return
        self._wakeup.stop()
        self._wakeup = None
        self.completions.wake = plain_wakeup(self)
        if self.completions.awake:  # the wake-up on its way may be that of the one that was stopped
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
        """Called in the child of a fork: from now on whatever would submit or wait raises."""
        self._move_on(Life.FORKED)
        if self._wakeup is not None:
            self._wakeup.forget()

    # -- devices ------------------------------------------------------------------------------------------------

    def lane_of(self, resource: Hashable, device: Device) -> list[Lane]:
        """The one stream on which a device's tasks that use a resource run."""
        lanes = self.lanes[device].serial
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

    def loop_lane(self, task: Task) -> Lane | None:
        """The lane of the loop's thread, for a quick task that is next, if all that it reads is there.

        It is the moment that `tensors.issue.run_at_once` waits for, come later.
        """
        reads, lane = task.reads, task.lanes[0]
        if lane.copies:
            return None if reads else lane
        if self.inline is _NEVER or task.move is not None:
            return None
        for value in (reads,) if type(reads) is Value else reads:
            producer = value.task
            if type(value.array) is not _ndarray or (producer is not None and producer.failure is not None):
                return None
        if task.after and any(reader.state < DONE for reader in task.after):
            return None
        return lane.loop

    def run_here(self, task: Task) -> None:
        """Run a quick task here, to its end."""
        seconds = task.plan.seconds
        assert task.lane is not None
        task.lane.device.run_here(task)
        if seconds:
            self.spend(seconds)

    def quietly(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a context where NumPy's error state is quiet."""
        if self.meter.since is None:  # there is work, after a rest
            self.meter.since = self.meter.clock()
        return self.quiet.copy().run(function, *args)  # a copy: see `quiet_in_use`

    def quiet_in_use(self) -> bool:
        """Whether an inline operation runs in it, and who asks is a finaliser: a context is entered once at a time."""
        try:
            self.quiet.run(bool)
        except RuntimeError:
            return True
        return False

    def launch(self, task: Task) -> None:
        """Put an admitted task on its stream."""
        lane = task.lane
        assert lane is not None
        if self.meter.since is None:
            self.meter.since = self.meter.clock()
        points: tuple[Point, ...] = ()
        reads = task.reads
        for value in (reads,) if type(reads) is Value else reads:
            producer = value.task
            if producer is not None and producer.state == LAUNCHED and producer.lane is not lane:
                assert producer.lane is not None
                points = (*points, (producer.lane.stream, producer.number))
        for reader in task.after or ():
            if reader.state == LAUNCHED and reader.lane is not lane:
                assert reader.lane is not None
                points = (*points, (reader.lane.stream, reader.number))
        # The stream may run the task before `launch` returns, and writes over an input only if nobody else refers to
        # it.
        reads = value = producer = None
        task.number = lane.stream.launch(task, points)

    def on_wake(self) -> None:
        """What has ended is taken in. A wake-up schedules this; who finds it there calls it without one."""
        self.completions.awake = False
        self.dispatch()  # when closed too: a body that aclose(timeout=) left behind may have someone waiting for it
        if self.meter.since is not None:
            self.meter.sample(self.ledger.unfinished > 0)
            if not self.ledger.unfinished:
                for device in self.devices:
                    if device.rest is not None:
                        device.rest()

    def on_stuck(self, tasks: Sequence[Task]) -> None:
        if self.stall_watch is not None:
            self.stall_watch(tasks)

    def on_cancel(self, task: Task) -> None:
        """Have a remote device end a launched task; a thread cannot be ended."""
        assert task.lane is not None
        if task.lane.device.remote:
            task.lane.device.stop(task)

    def on_overrun(self, task: Task) -> None:
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
        self.engine.drain()
        found = 0
        for task in tasks:
            error = TaskCancelled(f"{task.name} was cancelled by {by}")
            found += self.engine.cancel(task, Failure.of(error, task.name, task.site))
        self.dispatch()
        return found


@dataclass(slots=True, eq=False)
class Lanes:
    """The lanes of one device, by what they are for."""

    compute: list[Lane]
    serial: list[Lane]  # whose tasks run one after the other
    copy: list[Lane]


class LoopStream:
    """The event loop's thread, where streams are listed."""

    name = "event loop"


def _take(device: Device) -> None:
    """Raise for a device that was taken before."""
    if device in _taken:
        raise RuntimeError(
            f"device {device.name!r} was given to a scheduler before, and serves one alone, also when that is closed:"
            f" make another {type(device).__name__}, or give its name"
        )
    _taken.add(device)
