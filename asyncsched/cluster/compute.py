"""`get` computes a Dask graph, as `dask.threaded.get` does, on a scheduler's streams and within its bounds."""

from __future__ import annotations

import contextvars
from asyncio import CancelledError
from collections.abc import Iterable, Mapping
from queue import SimpleQueue
from threading import get_ident
from typing import Any, Final, NoReturn

from dask.callbacks import local_callbacks, unpack_callbacks
from dask.core import flatten
from dask.local import finish_task, get_sync, nested_get, start_state_from_dask
from dask.order import order
from dask.system import CPU_COUNT

from ..background import Kept, Using
from ..devices.contract import Device, in_stream_thread
from ..devices.host.memory import HostDevice
from ..errors import ImplicitBarrierError, TaskCancelled
from ..runtime.context import ambient
from ..runtime.life import Life, running_loop
from ..runtime.loops import answered, ask_async
from ..runtime.runtime import Runtime
from ..runtime.statistics import Statistics
from ..scheduler import Scheduler
from .graph import Sizes, in_order
from .run import Run

_UNKNOWN: Final = 4  # the most tasks of unknown size that run at once. A guess

DEFAULTS: Final[dict[str, Any]] = {"device": "cpu", "streams": CPU_COUNT, "max_ops": 128}  # for tiny tasks
_kept: Final = Kept("cluster", DEFAULTS)


