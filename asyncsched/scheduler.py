"""The scheduler: users open it, submit to it and close it."""

from __future__ import annotations

import asyncio
import atexit
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ._arguments import check_int, check_number, format_bytes, parse_bytes
from ._core.ledger import Limits
from ._core.model import Value
from ._instead import OnlyAsync, naming_arguments
from ._interrupts import finaliser
from .devices import select
from .devices.contract import Device
from .errors import SchedulerClosed
from .flow.scope import Submitter
from .flow.window import Window
from .runtime.context import Ambient, enter, find, register
from .runtime.life import OPEN, Life
from .runtime.runtime import Runtime
from .runtime.stall import StallWatch
from .runtime.statistics import Load, Statistics, load_of, statistics_of, tracked_bytes_of
from .runtime.waiting import abort, close_in_order, finish
from .tensors.handles import Handle, runtime_of

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ._core.instrument import Instrument
    from .flow.pipeline.pipeline import Order, Pipeline, Source
    from .pictures.graph import TaskGraph

T = TypeVar("T")


def current_scheduler() -> Scheduler:
    """The scheduler that functions use here if none is given: the innermost whose block this is in, or else the only
    one that is open on this event loop. In a server it is that of `Serving`, also in the application's lifespan.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         return asc.current_scheduler() is s
    >>> asc.run(main)
    True

    Raises:
        SchedulerClosed: if there is none, or there are several.
    """
    runtime = find()
    scheduler = None if runtime.scheduler is None else runtime.scheduler()
    if not isinstance(scheduler, Scheduler):
        raise SchedulerClosed(f"the scheduler of this block is gone: open one by {OPEN}")
    return scheduler


async def open(device: str | Device | Sequence[str | Device] = "auto", **limits: Any) -> Scheduler:
    """Open a scheduler, for notebooks: `s = await asc.open()` in one cell, tensors in the next ones.

    Keep it as long as you use its tensors: neither they nor its pipelines, scopes and instruments keep it. `await
    s.aclose()` closes it. It also closes when nothing refers to it any more (as when the cell that opens it runs
    again), and when the interpreter ends: these two do not wait for running tasks. In programs use `async with
    asc.Scheduler()`.

    >>> async def main():
    ...     s = await asc.open("cpu")
    ...     print(await asc.arange(3).sum().item())
    ...     await s.aclose()
    >>> asc.run(main)
    3

    Args:
        device, limits: the arguments of `Scheduler`.
    """
    scheduler = Scheduler(device, **limits)
    await scheduler._runtime.open()
    register(scheduler._runtime)
    atexit.register(_end, weakref.ref(scheduler._runtime))
    return scheduler


def _end(reference: weakref.ref[Runtime]) -> None:
    runtime = reference()
    if runtime is not None and runtime.life is Life.OPEN:
        runtime.close()


