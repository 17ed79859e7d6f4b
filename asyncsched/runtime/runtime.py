"""One open scheduler: its state machine, its devices, and the event loop it belongs to.

Everything here runs on the loop's thread, except the wake-up and what says that it may be called on any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Final, NoReturn, Protocol, cast

import numpy as np

from .._blocks import contextmanager
from .._core.callsite import CallSite, line_of
from .._core.completions import Completions
from .._core.endings import Commit
from .._core.engine import Engine
from .._core.failure import Failure
from .._core.free_threading import FREE_THREADED, LOOK
from .._core.instrument import Host, Instrument
from .._core.ledger import Ledger, Limits
from .._core.model import DONE, Lane, Task, Value
from .._interrupts import watch_for_interrupts
from .._system import log
from ..devices.contract import Device, RemoteDevice
from ..devices.host.allowed import NO_DESCRIPTOR
from ..errors import SchedulerClosed, TaskCancelled
from .instruments import Instruments
from .life import DROPPED, InlineMode, Life, OnOneLoop, running_loop
from .loops import Wakeup, plain_wakeup
from .rates import FOLD, Meter, Room
from .threads import in_thread, to_its_end

_NEVER, _ndarray = InlineMode.NEVER, np.ndarray  # copies of names that each quick task reads

INLINE_STREAM: Final = "event loop"  # the name of its thread where streams are listed

# Copies up to this many bytes are made on the loop's thread. Such a copy takes 20 us, and a hop to another thread 50 us
# of the loop's own time (two processors).
INLINE_COPY: Final = 256 * 1024
INLINE_BUDGET: Final = 1e-3  # seconds for which quick operations may hold the loop's thread in one of its turns

# Devices that a scheduler was opened on. Each serves only one scheduler: threads and tensors outlive that one, and go
# on using the device's memory and streams.
_taken: weakref.WeakSet[Device] = weakref.WeakSet()


class _OnThread(threading.local):
    """Inline operations run in a context of their thread's, where NumPy's error state is quiet."""

    def __init__(self) -> None:
        self.quiet = contextvars.Context()
        self.quiet.run(np.seterr, all="ignore")


_on_thread = _OnThread()


class Sink(Protocol):
    """Takes tasks in place of the backlog. A transaction gathers them, a capture records them."""

    def submit(self, task: Task, *, bounded: bool = True, hold: bool = False) -> None:
        """Take a task, as `Engine.submit` does. Raises for a task that is not allowed here."""

    def refuse(self, what: str, cure: str = "") -> None:
        """Raise for an action that is not allowed here. `cure`: what to do instead, if a capture refuses it."""


class StepWatcher(Protocol):
    """Told of trainings, in the asyncio task that trains."""

    def learned(self) -> None:
        """Gradients were issued, for parameters."""

    def stepped(self, commit: Commit) -> None:
        """An optimiser's step was issued, as this commit."""


class Answerer(Protocol):
    """Lets tasks answer others through an object that anybody may hold, where a search for holders would end."""

    def answered_by(self) -> dict[int, set[asyncio.Task[Any]]]:
        """The futures that others wait for, by identity, each with the tasks of which one will set it."""

    def bound(self) -> set[int]:
        """The identities of the futures whose waiters keep all they hold until an answer, even if told of an error."""
        return set()

    def explained(self) -> list[str]:
        """The work that it computes for others, a line each."""
        return []

    def unwanted(self) -> list[Task]:
        """The tasks that run for others, of whom none waits any more."""
        return []