def get(dsk: Any, keys: Any, *, on: Scheduler | None = None, callbacks: Any = None, **_: Any) -> Any:
    """Compute a Dask graph on a scheduler of asyncsched's: `dask.config.set(scheduler=asyncsched.cluster.get)`.

    Its tasks run within the scheduler's bounds, in the order of `dask.order`, and results are freed as soon as nothing
    needs them. The size of a result is known from the chunks and dtypes of Dask's arrays, and from results before.
    Memory that a function takes while it runs is known, and charged, only if Dask fused several blocks' tasks.

    The scheduler is `on`. Without it, it is the ambient one, as in `await asyncio.to_thread(x.compute)` inside `async
    with asc.Scheduler() as s` and its scopes, which can cancel the graph. Without that, it is one with a loop in a
    thread of its own and as many streams as Dask has threads; it is started at the first use and kept open, and `using`
    sets its limits. Inside a task (a `compute` within a graph's function) that task computes the graph, one node after
    the other.

    >>> import dask, dask.array as da
    >>> with dask.config.set(scheduler=asc.cluster.get), asc.cluster.using(max_bytes="64 MiB"):
    ...     print(da.ones((4000, 4000), chunks=1000).sum().compute())
    16000000.0

    A KeyboardInterrupt while it waits cancels tasks that have not begun, and is raised at once.

    Args:
        dsk: a graph, or an expression or collection of Dask's that has one.
        keys: of the wanted results: a key, or lists of keys in lists.
        on: an open scheduler, whose loop runs on another thread.
        callbacks: as for Dask's own schedulers. Other arguments of theirs have no effect.

    Returns: The results, with tuples in place of the lists of `keys`.

    Raises:
        ImplicitBarrierError: on a thread that runs an event loop, which it would block.
        TaskCancelled: if the scope in which it was called was left.
        SchedulerClosed: if the scheduler is closed, or belongs to the parent of this process.
        BaseException: the exception of a task, unchanged.
    """
    if in_stream_thread():
        return get_sync(dsk, keys, callbacks=callbacks)
    runtime = _runtime(on)
    with local_callbacks(callbacks) as active:
        graph = dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__()
        wanted = set(flatten([keys]))
        watchers, failed = Watchers(active, graph) if active else None, True
        try:
            nodes = in_order(graph, wanted)
            if watchers is not None:
                watchers.begin(nodes, wanted)
            device = _device(runtime)
            limit = runtime.ledger.account.limit
            sizes = Sizes(dsk, 0 if limit is None else limit // min(len(device.streams), _UNKNOWN))
            run = Run(runtime, device, nodes, wanted, sizes, contextvars.copy_context(), watchers)
            found = _wait(run, watchers)
            if run.failed is not None:
                _raise(run)
            failed = False
        finally:
            if watchers is not None:
                watchers.finish(failed)
    return nested_get(keys, found)


class using(Using):
    """Set the limits of the scheduler that `get` keeps open: the arguments of `Scheduler`.

    Takes effect when all graphs there have ended. As a context manager it sets back the limits from before at the end.

    >>> with asc.cluster.using(streams=2, max_bytes="64 MiB"):
    ...     asc.cluster.statistics().max_bytes
    67108864

    Args:
        streams: how many tasks run at once; by default as many as Dask's threads, one for each processor.
        limits: `max_ops` (128 by default), `max_bytes` and other arguments of `Scheduler`.

    Raises:
        TypeError, ValueError: for arguments that `Scheduler` refuses; nothing has changed then.
        ImplicitBarrierError: on a thread that runs an event loop, which it would block.
    """

    def __init__(self, *, streams: int | None = None, **limits: Any) -> None:
        super().__init__(_kept, DEFAULTS | {"streams": streams or CPU_COUNT} | limits)


def statistics() -> Statistics:
    """A snapshot of the scheduler that `get` keeps open. If `peak_bytes` is above `max_bytes`, a graph needed more.

    Raises:
        ImplicitBarrierError: on a thread that runs an event loop, which it would block.
    """
    kept = _kept.get()
    return kept.issue(kept.scheduler.statistics)


def _runtime(on: Scheduler | None) -> Runtime:
    """The runtime of the given scheduler, else of the ambient one, else of the one that is kept open."""
    if running_loop() is not None:
        raise ImplicitBarrierError(
            "computing a Dask graph blocks, and an event loop runs on this thread (as in a notebook): use"
            " `await asyncio.to_thread(x.compute)`"
        )
    if on is not None:
        runtime = on._runtime
    elif (here := ambient.get()) is not None:
        runtime = here.runtime
    else:
        return _kept.get().runtime
    if runtime.life is not Life.OPEN or runtime.loop is None or not runtime.loop.is_running():
        runtime.refuse()
    return runtime


def _device(runtime: Runtime) -> Device:
    for device in runtime.devices:
        if isinstance(device, HostDevice):
            return device
    names = ", ".join(device.name for device in runtime.devices)
    raise ValueError(f"a Dask graph needs the CPU, and this scheduler has {names}: list it, as Scheduler([..., 'cpu'])")


def _wait(run: Run, watchers: Watchers | None) -> dict[Any, Any]:
    """Have the loop run a graph, and wait for it. Callbacks are called on this thread meanwhile."""
    assert run.runtime.loop is not None
    try:  # from here on, since an interrupt may come before the wait begins
        answer = ask_async(run.runtime.loop, run.compute, None if watchers is None else watchers.end)
        if watchers is not None:
            watchers.tell_until_end()
        return answered(answer)
    except CancelledError:
        raise TaskCancelled("the graph was cancelled: its scheduler's event loop ended") from None
    except BaseException:
        run.cancel()
        raise


def _raise(run: Run) -> NoReturn:
    """Raise the exception of a task."""
    assert run.failed is not None
    error, run.failed = run.failed, None
    try:
        raise error
    finally:
        del error, run  # the exception holds this frame


class Watchers:
    """Dask's callbacks of one graph (`ProgressBar`, `Profiler`, `Cache`), called on the thread that waits for it.

    They see the same state as with Dask's own schedulers.

    Streams call this object with a key when they begin a task, and with the result, too, when it is there. A task
    begins after its inputs have ended, so the calls come in that order.
    """

    def __init__(self, callbacks: Iterable[Any], graph: Mapping[Any, Any]) -> None:
        self._events: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self._graph = graph
        self._state: dict[str, Any] = {}
        self._finish: list[Any] = []
        callbacks = list(callbacks)
        for start, _, _, _, finish in callbacks:
            if start:
                start(graph)
            self._finish += [finish] if finish else []
        _, self._start_state, self._before, self._after, _ = unpack_callbacks(callbacks)

    def begin(self, nodes: Mapping[Any, Any], wanted: set[Any]) -> None:
        """The graph is about to run."""
        self._sortkey, self._wanted = order(nodes).get, wanted
        self._state |= start_state_from_dask(dict(nodes), keys=list(wanted), sortkey=self._sortkey)
        for told in self._start_state:
            told(self._graph, self._state)

    def __call__(self, key: Any, *made: Any) -> None:
        """A task begins or has ended. On a stream's thread."""
        self._events.put((get_ident(), key, *made))

    def end(self) -> None:
        """No more calls come. On any thread."""
        self._events.put(None)

    def tell_until_end(self) -> None:
        """Call the callbacks until the graph has ended."""
        while (event := self._events.get()) is not None:
            self._tell(*event)

    def _tell(self, thread: int, key: Any, *made: Any) -> None:
        state = self._state
        if not made:
            state["ready"].remove(key)
            state["running"].add(key)
            for told in self._before:
                told(key, self._graph, state)
            return
        finish_task(self._graph, key, state, self._wanted, self._sortkey, delete=False)
        for told in self._after:
            told(key, made[0], self._graph, state, thread)

    def finish(self, failed: bool) -> None:
        """The graph has ended."""
        for told in self._finish:
            told(self._graph, self._state, failed)