class Scheduler(Submitter, OnlyAsync):
    """Schedules tensor operations onto the streams of one or several devices, under limits.

    Use it as `async with Scheduler() as s`. Leaving normally waits for everything submitted. Leaving by an exception
    drops the pending tasks, and waits for the running ones. A scheduler belongs to the event loop on which it was
    opened: on another loop or thread, submitting and waiting raise an error that says so.

    >>> async def main():
    ...     async with asc.Scheduler("cpu", max_ops=64, max_bytes="256 MiB") as s:
    ...         x = await s.put(np.arange(6.0).reshape(2, 3))
    ...         y = x @ x.T + 1
    ...         print(y.shape, await y.numpy())
    >>> asc.run(main)
    (2, 2) [[ 6. 15.]
     [15. 51.]]

    Args:
        device: "auto" (CUDA if usable, else the CPU), "cpu", "cuda", "cuda:1", a `Device`, or a list of them. A
            `Device` serves only one scheduler, once.
        streams: compute streams for each device given by name (a `Device` is made with its own). By default 2 on CUDA;
            on the CPU one for each processor that the process may use, by affinity and the container's quota, at most
            8. On several streams, independent tasks overlap (`resource=` orders tasks that must not), large rows are
            cut into parts for idle streams, and BLAS gets its share of the processors while more than one stream runs.
            With 1 on the CPU, everything runs in the order of submission, on all BLAS threads, and nothing is cut.
        max_ops: the most tasks in flight; None for no bound.
        max_bytes: the most tracked bytes, as an int or text such as "256 MiB"; None for no bound. "auto" is half of the
            memory that the machine, the container or `ulimit -v` lets this process use; with a CUDA device it is 80% of
            the memory that was free there at opening, less the share of cuBLAS. With several devices it is the
            smallest: see `statistics().max_bytes`.
        max_pending: the most tasks in the backlog; None for no bound.
        stall_timeout: seconds without progress after which a task that waits for bytes in vain raises
            SchedulerStalled, though it is no known deadlock; None for never.
        instruments: called at the scheduler's events, see `asyncsched.observe`.

    Raises:
        ValueError, TypeError: for an argument out of its range.
        RuntimeError: at opening, for a `Device` that was given to a scheduler before.
    """

    @naming_arguments
    def __init__(
        self,
        device: str | Device | Sequence[str | Device] = "auto",
        *,
        streams: int | None = None,
        max_ops: int | None = 64,
        max_bytes: int | str | None = "auto",
        max_pending: int | None = 65_536,
        stall_timeout: float | None = None,
        instruments: Iterable[Instrument] = (),
    ) -> None:
        check_int("streams", streams, none="the default")
        check_int("max_ops", max_ops, none="no bound")
        check_int("max_pending", max_pending, none="no bound")
        stall_timeout = check_number("stall_timeout", stall_timeout, "seconds", none="never")
        auto = max_bytes == "auto"
        limit = None if auto or max_bytes is None else parse_bytes(max_bytes, "max_bytes", none="no bound")
        runtime = Runtime(select(device, streams), Limits(max_ops, limit, max_pending), auto_bytes=auto)
        super().__init__(runtime)
        runtime.scheduler = weakref.ref(self)
        runtime.stall_watch = StallWatch(runtime, stall_timeout).update
        for instrument in instruments:
            self.add_instrument(instrument)
        self._link: Ambient | None = None  # set while inside the block

    async def __aenter__(self) -> Self:
        runtime = self._runtime
        if runtime.loop is not None:
            raise SchedulerClosed("a scheduler can be opened only once: make another")
        await runtime.open()
        register(runtime)
        self._link = enter(runtime, runtime.engine.root, asyncio.current_task())
        return self

    def _leave(self) -> None:
        """End the block: it is not the ambient scheduler any more."""
        if self._link is not None:
            self._link.leave()
            self._link = None

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave()
        if error is None:
            await self.aclose()
        else:
            await abort(self._runtime, f"the scheduler, which was left by {type(error).__name__}")
            finish(self._runtime.engine.root, "the scheduler", error)

    async def aclose(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # it ends in order, too
        """Refuse new work, wait for everything submitted, and close. A second call also waits, or does nothing.

        Cancelling it drops the pending tasks and waits for the running ones.

        Args:
            timeout: the most seconds to wait.

        Raises:
            ExceptionGroup: of the failures that nobody has seen.
            TimeoutError: names the bodies that still run. The pending tasks have been dropped, and nothing more is
                waited for.
        """
        await close_in_order(self._runtime, timeout)

    @naming_arguments
    def window(self, depth: int) -> Window:
        """Bound the run-ahead of a loop.

        `async with window:` around its body lets at most `depth` iterations be in flight. If in doubt, use 2.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         window, x = s.window(2), await s.put(np.ones(3))
        ...         for _ in range(5):
        ...             async with window:  # the third waits for the first
        ...                 x = x * 2
        ...         return await x
        >>> asc.run(main)
        array([32., 32., 32.])
        """
        return Window(self._runtime, depth)

    @naming_arguments
    def pipeline(
        self, source: Source[T], *, buffer: int | str | None = None, order: Order | None = None
    ) -> Pipeline[T]:
        """Read, map, batch and move items ahead of a consumer.

        `s.pipeline(source).map(fn, workers=4).batch(64).to_device(depth=2)`, then `async with pipe.open() as items`.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         pipe = s.pipeline(range(6)).map(lambda i: i * i, workers=2).batch(3)
        ...         async with pipe.open() as batches:
        ...             return [batch.tolist() async for batch in batches]
        >>> asc.run(main)
        [[0, 1, 4], [9, 16, 25]]

        Args:
            source: a list, tuple, range or array (read on the event loop); any other iterable, or an object with a
                length and items by index, as PyTorch's datasets have (read in a thread); an async iterable; or a
                function of the epoch's number, from 0, that returns one of these. The source is read ahead: do not
                write to arrays that it has returned. An iterator with a `close` or `aclose` is closed at the end, as
                generators are.
            buffer: how many items may be read ahead of the first stage: by default 16, and 64 of a list, tuple, range
                or array, which has them in memory anyway. They are on the host, and the scheduler's limit on bytes does
                not hold for them. If they are large, give a size, as "64 MiB": then as many as fit in it, by the
                largest so far, at least one and at most 16.
            order: the indices of the items to read, in order, for a source with a length and items by index: an
                iterable, as PyTorch's samplers are, or a function of the epoch's number that returns one. To shuffle
                everything, use `lambda epoch: np.random.default_rng((seed, epoch)).permutation(len(source))`. A resumed
                epoch calls it again, so it must return the same for an epoch.
        """
        from .flow.pipeline.pipeline import make_pipeline  # imports multiprocessing, which few programs need

        return make_pipeline(self._runtime, source, buffer, order)

    def as_executor(self) -> Executor:
        """This scheduler as an executor of `concurrent.futures`. Its calls are tasks within the scheduler's bounds.

        On several streams calls overlap, as on the threads of a pool; for functions that must not, use `call` with
        `resource=`.

        It is for libraries that take an executor, such as Dask: `await asyncio.to_thread(graph.compute,
        scheduler=s.as_executor())`. Code that blocks until a future is done must run on another thread; on the loop's,
        `future.result()` raises ImplicitBarrierError. It cannot be asyncio's default executor: asyncio accepts only a
        ThreadPoolExecutor, and looks up host names on it, which would wait behind your tasks.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         loop = asyncio.get_running_loop()
        ...         return await loop.run_in_executor(s.as_executor(), sum, [1, 2, 3])
        >>> asc.run(main)
        6
        """
        from .flow.executor import SchedulerExecutor

        return SchedulerExecutor(self, self._runtime)

    def add_instrument(self, instrument: Instrument) -> None:
        """Add an instrument: it is called at this scheduler's events until it is removed or the scheduler closes.

        Raises:
            TypeError, ValueError: for an object that is no Instrument, or was added before.
            SchedulerClosed: if the scheduler closes, or has closed.
            RuntimeError: on another thread than that of its event loop.
        """
        self._runtime.add_instrument(instrument)

    def remove_instrument(self, instrument: Instrument) -> None:
        """Remove an instrument.

        Raises:
            ValueError: if it is not there: it was removed, or it raised.
        """
        self._runtime.instruments.remove(instrument)

    def statistics(self) -> Statistics:
        """A snapshot of counts and bytes, including all drops and completions so far.

        >>> async def main():
        ...     async with asc.Scheduler("cpu", max_bytes="1 MiB") as s:
        ...         x = await s.put(np.ones(1000))
        ...         found = s.statistics()
        ...         print(found.tasks_completed, found.bytes_retained, found.max_bytes)
        >>> asc.run(main)
        1 8000 1048576
        """
        return statistics_of(self._runtime)

    @property
    def tracked_bytes(self) -> int:
        """Tracked bytes now: `bytes_in_flight + bytes_retained` of `statistics()`, in less time.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         x = await s.put(np.ones(1000))
        ...         print(s.tracked_bytes)
        >>> asc.run(main)
        8000
        """
        return tracked_bytes_of(self._runtime)

    def load(self) -> Load:
        """How much work waits and how fast it ends, for admission control and health checks.

        Takes a few microseconds, however long the backlog is.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         load = s.load()
        ...         print(load.tasks_pending, load.bytes_tracked, load.estimated_wait)
        >>> asc.run(main)
        0 0 0.0
        """
        return load_of(self._runtime)

    def explain(self, handle: Handle[Any] | None = None) -> str:
        """Why a task or tensor is not done, in words.

        Names what it waits for, and what that waits for, down to a running task or to the holders of the bytes, each
        with the line that submitted it. For a task that is done: where the result is, or why it failed.

        Never waits, and changes nothing; a failure does not count as seen. Of a long chain only the two ends are shown.
        It takes a few milliseconds, or up to a hundred with 100,000 pending tasks. If bytes are missing, it looks for
        their holders for about half a second, while the event loop stands still.

        >>> async def main():
        ...     async with asc.Scheduler("cpu", max_ops=1) as s:
        ...         gate = threading.Event()
        ...         slow = await s.submit(gate.wait, name="slow")
        ...         print(s.explain(s.submit_nowait(divmod, 7, 2)))
        ...         gate.set()
        >>> import threading
        >>> asc.run(main)
        divmod #1 (<doctest ...>:5 in main) is pending
          which waits for a slot: 1 of 1 tasks (max_ops) are in flight, the oldest: slow #0 (<doctest ...>:4 in main)
          which runs on cpu stream 0...

        Args:
            handle: a tensor or task of this scheduler; None for all that are awaited, or, if none is, for the oldest
                unfinished task.

        Raises:
            TypeError, ValueError: for anything else, and for a handle of another scheduler.
            RuntimeError: on a thread other than the event loop's.
        """
        from .runtime.explain import explain, explain_all

        runtime = self._runtime
        runtime.check_waiting()
        runtime.engine.drain()
        return explain_all(runtime) if handle is None else explain(runtime, self._value_of(handle))

    def graph(self, *handles: Handle[Any]) -> TaskGraph:
        """The unfinished tasks and their dependencies as a graph; in a notebook it is a picture.

        The graph includes finished results that an unfinished task reads. Never waits, and changes nothing; with
        100,000 tasks it takes a second. A picture of more than 60 tasks draws equal ones once, with their number, and
        says what it leaves out.

        >>> async def main():
        ...     async with asc.Scheduler("cpu", max_ops=1) as s:
        ...         gate = threading.Event()
        ...         s.submit_nowait(gate.wait, name="slow")
        ...         x = s.submit_nowait(np.ones, 3, shape=3, dtype=float)
        ...         y = (x + 1).sum()
        ...         print(s.graph(), s.graph(y))
        ...         s.graph(y).save(os.devnull)  # as SVG
        ...         gate.set()
        >>> import os, threading
        >>> asc.run(main)
        TaskGraph(4 tasks: 1 launched, 3 pending) TaskGraph(3 tasks: 3 pending)

        Args:
            handles: tensors and tasks, to be drawn with their dependencies; none for all unfinished tasks.

        Raises:
            TypeError, ValueError: for anything else, and for a handle of another scheduler.
            RuntimeError: on a thread other than the event loop's.
        """
        from .runtime.explain import unfinished

        runtime = self._runtime
        runtime.check_waiting()
        runtime.engine.drain()
        return unfinished(runtime, [self._value_of(handle) for handle in handles] or None)

    def _value_of(self, handle: object) -> Value:
        """The value of a handle, which must belong to this scheduler."""
        if not isinstance(handle, Handle):
            raise TypeError(f"pass a tensor or a task, as returned by `submit`, not {type(handle).__name__}")
        if runtime_of(handle._value) is not self._runtime:
            raise ValueError(f"{handle!r} belongs to another scheduler: ask that one")
        return handle._value

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices, in the order given."""
        return tuple(self._runtime.devices)

    def __repr__(self) -> str:
        return repr(self._runtime)

    def _repr_html_(self) -> str:
        from .pictures.record import table, used

        runtime, ledger = self._runtime, self._runtime.ledger
        if runtime.loop is None or runtime.life is Life.CLOSED:
            return table(repr(self), [])
        rows = [
            ("devices", [device.name for device in runtime.devices]),
            ("pending", used(ledger.pending, ledger.limits.max_pending)),
            ("in flight", used(ledger.in_flight, ledger.limits.max_ops)),
            ("tracked bytes", used(ledger.account.used, ledger.account.limit, format_bytes)),
        ]
        return table("Scheduler", rows)

    @finaliser()
    def __del__(self) -> None:
        runtime = getattr(self, "_runtime", None)
        if runtime is not None and runtime.life in (Life.OPEN, Life.CLOSING):
            told = f"{self!r} was never closed: use `async with`"
            if runtime.life is Life.OPEN:
                runtime.dropped()
            else:
                runtime.stop_devices()
            warnings.warn(told, ResourceWarning, source=self, stacklevel=2)