class Runtime(OnOneLoop, Host):
    """One scheduler's engine, devices and event loop."""

    clock: Callable[[], float] = staticmethod(perf_counter)
    # Seldom set, so on the class: CPython is slower with more than 30 attributes in a `__dict__`
    abandoned: bool = False  # the loop ended while tasks ran: nothing is waited for any more
    _overrun_told = False

    def __init__(self, devices: Sequence[Device], limits: Limits, *, auto_bytes: bool = False) -> None:
        super().__init__()
        self.devices = devices
        self.completions: Completions = Completions(plain_wakeup(self))
        self._wakeup: Wakeup | None = None
        self.engine: Engine = Engine(limits, self.completions, self)
        self.ledger: Ledger = self.engine.ledger
        self.stall_watch: Callable[[Sequence[Task]], None] | None = None  # told of stuck tasks
        self._auto_bytes = auto_bytes  # whether the devices determine the limit
        self.dispatch: Callable[[], None] = self.engine.dispatch
        self.submit: Callable[..., None] = self.engine.submit  # while there is a `sink`, its own
        self._held_for = 0.0  # estimated seconds for which quick operations held this thread since the loop's last turn
        self.sink: Sink | None = None  # takes tasks instead of the backlog: a step that is captured, or issued whole
        self.lanes: dict[Any, Lanes] = {}  # by device, once it is open
        self._looks_up = False
        self.instruments: Instruments = Instruments(self._observe)
        self.scheduler: weakref.ref[Any] | None = None  # the users' object
        self.waited: float = 0.0  # seconds that callers waited for admission
        self.meter: Meter = Meter(self.ledger)
        self.room: Room = Room(self.engine.admission)
        # The asyncio tasks that wait, with the tasks they wait for. A search for a deadlock begins here.
        self.parked: dict[asyncio.Future[None], tuple[asyncio.Task[Any] | None, Sequence[Task]]] = {}
        # Called when tasks are stuck, to free the bytes they can spare
        self.reclaimers: set[Callable[[], bool]] = set()
        # Asked in that search which asyncio tasks answer which futures; and by `explain`
        self.answerers: weakref.WeakSet[Answerer] = weakref.WeakSet()
        self.step_watchers: set[StepWatcher] = set()
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()  # that were made for its tensors

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
            RuntimeError: for a device that was given to a scheduler before, or is listed twice.
        """
        watch_for_interrupts()
        self.loop: asyncio.AbstractEventLoop | None = running_loop()
        if self.loop is None:
            raise RuntimeError(
                "a scheduler needs an event loop of asyncio's or uvloop's, and none runs here: use"
                " `asyncsched.run(main)`; a program on trio can run under `anyio.run(main, backend='asyncio')`"
            )
        for device in self.devices:
            _take_device(device)
        try:
            for device in self.devices:
                await to_its_end(in_thread(device.prepare, f"opens {device.name}"))
                if device.remote:
                    await to_its_end(cast(RemoteDevice, device).connect())
            if self._auto_bytes:  # the smallest that a device asks for, so that no device is overfilled
                limits = [limit for device in self.devices if (limit := device.default_bytes()) is not None]
                self.ledger.limit_bytes(min(limits, default=None))
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
        self.quiet: contextvars.Context = _on_thread.quiet
        self._allow_inline()
        self.instruments.opened()

    def _add_lanes(self, device: Device) -> None:
        """Add a lane for each stream of an open device."""
        remote = cast(RemoteDevice, device) if device.remote else None
        place = None if remote is None else remote.place
        loop = Lane(device, SimpleNamespace(name=INLINE_STREAM)) if device.inline else None
        options: dict[str, Any] = {"place": place, "hop": device.hop, "on_card": device.kind == "cuda", "loop": loop}
        compute = [Lane(device, stream, **options) for stream in device.streams]
        serial = compute if remote is None else [Lane(device, one) for one in remote.serial]
        copy = [Lane(device, device.copier, copies=True, loop=loop)]
        self.lanes[device] = Lanes(compute, serial, copy)

    @contextmanager
    def on_stream(self, number: int) -> Iterator[None]:
        """In the block, which must not `await`, tasks go to the compute stream of this number, modulo their number.
        Devices that run some tasks on the loop's thread are left out."""
        found = [(lanes, lanes.compute) for device, lanes in self.lanes.items() if not device.inline]
        for lanes, compute in found:
            lanes.compute = [compute[number % len(compute)]]
        try:
            yield
        finally:
            for lanes, compute in found:
                lanes.compute = compute

    def _allow_inline(self) -> None:
        """Let quick operations run on the loop's thread from now on, if all devices use NumPy's arrays."""
        self._held_for = 0.0
        if all(device.inline for device in self.devices):
            self.inline = InlineMode.BACKLOG_ONLY if self.life is Life.CLOSING else InlineMode.ALWAYS

    def spend(self, seconds: float) -> None:
        """Count seconds for which an operation held this thread. Beyond `INLINE_BUDGET`, others wait for the loop."""
        if not self._held_for:
            assert self.loop is not None
            try:
                self.loop.call_soon(self._on_turn)
            except RuntimeError:  # the loop is closed and will not turn: `done()` takes in later ends
                self.inline = InlineMode.NEVER
        self._held_for += seconds
        if self._held_for > INLINE_BUDGET:
            self.inline = InlineMode.NEVER

    def _on_turn(self) -> None:
        self._allow_inline()
        self._rest()

    def _rest(self) -> None:
        """Undo settings of the process, if nothing is left to run."""
        while self.completions.at_rest and not self.ledger.unfinished:
            self.completions.at_rest.pop()()

    def add_instrument(self, instrument: Instrument) -> None:
        """Tell an instrument every event from now on. Raises as `check` and `Instruments.add` do."""
        if self.life is not Life.NEW:
            self.check()
        self.instruments.add(instrument, self.scheduler and self.scheduler(), self.life is Life.OPEN)

    def _observe(self, observer: Instruments | None) -> None:
        self.ledger.observe(observer, () if observer is None else observer.asked)
        if self.ledger.drop_observer is not None:
            self.completions.immediate_thread = 0
        if self.lanes:  # the devices are open
            for device in self.devices:
                device.memory.observer = observer

    def refuse_new(self) -> None:
        """Take no new work. Pending quick operations still run on the loop's thread."""
        inline = self.inline
        self._move_on(Life.CLOSING)
        if inline is not InlineMode.NEVER:
            self._allow_inline()

    def _move_on(self, life: Life) -> None:
        super()._move_on(life)
        self.submit = self._submit_late

    def _submit_late(self, task: Task, **_: bool) -> None:
        """Refuse a task whose coroutine passed `check` before the scheduler closed, and submits in a later turn.

        Closing does not wait for the task any more, and soon no stream would run it.
        """
        task.let_go()
        self.refuse()

    def close(self) -> None:
        """Stop the devices. Nothing may be in flight."""
        self._move_on(Life.CLOSED)
        self.engine.release_reserves()
        self.on_stuck(())
        self.stop_devices()
        self._stop_wakeup()
        self.instruments.remove_all()

    def on_interrupted(self, error: BaseException) -> None:
        """Fail all unfinished tasks and close, after an exception in the middle of a change of state."""
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
        for future in list(self.parked):  # also for tasks that were lost in that change
            if not future.done():
                future.set_exception(failure.exception)
        self.close()

    def dropped(self) -> None:
        """Close, since the users' object is gone. Unfinished tasks fail at the loop's next turn.

        May be called on any thread, and between any two lines.
        """
        self.interrupted = Failure(SchedulerClosed(DROPPED), "the scheduler", None)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            assert self.loop is not None
            self.loop.call_soon_threadsafe(self.on_interrupted, self.interrupted.exception)
        self._move_on(Life.CLOSED)  # `on_interrupted` does so, too, if an interrupt comes before this line
        self.stop_devices()

    def _stop_wakeup(self) -> None:
        """Wake the loop by `call_soon_threadsafe` from now on.

        Somebody may still wait for a body that `aclose(timeout=)` left running.
        """
        if self._wakeup is None:
            return
        self._wakeup.stop()
        self._wakeup = None
        self.completions.wake = plain_wakeup(self)
        if self.completions.awake:  # the wake-up on its way may belong to the stopped one
            self.completions.wake()

    async def disconnect(self) -> None:
        """Disconnect from remote devices. Call it after `close`."""
        for device in self.devices:
            if device.remote:
                await to_its_end(cast(RemoteDevice, device).disconnect())

    def stop_devices(self) -> None:
        """Let the streams' threads end. Safe on any thread, and on a half-opened scheduler."""
        for device in self.devices:
            device.close()

    def forked(self) -> None:
        """Let everything that submits or waits raise from now on. Called in the child of a fork."""
        self._move_on(Life.FORKED)
        if self._wakeup is not None:
            self._wakeup.forget()

    # -- devices ------------------------------------------------------------------------------------------------

    def lane_of(self, resource: Hashable, device: Device) -> list[Lane]:
        """The lane for a device's tasks that use `resource`, as a list: such tasks run one after the other."""
        lanes = self.lanes[device].serial
        return [lanes[hash(resource) % len(lanes)]]

    def device(self, wanted: object) -> Device:
        """One of the scheduler's devices, given as itself or by name; the first if None."""
        for device in self.devices:
            if wanted is None or wanted is device or wanted == device.name:
                return device
        if isinstance(wanted, type | np.dtype):
            raise TypeError(f"a device is a name or a Device, not {wanted!r}; `t.astype(dtype)` is another dtype")
        names = ", ".join(device.name for device in self.devices)
        raise ValueError(f"device {wanted!r} is not among this scheduler's ({names}): list it in Scheduler([...])")

    # -- moving things along ------------------------------------------------------------------------------------

    def loop_lane(self, task: Task) -> Lane | None:
        """The lane of the loop's thread, if the next task is quick and all its inputs are there; else None.

        The conditions are those of `tensors.issue.run_at_once`, checked later.
        """
        reads, lane = task.reads, task.lanes[0]
        if lane.copies:
            return None if reads else lane
        if self.inline is _NEVER:
            return None
        for value in (reads,) if type(reads) is Value else reads:
            producer = value.task
            if type(value.array) is not _ndarray or (producer is not None and producer.failure is not None):
                return None
        if task.after and any(reader.state < DONE for reader in task.after):
            return None
        return lane.loop

    def quietly(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a context where NumPy's error state is quiet."""
        return self.quiet.run(function, *args)

    def quiet_in_use(self) -> bool:
        """Whether an inline operation runs in the thread's quiet context, which cannot be entered twice. A finaliser
        asks, in the middle of that operation: another one on this thread would write over its scratch memory."""
        try:
            self.quiet.run(bool)
        except RuntimeError:
            return True
        return False

    def on_wake(self) -> None:
        """Take in completions. A wake-up schedules this; `done()` and others call it directly."""
        self.completions.awake = False
        self.dispatch()  # also when closed: somebody may wait for a body that aclose(timeout=) left running
        ledger = self.ledger
        if ledger.began is not None or ledger.worked >= FOLD:
            self.meter.sample(ledger.pending > 0 or ledger.in_flight > 0)
        if self.completions.at_rest:
            self._rest()

    def on_stuck(self, tasks: Sequence[Task]) -> None:
        if FREE_THREADED and self.completions.wants_bytes and not self._looks_up and self.life is not Life.CLOSED:
            assert self.loop is not None
            self._looks_up = True
            self.loop.call_later(LOOK, self._look_up)
        if self.stall_watch is not None:
            self.stall_watch(tasks)

    def _look_up(self) -> None:
        """A task lacks bytes, and others may have dropped what this thread made: see `_core.free_threading`."""
        self._looks_up = False
        self.dispatch()

    def on_cancel(self, task: Task) -> None:
        """Let a remote device stop a launched task. (A thread's task cannot be stopped.)"""
        assert task.lane is not None
        if task.lane.device.remote:
            task.lane.device.stop(task)

    def on_overrun(self, task: Task, site: CallSite) -> None:
        """Log the first result that took the tracked bytes above a limit because its charge was too low.

        Not for a task that no line of the user's submitted: the package says it in other words, see `cluster.run`.
        """
        if self._overrun_told:
            return
        self._overrun_told = True
        account = task.scope.account.open
        log.warning(
            f"{task.name}, submitted at {line_of(site)}, was charged {task.cost:,} bytes and made"
            f" {task.cost - task.refund:,}: {account.used:,} bytes are tracked, and the limit is {account.limit:,}."
            " Until they are below it, no task that makes a result is admitted. Declare the bytes by nbytes=, or shape="
            " and dtype="
        )

    def cancel(self, task: Task, by: str) -> bool:
        """Cancel a task and everything that needs it. Returns whether the task had not ended."""
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
    """The lanes of one device, by purpose."""

    compute: list[Lane]
    serial: list[Lane]  # whose tasks run one after the other
    copy: list[Lane]


def _take_device(device: Device) -> None:
    """Mark a device as taken. Raises if it was taken before."""
    if device in _taken:
        raise RuntimeError(
            f"device {device.name!r} was given to a scheduler before, and a device serves only one, even after that has"
            f" closed: make another {type(device).__name__}, or give its name"
        )
    _taken.add(device)
