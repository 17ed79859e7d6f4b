"""A Dask cluster as a device: its workers are the streams, and results stay where they were computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from .._arguments import check_int, require_package
from .._core.completions import Completions
from .._core.model import Lane, Task
from ..devices.contract import RemoteDevice
from ..ops.op import CARD_GRANULE
from ..ops.program import Program, ref
from ..runtime.loops import answered, ask_async
from .connection import Choice, Connection, Workers
from .stream import DaskMemory, DaskStream, Remote, standing
from .work import Fused, Work, copied, on_host, view_of

# The share of the workers' memory if no max_bytes is given. The rest is for untracked memory: copies that Dask makes on
# other workers, work in progress, Python.
SHARE_OF_MEMORY = 0.5
MOST_PER_WORKER = 32  # a guess: enough that a worker is busy while the next tasks travel
BROUGHT_WHOLE = 256 * 1024  # a result of at most so many bytes is brought as a whole if only a part is wanted
_BYTES_PER_SECOND = 100e6  # a guess, as Dask's own: for choosing between a busy worker with the data, and an idle one


class DaskDevice(RemoteDevice):
    """The workers of a Dask cluster, each as a stream.

    Operations and callables become tasks of Dask, on the worker that has the data if it is not busy, else on another.
    Awaited results are brought here. The limits are those of the scheduler: tasks in flight (and `most_per_worker`),
    and bytes of results on all workers. Needs `pip install "asyncsched[cluster]"`, here and on the workers::

        device = asc.cluster.DaskDevice("tcp://scheduler:8786", workers=4)
        async with asc.Scheduler(device, max_ops=256) as s:
            x = await s.put(array)
            y = x @ x + 1                   # computed on a worker, and it stays there
            total = await y.sum().item()    # a number travels

    An operation takes milliseconds on the way. Of the operations that are issued in one turn of the event loop, some
    travel as one task of Dask: a chain, in which each is the only reader of the one before, and tiny ones, up to 32
    with results of 1 KiB. `s.capture` makes one task of a step, `s.submit(fn, ...)` of a function.

    *Workers may die.* Dask computes lost results again, from the arrays that were put. Dask's scheduler keeps those as
    long as a result that came from them is held. So no death of workers loses results. Data larger than the memory of
    Dask's scheduler must not be put: let tasks read it themselves. To bound the kept arrays in a training, a result
    that comes from a chain of 128 others is brought here and put anew. A task during which several workers died (Dask's
    `allowed-failures`) fails with Dask's `KilledWorker`. If Dask's scheduler dies, all results are lost, and awaiting
    one raises `ResultLost`.

    Copies that Dask makes from worker to worker are not tracked. A callable does not see the context variables of its
    submitter.

    *Workers with cards*, started with Dask's resource `GPU=1`, compute with CuPy. Results stay on their cards; awaited
    ones become NumPy's on the worker. Dask chooses among these workers, by the place of the data, and the limit on
    bytes is for the cards::

        device = asc.cluster.DaskDevice("tcp://scheduler:8786", gpu=True)  # those that have the resource

    Args:
        cluster: the address of Dask's scheduler; or a client. An asynchronous client of this loop is used itself and
            left open, so results can be read after our scheduler is closed. Of another client only the address is used.
        workers: names or addresses of those to use, or how many to wait for; default all that are there when it opens.
            If one is gone, others do its tasks until it is back, or (unless they were named) another has joined in its
            place. If all are gone, tasks wait for one. Additional workers get no tasks of their own. (Dask's
            `LocalCluster` starts no other for one that is gone for 15 s, by its option
            `distributed.deploy.lost-worker-timeout`.) With cards these workers only have to be there: Dask chooses
            among all that have the resource.
        most_per_worker: most tasks that Dask has at a time for a worker. With more, and a larger `max_ops`, a burst is
            fewer graphs: one of 1,000 functions takes two thirds of the time with 500 and 1,000.
        chunksize: most functions that go to a worker as one task of Dask. They have to be issued in one turn of the
            event loop, with shape= and dtype= of at most 1 KiB. Use it for functions that take less than a millisecond:
            Dask takes longer for each. The functions of one task end together, so none of them may wait for the end of
            another, or for its consequences. If one raises, the others are called again, each alone. One that was
            cancelled may still be called.
        gpu: True takes the workers that were started with Dask's resource `GPU=1`, and runs tasks on their cards, with
            CuPy. False runs tasks on NumPy. The default is True if all chosen workers have the resource.
        name: for messages.

    Raises:
        OSError: when it is opened, if nobody answers at that address.
        RuntimeError: when it is opened, if there are no workers, or wanted ones are missing; if only some have `GPU=1`;
            or if one has it, but no card that CuPy can use.
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
        require_package("a cluster", "distributed", "cluster")
        import_module("distributed.versions").get_versions()  # looks at this machine: it takes seconds, by a process

    async def connect(self) -> None:
        self._workers = await self.connection.open(self._choice)
        if self.connection.gpu:
            self._cards = await self.connection.cards(self._workers)
            self.xp = None  # the workers' CuPy, which need not be installed here

    def default_bytes(self) -> int | None:
        """A share of all the workers' limits, or of the free bytes on their cards; no limit if one worker has none."""
        limits = [worker["memory_limit"] for worker in self._workers.values()]
        found = [sum(limits)] if all(limits) else []
        if self._cards:
            found.append(sum(self._cards.values()))
        return int(min(found) * SHARE_OF_MEMORY) if found else None

    def open(self, completions: Completions, max_bytes: int | None) -> None:
        self.memory: DaskMemory = DaskMemory(completions, CARD_GRANULE if self._cards else 1)
        shared, names = (self.connection, self.memory), list(self._workers)
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
        """The lane on which it would begin first: missing inputs have to travel to the worker, and the worker's other
        tasks go first."""
        missing = dict.fromkeys(task.lanes, 0)
        for value in task.inputs:
            found = standing(value)
            for lane in task.lanes:
                if not isinstance(found, Remote) or found.home != lane.stream.worker:
                    missing[lane] += value.owner.nbytes
        return min(task.lanes, key=lambda lane: missing[lane] / _BYTES_PER_SECOND + float(lane.stream.expected))

    def stop(self, task: Task) -> None:
        """Have Dask drop a task, unless it is small. A running task goes on: its worker says when its thread is
        free."""
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

    def capture(self, program: Program, inputs: int) -> tuple[Callable[..., list[Any]], int, int]:
        return Fused(program), program.peak(self.memory.footprint), 0
