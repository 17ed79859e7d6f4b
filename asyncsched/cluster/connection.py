"""The connection to Dask: a client on our own loop, the workers that are used and their addresses, and the submitted
calls.

Calls that are submitted in one turn of the event loop go to Dask as one graph: a graph costs Dask's scheduler, and this
process, much more time than one more call in it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeAlias
from uuid import uuid4

from .._core.model import Task, Value
from ..errors import AsyncSchedError
from ..ops.op import Op
from ..ops.program import ref
from ..runtime.rates import Took
from .work import NUMBERS, RESOURCE, Work, describe, look, over, perform

Worker: TypeAlias = dict[str, Any]  # as Dask describes it, with its address
Workers: TypeAlias = dict[Any, Worker]  # by name

LOOK_EVERY, SECONDS_PER_LOOK = 1.0, 2e-3  # seconds between looks at the workers, and more for each of them
_LOOK_FOR_MORE = 0.1  # seconds between two looks for workers that join
_NAMES = 4096
_LATEST = 0.3  # the weight of the last task of a name in the estimate for the next


class ResultLost(AsyncSchedError):
    """A result that was on a worker is gone, and Dask cannot compute it again. Or Dask's scheduler is gone."""


class Choice:
    """The workers that the user wants.

    Args:
        wanted: names or addresses, or how many; None for all.
        gpu: True for workers with cards only, False for NumPy on all; None for cards if all chosen workers have one.
    """

    def __init__(self, wanted: int | Sequence[Any] | None, gpu: bool | None) -> None:
        self._wanted = wanted
        self._gpu = gpu
        self.count: int = wanted if isinstance(wanted, int) else 0  # how many workers to wait for

    def enough(self, known: Workers) -> bool:
        """Whether there are enough workers."""
        return len(self._fitting(known)) >= self.count

    def among(self, known: Workers) -> Workers:
        """The chosen ones of the known workers.

        Raises:
            RuntimeError: if there are none, or wanted ones are missing."""
        fitting, kind = self._fitting(known), f" with {RESOURCE}=1" if self._gpu else ""
        if isinstance(self._wanted, int) or self._wanted is None:
            found = dict(itertools.islice(fitting.items(), self._wanted))
        else:
            names = {worker["address"]: name for name, worker in fitting.items()} | {name: name for name in fitting}
            if missing := [name for name in self._wanted if name not in names]:
                raise RuntimeError(f"no workers {missing}{kind} in this cluster: it has {list(fitting)}")
            found = {names[name]: fitting[names[name]] for name in self._wanted}
        if not found:
            raise RuntimeError(f"the cluster has no workers{kind} yet: workers=2 waits for two")
        return found

    def bound(self, addresses: Mapping[Any, str], known: Workers) -> dict[Any, str]:
        """The present addresses of the chosen workers, by name. A worker that was not chosen takes the place of one
        that is gone, unless the user named them."""
        named = not isinstance(self._wanted, int) and self._wanted is not None
        spare = iter(
            [] if named else [worker for name, worker in self._fitting(known).items() if name not in addresses]
        )
        found = {name: known.get(name) or next(spare, None) for name in addresses}
        return {name: addresses[name] if worker is None else worker["address"] for name, worker in found.items()}

    def on_cards(self, chosen: Workers) -> bool:
        """Whether tasks run on their cards.

        Raises:
            RuntimeError: if `gpu` is None, and only some have one.
        """
        if self._gpu is not None:
            return self._gpu
        without = [name for name, worker in chosen.items() if not _has_card(worker)]
        if without and len(without) < len(chosen):
            raise RuntimeError(
                f"some of these workers have Dask's resource {RESOURCE}, and {without} have not: gpu=True takes those"
                " that have it, gpu=False runs on NumPy on all, workers=[...] names the ones to take"
            )
        return not without

    def _fitting(self, known: Workers) -> Workers:
        return {name: worker for name, worker in known.items() if not self._gpu or _has_card(worker)}


