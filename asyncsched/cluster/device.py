"""A cluster of Dask's as a device: its workers are the streams, and results stay where they were computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .._arguments import check_int
from .._core.completions import Completions
from .._core.model import Lane, Task
from ..devices.contract import RemoteDevice
from ..ops.program import Program, ref
from ..runtime.loops import answered, ask_async
from .card import on_host
from .connection import Choice, Connection, Workers, load
from .memory import CARDS_GRANULE, DaskMemory, Remote, standing
from .stream import DaskStream, Durations
from .work import Fused, Work, copied, view_of

# Of the workers' memory, where no max_bytes is given. The rest is for what is not tracked: copies that Dask makes on
# other workers of what is read there, work in progress, Python.
SHARE_OF_MEMORY = 0.5
MOST_PER_WORKER = 32  # a guess: enough that a worker is busy while the next tasks travel
BROUGHT_WHOLE = 256 * 1024  # bytes of a result that is brought for the sake of a part of it
_BYTES_PER_SECOND = 100e6  # a guess, as Dask's own: for choosing between a busy worker with the data, and an idle one


class DaskDevice(RemoteDevice):
    """The workers of a cluster of Dask's, each as a stream.

    Operations and callables become tasks of Dask's, on the worker that has the data if it is not busy, else on another.
    What is awaited is brought here. The limits are those of the scheduler: tasks in flight (and `most_per_worker`), and
    bytes of results on all workers. Needs `pip install "asyncsched[cluster]"`, here and on the workers::

        device = asc.cluster.DaskDevice("tcp://scheduler:8786", workers=4)
        async with asc.Scheduler(device, max_ops=256) as s:
            x = await s.put(array)
            y = x @ x + 1                   # computed on a worker, and it stays there
            total = await y.sum().item()    # a number travels

    An operation takes milliseconds on the way. Operations issued in one turn of the event loop, each of which alone
    reads the one before, travel as one task of Dask's, and so do tiny ones, up to 32 with results of 1 KiB; `s.capture`
    makes one of a step, `s.submit(fn, ...)` of a function.

    *Workers may die.* What is lost Dask computes again, from what was put: that is kept with Dask's scheduler for as
    long as anything that came from it is held. So no death of workers loses anything, and data larger than the
    scheduler's memory is not to be put, but read by the tasks themselves. So that what is kept does not grow with a
    training, a result that comes from many others (128, one from the other) is brought here and put anew. A task
    during which several workers died (Dask's `allowed-failures`) fails with Dask's `KilledWorker`. If the scheduler
    dies all is lost, and awaiting it raises `ResultLost`.

    Bytes that Dask copies from worker to worker are not tracked; nor are the context variables of who submits a
    callable known to it.

    *Workers with cards*, started with Dask's resource `GPU=1`, compute with CuPy. Results stay on their cards, and what
    is awaited becomes NumPy's on the worker. Then it is for Dask to choose among them, by where the data is, and the
    bytes that are limited are those of the cards::

        device = asc.cluster.DaskDevice("tcp://scheduler:8786", gpu=True)  # those that have the resource

    Args:
        cluster: the scheduler's address; or a client. An asynchronous one of this loop's is used as it is and left
            open, so that results can be read after the scheduler of ours is closed; of another the address is taken.
        workers: names or addresses of those to use, or how many to wait for; default all that are there when it opens.
            When one is gone, others do its tasks until it is back, or (unless they were named) another has joined in
            its place; when all are gone, tasks wait for one. Who joins besides gets no task of its own.
            (Dask's `LocalCluster` starts no other for one that is gone for 15 s, by its option
            `distributed.deploy.lost-worker-timeout`.)
            With cards they are those that have to be there: Dask chooses among all that have the resource.
        most_per_worker: most tasks that Dask is told of at a time for a worker. With more, and a larger `max_ops`, a
            burst is fewer graphs: one of 1,000 functions takes two thirds of the time with 500 and 1,000.
        chunksize: most functions that go to a worker as one task of Dask's, of those that are issued in one turn of the
            event loop, with shape= and dtype= that give 1 KiB at most. For functions that take less than a millisecond:
            Dask takes longer for each. They end together; so none of them may wait for the end of another, or for what
            follows from that. Where one raises, those that went with it are called again, each alone, and one that was
            cancelled may still be called.
        gpu: True takes the workers that were started with Dask's resource `GPU=1`, and runs tasks on their cards, with
            CuPy; False runs them on NumPy; by default the former if all the workers chosen have the resource.
        name: for messages.

    Raises:
        OSError: when it is opened, if nobody answers at that address.
        RuntimeError: when it is opened, if there are no workers, or not those asked for; if some have `GPU=1` and
            others have not; or if one has it, and no card that CuPy can use.
    """

    kind = "dask"
    xp: Any = np
    dlpack: tuple[int, int] = (1, 0)
    remote = True

    def __init__(
        self,
        cluster: Any,
        workers: int | Sequence[Any] | None = None,
        *,
        most_per_worker: int = MOST_PER_WORKER,
        chunksize: int = 1,
        gpu: bool | None = None,
        name: str = "dask",
    ) -> None:
        check_int("most_per_worker", most_per_worker)
        check_int("chunksize", chunksize)
        self.name = name
        self.streams: list[DaskStream] = []
        self.connection: Connection = Connection(cluster)
        self._choice = Choice(workers, gpu)
        self._most = most_per_worker
        self._chunksize = chunksize
        self._workers: Workers = {}
        self._cards: dict[Any, int] = {}

    # -- opening and closing ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        load()

    async def connect(self) -> None:
        self._workers = await self.connection.open(self._choice)
        if self.connection.gpu:
            self._cards = await self.connection.cards(self._workers)
            self.xp = None  # the workers' CuPy, which need not be installed here

    def default_bytes(self) -> int | None:
        """A share of all the workers' limits, and of what is free on their cards; no limit if one has none."""
        limits = [worker["memory_limit"] for worker in self._workers.values()]
        found = [sum(limits)] if all(limits) else []
        if self._cards:
            found.append(sum(self._cards.values()))
        return int(min(found) * SHARE_OF_MEMORY) if found else None

    def open(self, completions: Completions, max_bytes: int | None) -> None:
        self.memory: DaskMemory = DaskMemory(completions, CARDS_GRANULE if self._cards else 1)
        shared, names = (self.connection, self.memory, Durations()), list(self._workers)
        self.streams = [
            DaskStream(f"{self.name} worker {name}", *shared, [name], self._most, self._chunksize) for name in names
        ]
        self.serial: list[DaskStream] = [
            DaskStream(f"{stream.name}, one by one", *shared, [stream.worker], 1) for stream in self.streams
        ]
        self.copier: DaskStream = DaskStream(f"{self.name} copies in", *shared, names, self._most * len(names))

    async def disconnect(self) -> None:
        await self.connection.close()

    # -- the contract -------------------------------------------------------------------------------------------

    def place(self, task: Task) -> Lane:
        """The lane on which it would begin first: the inputs that its worker lacks have to travel there, and the tasks
        that the worker has already go first."""
        missing = dict.fromkeys(task.lanes, 0)
        for value in task.inputs:
            found = standing(value)
            for lane in task.lanes:
                if not isinstance(found, Remote) or found.home != lane.stream.worker:
                    missing[lane] += value.owner.nbytes
        return min(task.lanes, key=lambda lane: missing[lane] / _BYTES_PER_SECOND + float(lane.stream.expected))

    def stop(self, task: Task) -> None:
        """Have Dask drop a task, unless it is small. One that runs goes on: its worker says when its thread is free."""
        found = None if task.value is None else task.value.block
        call = found.call if isinstance(found, Remote) and not found.over.is_set() else None
        if call is not None and call.future is not None and not call.small:
            self.connection.stop(call.future)

    async def bring(self, array: Any) -> Any:
        if isinstance(array, Remote):
            call, views = array.call, array.views
            assert call is not None
            if views and array.nbytes > BROUGHT_WHOLE:
                work = Work(copied, (ref(0),), {}, (0,), (views,), gpu=self.connection.gpu)
                call, views = self.connection.submit("view", array.home, work, [call]), ()
            array = view_of(on_host(await self.connection.gathered(call)), views)
            if isinstance(array, np.ndarray) and array.flags.writeable and array.flags.owndata:
                return array
        return np.array(array) if isinstance(array, np.ndarray) else array

    def fetch(self, array: Any) -> Any:
        """As `bring`. Blocks the calling thread, which is never the loop's."""
        return answered(ask_async(self.connection.loop, partial(self.bring, array)))

    def capture(self, program: Program, inputs: int) -> tuple[Callable[..., list[Any]], int]:
        return Fused(program), program.peak(self.memory.footprint)
