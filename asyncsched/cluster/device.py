"""A cluster of Dask's as a device: its workers are the streams, and results stay where they were computed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from typing import Any
from uuid import uuid4

import numpy as np

from .._arguments import check_int
from .._core.completions import Completions
from .._core.model import Lane, Task, Value
from ..devices.contract import Job
from ..errors import AsyncSchedError
from ..ops.program import Program, ref
from .memory import DaskMemory, Remote, standing
from .stream import DaskStream
from .work import Fused, Work, describe, hold, over, perform, view_of

# Of the workers' memory, where no max_bytes is given. The rest is for what is not tracked: copies that Dask makes on
# other workers of what is read there, work in progress, Python.
SHARE_OF_MEMORY = 0.5
MOST_PER_WORKER = 16  # a guess: enough that a worker is busy while the next tasks travel
DEEPEST = 512  # results that one comes from, the longest way: then it is brought here and put anew
BROUGHT_WHOLE = 256 * 1024  # bytes of a result that is brought for the sake of a part of it
LOOK_EVERY, SECONDS_PER_LOOK = 1.0, 2e-3  # seconds between two looks at where the workers are, and for each of them
# Guesses, of the same kind as Dask's own: what decides between a busy worker that has the data, and an idle one.
_BYTES_PER_SECOND, _SECONDS_PER_TASK = 100e6, 1e-3
_LATEST = 0.3  # the part of the last task of a name in what the next is expected to take
_NAMES = 4096


class ResultLost(AsyncSchedError):
    """A result that was on a worker is gone, and Dask cannot compute it again."""


class DaskDevice:
    """The workers of a cluster of Dask's, each as a stream.

    Operations and callables become tasks of Dask's, on the worker that has the data if it is not busy, else on another.
    What is awaited is brought here. The limits are those of the scheduler: tasks in flight (and `most_per_worker`), and
    bytes of results on all workers. Needs `pip install "asyncsched[cluster]"`, here and on the workers::

        device = asc.cluster.DaskDevice("tcp://scheduler:8786", workers=4)
        async with asc.Scheduler(device, max_ops=256) as s:
            x = await s.put(array)
            y = x @ x + 1                   # computed on a worker, and it stays there
            total = await y.sum().item()    # a number travels

    An operation takes milliseconds on the way: `s.capture` makes one task of a step, and `s.submit(fn, ...)` of a
    function.

    *Workers may die.* What is lost Dask computes again, from what was put: that is kept with Dask's scheduler for as
    long as anything that came from it is held. So no death of workers loses anything, and data larger than the
    scheduler's memory is not to be put, but read by the tasks themselves. So that what is kept does not grow with a
    training, a result that comes from many others (`DEEPEST`, one from the other) is brought here and put anew. A task
    during which several workers died (Dask's `allowed-failures`) fails with Dask's `KilledWorker`. If the scheduler
    dies all is lost, and awaiting it raises `ResultLost`.

    Bytes that Dask copies from worker to worker are not tracked; nor are the context variables of who submits a
    callable known to it.

    Args:
        cluster: the scheduler's address; or a client. An asynchronous one of this loop's is used as it is and left
            open, so that results can be read after the scheduler of ours is closed; of another the address is taken.
        workers: names or addresses of those to use, or how many to wait for; default all that are there when it opens.
            One that joins later gets no task of its own. When one is gone, others do its tasks until it is back.
        most_per_worker: most tasks that Dask is told of at a time for a worker.
        name: for messages.

    Raises:
        OSError: when it is opened, if nobody answers at that address.
        RuntimeError: when it is opened, if there are no workers, or not those asked for.
    """

    kind = "dask"
    xp: Any = np
    dlpack = (1, 0)
    inline = False
    remote = True
    owns_captures = False
    rest: Callable[[], None] | None = None

    def __init__(
        self,
        cluster: Any,
        workers: int | Sequence[Any] | None = None,
        *,
        most_per_worker: int = MOST_PER_WORKER,
        name: str = "dask",
    ) -> None:
        check_int("most_per_worker", most_per_worker)
        self.name = name
        self.streams: list[DaskStream] = []
        self.client: Any = None
        self._given = cluster
        self._wanted = workers
        self._most = most_per_worker
        self._found: dict[Any, dict[str, Any]] = {}  # the workers by name, as Dask described them
        self._addresses: dict[Any, str] = {}  # of all workers, by name: where each is, or was last
        self._seconds: dict[str, float] = {}  # what tasks take, by name
        self._look_at = 0.0  # when to look for them next
        self._running: set[asyncio.Task[Any]] = set()
        self._stopped: list[Any] = []  # futures of tasks to be ended soon
        self._ending: asyncio.Task[None] | None = None

    # -- opening and closing ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Load Dask's client, which takes a second, and what it asks of this machine."""
        try:
            import_module("distributed.versions").get_versions()  # which starts a process, and would on the loop
        except ImportError as error:
            raise RuntimeError('a cluster needs Dask: pip install "asyncsched[cluster]"') from error

    async def connect(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._look_at = self._loop.time() + LOOK_EVERY
        self.client = await self._connected()
        if isinstance(self._wanted, int):
            await self.client.wait_for_workers(self._wanted)
        found = await self._look()
        if isinstance(self._wanted, int) or self._wanted is None:
            self._found = dict(itertools.islice(found.items(), self._wanted))
        else:
            names = {self._addresses[name]: name for name in found} | {name: name for name in found}
            if missing := [wanted for wanted in self._wanted if wanted not in names]:
                raise RuntimeError(f"no workers {missing} in this cluster: it has {list(found)}")
            self._found = {names[wanted]: found[names[wanted]] for wanted in self._wanted}
        if not self._found:
            raise RuntimeError("the cluster has no workers yet: workers=2 waits for two")

    async def _look(self) -> dict[Any, dict[str, Any]]:
        """The workers by name, as Dask describes them; notes where each is."""
        known = (await self.client.scheduler.identity(n_workers=-1))["workers"]
        self._addresses.update({worker["name"]: address for address, worker in known.items()})
        return {worker["name"]: worker for worker in known.values()}

    def _look_again(self) -> None:
        """Now and then, while there is work: a worker that died comes back under its name, at another address."""
        if self._loop.time() > self._look_at:
            self._look_at = self._loop.time() + LOOK_EVERY + SECONDS_PER_LOOK * len(self._addresses)
            self.keep(self._look())

    async def _connected(self) -> Any:
        client_of: Any = import_module("distributed").Client
        given = self._given
        if isinstance(given, client_of):
            if given.asynchronous and given.loop.asyncio_loop is self._loop:
                return given
            given = given.scheduler.address
        return await client_of(given, asynchronous=True)

    def default_bytes(self) -> int | None:
        """A share of all the workers' limits; no limit if one has none."""
        limits = [worker["memory_limit"] for worker in self._found.values()]
        return int(sum(limits) * SHARE_OF_MEMORY) if all(limits) else None

    def open(self, completions: Completions, max_bytes: int | None) -> None:
        self.memory = DaskMemory(completions)
        self.streams = [DaskStream(f"{self.name} worker {name}", self, name, self._most) for name in self._found]
        self.copier = DaskStream(f"{self.name} copies in", self, None, self._most * len(self.streams))
        self._turns = itertools.cycle(self._found)

    def close(self) -> None:
        """Nothing to stop: the workers are not ours."""

    async def disconnect(self) -> None:
        client, given = self.client, self._given
        if client is not None and client is not given:
            await client.close()

    # -- the contract -------------------------------------------------------------------------------------------

    def place(self, task: Task) -> Lane:
        """Where it would begin first: what is missing there has to travel, and what waits there goes before it."""
        missing = dict.fromkeys(task.lanes, 0)
        for value in task.inputs:
            found = standing(value)
            for lane in task.lanes:
                if not isinstance(found, Remote) or found.stream is not lane.stream:
                    missing[lane] += value.owner.nbytes

        def begins(lane: Lane) -> float:
            return missing[lane] / _BYTES_PER_SECOND + float(lane.stream.expected)

        return min(task.lanes, key=begins)

    def stop(self, task: Task) -> None:
        """Have Dask drop a task. One that runs goes on: its worker says when its thread is free."""
        found = None if task.value is None else task.value.block
        if isinstance(found, Remote) and found.future is not None and not found.over.is_set():
            if not self._stopped:
                self._ending = self.keep(self._stop_all())
            self._stopped.append(found.future)

    async def bring(self, array: Any) -> Any:
        if isinstance(array, Remote):
            future, views = array.future, array.views
            if views and array.nbytes > BROUGHT_WHOLE:
                future = self.send("view", Work(np.array, (ref(0),), {}, (views,)), [future], array.stream.worker)
                views = ()
            array = view_of(await self._gathered(future), views)
            if isinstance(array, np.ndarray) and array.flags.writeable and array.flags.owndata:
                return array
        return np.array(array) if isinstance(array, np.ndarray) else array

    def fetch(self, array: Any) -> Any:
        """As `bring`. Blocks the calling thread, which is never the loop's."""
        return asyncio.run_coroutine_threadsafe(self.bring(array), self._loop).result()

    def reclaim(self, value: Value) -> None:
        self.memory.reclaim(value)

    def capture(self, program: Program, inputs: int) -> Callable[..., list[Any]]:
        return Fused(program)

    def adopt(self, source: Any) -> Any:
        raise TypeError(f"this {type(source).__name__} is on a device: copy the array to the host first")

    def run_here(self, task: Task) -> None:
        raise AssertionError("nothing runs in this process")

    def offload(self, job: Job) -> None:
        raise AssertionError("what leaves a cluster is brought")

    # -- what a stream needs ------------------------------------------------------------------------------------

    def keep(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine to its end."""
        running = self._loop.create_task(coroutine)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running

    def next_worker(self) -> Any:
        """The worker for the next array that is put."""
        return next(self._turns)

    def send(self, name: str, work: Work, operands: Sequence[Any], worker: Any) -> Any:
        """Give Dask a task. Returns its future."""
        return self._submitted(name, worker, perform, work, *operands)

    def _submitted(self, name: str, worker: Any, *call: Any) -> Any:
        import dask

        self._look_again()
        # Dask would rather not have data in a graph. That is where it is kept on purpose, see the class.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 PiB"}):
            return self.client.submit(
                *call,
                key=f"{name}-{uuid4().hex}",
                workers=[
                    self._addresses[worker]
                ],  # not by name: one that is gone has none, and Dask takes it for a host
                allow_other_workers=True,
                pure=False,
            )

    def expected(self, name: str) -> float:
        """Seconds that a task of this name takes on its worker."""
        return self._seconds.get(name, _SECONDS_PER_TASK)

    def took(self, name: str, seconds: float) -> None:
        """A task did, with its way there and back."""
        if len(self._seconds) >= _NAMES:
            self._seconds.clear()
        self._seconds[name] = seconds * _LATEST + self._seconds.get(name, seconds) * (1 - _LATEST)

    async def outcome(self, future: Any, task: Task) -> BaseException | None:
        """Wait until a task has ended. Returns why it failed, if it did."""
        error: BaseException | None = await future.exception()
        if error is not None:
            return error.with_traceback(await future.traceback())
        if not future.cancelled():
            return None
        if task.cancelled:
            if self._ending is not None:
                await asyncio.wait([self._ending])
            return None
        return _lost(task.name)

    async def describe(self, future: Any) -> tuple[Any, Any, bool, int]:
        """Shape, dtype, whether in C order, and bytes of a result."""
        found: tuple[Any, Any, bool, int] = await self._gathered(self.client.submit(describe, future, pure=False))
        return found

    async def renewed(self, name: str, remote: Remote) -> Any:
        """The future to hold a result by: another if it comes from so many that Dask is to forget them."""
        if remote.depth < DEEPEST:
            return remote.future
        remote.depth = 0
        anew = self._submitted(
            name, remote.stream.worker or self.next_worker(), hold, await self._gathered(remote.future)
        )
        await anew.exception()
        return anew

    async def _gathered(self, future: Any) -> Any:
        from distributed.client import FutureCancelledError

        try:
            return (await self.client.gather([future]))[0]
        except FutureCancelledError as error:
            raise _lost(str(future.key).rpartition("-")[0]) from error

    async def _stop_all(self) -> None:
        """Have Dask drop those that were stopped in this turn of the loop, and wait until no worker runs one."""
        futures, self._stopped = self._stopped, []
        keys = [future.key for future in futures]
        await self.client.cancel(futures)
        await self.client.run(over, keys, on_error="ignore")

    def __repr__(self) -> str:
        return self.name


def _lost(name: str) -> ResultLost:
    return ResultLost(
        f"the result of {name!r} is gone from the cluster, and cannot be computed again: the connection to Dask's"
        " scheduler ended, it was restarted, or somebody else cancelled the task there"
    )