@dataclass(slots=True, eq=False)
class Call:
    """One task of Dask, which does one work after the other.

    Attributes:
        name: for its key: of the last work.
        home: the worker that should do it.
        operands: arrays, and the calls whose results they are.
        tasks: our tasks whose results it gives, if there are any. It is not sent if all of them have failed.
        most: how many works it may have, if it gives the results of all, which are small; 0 if it gives only that of
            the last.
        quick: whether the works are operations, which take next to no time.
        sent: set when it has gone to Dask, or never will. Then works, operands and tasks are dropped.
        last: the number of the last work.
        future: of Dask, once it has gone there.
        error: why it was not sent.
        owner: the value that is charged for small results, as long as one of them is held.
    """

    name: str
    home: Any
    works: list[Work]
    operands: list[Any]
    tasks: list[Task]
    most: int
    quick: bool
    sent: asyncio.Event
    last: int = 0
    key: str = ""
    future: Any = None
    error: BaseException | None = None
    owner: Value | None = None

    @property
    def small(self) -> bool:
        """Whether it gives the results of all its works, which are small."""
        return self.most > 0

    def lost(self) -> bool:
        """Whether its result is known to be gone."""
        return self.future is not None and bool(self.future.cancelled())


class Connection:
    """A client of Dask on the running loop: without another loop or thread.

    Args:
        given: the address of a cluster's scheduler, or a client.

    Attributes:
        gpu: whether tasks run on the workers' cards.
        took: how long a task of a name takes on its worker, the way there and back included.
    """

    client: Any
    gpu: bool

    def __init__(self, given: Any) -> None:
        self._given = given
        self.took: Callable[[str], Took] = lru_cache(_NAMES)(lambda _: Took(_LATEST, _LATEST))
        self._addresses: dict[Any, str] = {}  # the present or last address of each chosen worker, by name
        self._calls: list[Call] = []  # calls submitted in this turn of the loop
        self._sent: asyncio.Event  # the event that those share
        self.small: dict[Any, Call] = {}  # the last call with small results, by stream and kind of works
        self._beginning: int = 0  # number of launched tasks whose sending has not begun
        self._begun: Any = None  # the last task whose sending has begun: its stream, and its number there
        self._running: set[asyncio.Future[Any]] = set()
        self._stopped: list[Any] = []  # futures of tasks that will be ended soon
        self._ending: asyncio.Task[Any] | None = None

    # -- opening and closing ------------------------------------------------------------------------------------

    async def open(self, choice: Choice) -> Workers:
        """Connect. Returns the chosen workers, by name."""
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._look_at = self.loop.time() + LOOK_EVERY
        self.client = await self._connected()
        while not choice.enough(known := await self._look()):  # noqa: ASYNC110  # Dask's client looks again, too
            await asyncio.sleep(_LOOK_FOR_MORE)
        found = choice.among(known)
        self.gpu = choice.on_cards(found)
        self._choice = choice
        self._addresses = {name: worker["address"] for name, worker in found.items()}
        await self.client.register_plugin(release_stranded())
        return found

    async def cards(self, workers: Workers) -> dict[Any, int]:
        """The workers' cards, and the free bytes of each. Workers may share one.

        Raises:
            RuntimeError: if a worker has no card that it can use.
        """
        names = {worker["address"]: name for name, worker in workers.items()}
        found = await self.client.run(look, workers=list(names))
        for address, card in found.items():
            if "lacks" in card:
                raise RuntimeError(
                    f"the worker {names[address]} has Dask's resource {RESOURCE}, and no card that it can use:"
                    f" {card['lacks']}. Or gpu=False runs on NumPy"
                )
        return {card["card"]: card["bytes"] for card in found.values()}

    async def _connected(self) -> Any:
        client_of: Any = import_module("distributed").Client
        given = self._given
        if isinstance(given, client_of):
            if given.asynchronous and given.loop.asyncio_loop is self.loop:
                return given
            given = given.scheduler.address
        return await client_of(given, asynchronous=True)

    async def close(self) -> None:
        """Close the client, unless it was given."""
        client = getattr(self, "client", None)
        if client is not None and client is not self._given:
            await client.close()

    async def _look(self) -> Workers:
        """The workers by name."""
        known = (await self._asked("a look at the workers", self.client.scheduler.identity(n_workers=-1)))["workers"]
        return {worker["name"]: worker | {"address": address} for address, worker in known.items()}

    def _look_again(self) -> None:
        """Look for the workers again now and then: a worker that died may come back by its name at another address."""
        if self.loop.time() > self._look_at:
            self._look_at = self.loop.time() + LOOK_EVERY + SECONDS_PER_LOOK * len(self._addresses)
            self.keep(self._looked())

    async def _looked(self) -> None:
        with suppress(OSError, ResultLost):  # waiters for results get the error
            self._addresses = self._choice.bound(self._addresses, await self._look())

    # -- tasks --------------------------------------------------------------------------------------------------

    def keep(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine to its end."""
        running = self.loop.create_task(coroutine)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running

    def submit(
        self, name: str, home: Any, work: Work, operands: Sequence[Any], task: Task | None = None, most: int = 0
    ) -> Call:
        """Give a work to Dask, for a worker if that is there, at the end of this turn of the event loop.

        Raises:
            ResultLost: if Dask's scheduler is gone. Its client would try for half a minute to find it again.
        """
        if self.client.status != "running":
            raise _lost(name)
        self._look_again()
        if not self._calls:
            self._sent = asyncio.Event()
            self.loop.call_soon(self._send)
        tasks, quick = [] if task is None else [task], isinstance(work.call, Op)
        call = Call(name, home, [work], list(operands), tasks, most, quick, self._sent)
        self._calls.append(call)
        return call

    def launched(self) -> None:
        """A task was launched. Its sending begins in the next turn, with all others of this turn."""
        self._beginning += 1

    def begins(self, stream: Any, number: int) -> None:
        """The sending of a task begins."""
        self._beginning, self._begun = self._beginning - 1, (stream, number)

    def submitted(self, stream: Any, number: int) -> None:
        """A task was submitted. After the last one of this turn all go to Dask at once: Dask's client holds for 10 ms
        what follows other messages, such as those of dropped results."""
        if not self._beginning and self._begun == (stream, number):
            self._send()

    def _send(self) -> None:
        """Give Dask the calls of this turn, except those of tasks that were cancelled since. A call that reads a lost
        result is left out: it would make its whole graph fail."""
        calls, self._calls = self._calls, []
        if not calls:
            return
        self.small.clear()
        together: list[Call] = []
        alone: list[Call] = []
        for call in calls:
            if not call.tasks or any(task.failure is None for task in call.tasks):
                reads = [a for a in call.operands if type(a) is Call]
                (alone if any(a.lost() or a in alone for a in reads) else together).append(call)
        try:
            for graph in (together, *[[call] for call in alone]):
                self._map(graph)
        finally:
            for call in calls:
                call.works, call.operands, call.tasks = [], [], []
            self._sent.set()

    def _map(self, calls: list[Call]) -> None:
        """Give calls to Dask as one graph; or each by itself, if something in them cannot be sent."""
        import dask
        from dask.base import annotate
        from dask.task_spec import Alias

        if not calls:
            return
        for call in calls:
            call.key = f"{call.name}-{uuid4().hex}"
        operands = [[Alias(a.key) if type(a) is Call else a for a in call.operands] for call in calls]
        # By address: the name of a worker that is gone breaks Dask's scheduler. Dask chooses among workers with cards,
        # by the place of the data: with a resource, it forgets preferred workers once they are gone.
        homes = {call.key: [self._addresses[call.home]] for call in calls}
        chosen: dict[str, Any] = {"workers": homes.get, "allow_other_workers": True}
        try:
            # Dask warns of data in a graph. Here it is there on purpose, to outlive workers: see `DaskDevice`.
            with (
                dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 PiB"}),
                annotate(**{"resources": {RESOURCE: 1}} if self.gpu else chosen),
            ):
                columns = zip(*[(call.key, call.works, call.small) for call in calls], strict=True)
                keys, works, small = map(list, columns)
                futures = self.client.map(perform, keys, works, operands, small, key=keys, pure=False, fifo_timeout=0)
        except Exception as error:
            for call in calls if len(calls) > 1 else ():
                self._map([call])
            if len(calls) == 1:
                why = error.__cause__ or error  # Dask's own message lists the whole graph
                calls[0].error = TypeError(f"{calls[0].name} cannot be sent to a worker: {type(why).__name__}: {why}")
        else:
            for call, future in zip(calls, futures, strict=True):
                call.future = future

    async def outcome(self, call: Call) -> BaseException | None:
        """Wait until a call has ended. Returns its error, if it failed: see `failed_at`."""
        await call.sent.wait()
        if call.future is None:
            return call.error
        error: BaseException | None = await call.future.exception()
        if error is not None:
            BaseException.with_traceback(error, await call.future.traceback())
        elif call.lost():
            error = _lost(call.name)
        return error

    async def gathered(self, call: Call) -> Any:
        """Fetch a result from the cluster."""
        await call.sent.wait()
        if call.error is not None:
            raise call.error
        try:
            return (await self._asked(call.name, self.client.gather([call.future])))[0]
        except Exception:
            if call.future.status != "finished":
                raise
        # Dask's client fetches several results together, and gets none if one of them cannot be pickled. So ask for
        # this one alone.
        found = await self._asked(call.name, self.client.scheduler.gather(keys=[call.key]))
        if found["status"] != "OK":  # its worker is gone meanwhile
            raise _lost(call.name)
        return found["data"][call.key]

    async def _asked(self, name: str, question: Awaitable[Any]) -> Any:
        """The answer of Dask. If its scheduler is gone, its client goes on waiting, which callers must not do.

        Raises:
            ResultLost: if its scheduler is gone."""
        from distributed.client import FutureCancelledError
        from distributed.comm.core import CommClosedError

        asked = asyncio.ensure_future(question)
        self._running.add(asked)
        asked.add_done_callback(self._answered)
        try:
            while not asked.done() and self.client.status == "running":
                await asyncio.wait([asked], timeout=LOOK_EVERY)
            if asked.done():
                return asked.result()
        except (FutureCancelledError, CommClosedError) as error:
            raise _lost(name) from error
        # Only here, and not if the caller is cancelled: others may wait for the same, see `gathered`.
        asked.cancel()
        raise _lost(name)

    def _answered(self, asked: asyncio.Future[Any]) -> None:
        self._running.discard(asked)
        if not asked.cancelled():
            asked.exception()  # seen, also if its caller has left

    async def nbytes(self, call: Call) -> int:
        """Bytes of a result, as its worker measured them; 0 for a number."""
        kind = call.future.type
        if isinstance(kind, type) and issubclass(kind, NUMBERS):
            return 0
        try:
            found = await self._asked(call.name, self.client.nbytes([call.key], summary=False))
        except KeyError:
            raise _lost(call.name) from None
        return max(0, int(found[call.key]))

    async def described(self, call: Call) -> tuple[tuple[int, ...], Any, bool, int]:
        """The description of the array that a call makes: see `describe`."""
        work = Work(describe, (ref(0),), {}, (0,), ((),), gpu=self.gpu)
        asked = self.submit("describe", call.home, work, [call])
        found: tuple[tuple[int, ...], Any, bool, int] = await self.gathered(asked)
        return found

    # -- cancellation -------------------------------------------------------------------------------------------

    def stop(self, future: Any) -> None:
        """Have Dask drop a call. If it runs, it goes on: `stopped` waits for it."""
        if not self._stopped:
            self._ending = self.keep(self._stop_all(self._ending))
        self._stopped.append(future)

    async def stopped(self) -> None:
        """Wait until no worker runs a call that was stopped."""
        if self._ending is not None:
            await asyncio.wait([self._ending])

    async def _stop_all(self, before: asyncio.Task[Any] | None) -> None:
        futures, self._stopped = self._stopped, []
        keys = [future.key for future in futures]
        with suppress(ResultLost):
            await self._asked("cancel", self.client.cancel(futures))
            await self._asked("cancel", self.client.run(over, keys, on_error="ignore"))
        if before is not None:
            await asyncio.wait([before])


def _lost(name: str) -> ResultLost:
    return ResultLost(
        f"the result of {name!r} is gone from the cluster, and cannot be computed again: the connection to Dask's"
        " scheduler ended, it was restarted, or somebody else cancelled the task there"
    )


def _has_card(worker: Mapping[str, Any]) -> bool:
    return bool(worker["resources"].get(RESOURCE, 0) >= 1)


def release_stranded() -> Any:
    """A plugin of Dask's scheduler, for tasks whose workers are all gone.

    Each task of ours names a worker, and other workers may do it if that one is gone (`allow_other_workers`). But a
    task that finds no worker at all waits. When a worker joins, Dask checks only whether the task names it, and not
    whether others may do it. So after the last worker died, tasks wait for an address that never comes back. So do the
    tasks that Dask computes again for them, of which nobody here has a future.

    Its class is local, so it travels as code: the scheduler need not have this package.
    """
    from distributed.diagnostics.plugin import SchedulerPlugin

    class ReleaseStranded(SchedulerPlugin):
        name, idempotent = "asyncsched-release-stranded", True

        def add_worker(self, scheduler: Any, worker: str) -> None:
            """Called before Dask looks for waiting tasks that the new worker may do."""
            for task in scheduler.unrunnable:
                named = task.worker_restrictions
                if named and task.loose_restrictions and named.isdisjoint(scheduler.workers):
                    task.worker_restrictions = None

    return ReleaseStranded()
