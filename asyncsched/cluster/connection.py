"""The way to Dask: a client on our own loop, which of its workers are used and where they are, and the futures of what
it was given.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeAlias
from uuid import uuid4

from ..errors import AsyncSchedError
from .card import RESOURCE, look
from .work import describe, over

Worker: TypeAlias = dict[str, Any]  # as Dask describes it, with its address
Workers: TypeAlias = dict[Any, Worker]  # by name

LOOK_EVERY, SECONDS_PER_LOOK = 1.0, 2e-3  # seconds between two looks at where the workers are, and for each of them
_LOOK_FOR_MORE = 0.1  # seconds between two looks for workers that join


class ResultLost(AsyncSchedError):
    """A result that was on a worker is gone, and Dask cannot compute it again; or it has no scheduler any more."""


def load() -> None:
    """Import Dask's client, and have it ask what it asks of this machine: that takes seconds, and starts a process."""
    try:
        import_module("distributed.versions").get_versions()
    except ImportError as error:
        raise RuntimeError('a cluster needs Dask: pip install "asyncsched[cluster]"') from error


class Choice:
    """Which workers the user wants.

    Args:
        wanted: names or addresses, or how many; None for all.
        gpu: True for those with cards alone, False for NumPy on all; None for cards if all that are chosen have one.
    """

    def __init__(self, wanted: int | Sequence[Any] | None, gpu: bool | None) -> None:
        self._wanted = wanted
        self._gpu = gpu
        self.count: int = wanted if isinstance(wanted, int) else 0  # how many to wait for

    def enough(self, known: Workers) -> bool:
        """Whether there are as many as are waited for."""
        return len(self._fitting(known)) >= self.count

    def among(self, known: Workers) -> Workers:
        """The chosen ones of the known workers.

        Raises:
            RuntimeError: if there are none, or not those asked for.
        """
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
        """Where the chosen workers are now, by name. In the place of one that is gone comes one that nobody chose,
        unless the user named them."""
        named = not isinstance(self._wanted, int) and self._wanted is not None
        spare = iter(
            [] if named else [worker for name, worker in self._fitting(known).items() if name not in addresses]
        )
        found = {name: known.get(name) or next(spare, None) for name in addresses}
        return {name: addresses[name] if worker is None else worker["address"] for name, worker in found.items()}

    def on_cards(self, chosen: Workers) -> bool:
        """Whether tasks run on their cards.

        Raises:
            RuntimeError: if nobody said, and some have one.
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


class Connection:
    """A client of Dask's on the loop that runs: no other loop, and no thread.

    Args:
        given: the address of a cluster's scheduler, or a client.

    Attributes:
        gpu: whether tasks run on the workers' cards.
    """

    client: Any
    gpu: bool

    def __init__(self, given: Any) -> None:
        self._given = given
        self._addresses: dict[Any, str] = {}  # of the chosen workers, by name: where each is, or was last
        self._running: set[asyncio.Task[Any]] = set()
        self._stopped: list[Any] = []  # futures of tasks to be ended soon
        self._ending: asyncio.Task[Any] | None = None

    # -- opening and closing ------------------------------------------------------------------------------------

    async def open(self, choice: Choice) -> Workers:
        """Connect. Returns the workers that are chosen, by name."""
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
            RuntimeError: if a worker has none that it can use.
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
        """Look for the workers again now and then: one that died comes back under its name at another address."""
        if self.loop.time() > self._look_at:
            self._look_at = self.loop.time() + LOOK_EVERY + SECONDS_PER_LOOK * len(self._addresses)
            self.keep(self._looked())

    async def _looked(self) -> None:
        with suppress(OSError, ResultLost):  # whoever waits for results is told
            self._addresses = self._choice.bound(self._addresses, await self._look())

    # -- tasks --------------------------------------------------------------------------------------------------

    def keep(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine to its end."""
        running = self.loop.create_task(coroutine)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running

    def submit(self, name: str, worker: Any, *call: Any) -> Any:
        """Give Dask a call, for a worker if that is there. Returns its future.

        Raises:
            ResultLost: if Dask's scheduler is gone. Its client would try for half a minute to find it again.
        """
        import dask

        if self.client.status != "running":
            raise _lost(name)
        self._look_again()
        # Dask warns of data in a graph. Here it is there on purpose, so that it outlives workers: see `DaskDevice`.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 PiB"}):
            return self.client.submit(
                *call,
                key=f"{name}-{uuid4().hex}",
                pure=False,
                # By address: the name of a worker that is gone breaks Dask's scheduler. For a card Dask chooses, by
                # where the data is: what it is told of preferred workers it forgets with the resource, once they are
                # gone.
                workers=None if self.gpu else [self._addresses[worker]],
                allow_other_workers=not self.gpu,
                resources={RESOURCE: 1} if self.gpu else None,
            )

    async def outcome(self, future: Any) -> BaseException | None:
        """Wait until a call has ended. Returns why it failed, if it did."""
        error: BaseException | None = await future.exception()
        if error is not None:
            return error.with_traceback(await future.traceback())
        return _lost(_name(future)) if future.cancelled() else None

    async def gathered(self, future: Any) -> Any:
        """Fetch a result from the cluster."""
        return (await self._asked(_name(future), self.client.gather([future])))[0]

    async def _asked(self, name: str, question: Awaitable[Any]) -> Any:
        """What Dask answers. Where its scheduler is gone its client goes on waiting, and nobody else is to.

        Raises:
            ResultLost: then.
        """
        from distributed.client import FutureCancelledError
        from distributed.comm.core import CommClosedError

        asked = asyncio.ensure_future(question)
        try:
            while not asked.done() and self.client.status == "running":
                await asyncio.wait([asked], timeout=LOOK_EVERY)
            if asked.done():
                return asked.result()
        except (FutureCancelledError, CommClosedError) as error:
            raise _lost(name) from error
        finally:
            asked.cancel()
        raise _lost(name)

    async def described(self, future: Any) -> tuple[Any, Any, bool, int]:
        """Shape, dtype, whether in C order, and bytes of a result."""
        resources = {RESOURCE: 1} if self.gpu else None
        asked = self.client.submit(describe, future, pure=False, resources=resources)
        found: tuple[Any, Any, bool, int] = await self.gathered(asked)
        return found

    # -- cancellation -------------------------------------------------------------------------------------------

    def stop(self, future: Any) -> None:
        """Have Dask drop a call. If it runs, it goes on: `stopped` waits for that."""
        if not self._stopped:
            self._ending = self.keep(self._stop_all(self._ending))
        self._stopped.append(future)

    async def stopped(self) -> None:
        """Wait until no worker runs what was stopped last, or before."""
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


def _name(future: Any) -> str:
    return str(future.key).rpartition("-")[0]


def _lost(name: str) -> ResultLost:
    return ResultLost(
        f"the result of {name!r} is gone from the cluster, and cannot be computed again: the connection to Dask's"
        " scheduler ended, it was restarted, or somebody else cancelled the task there"
    )


def _has_card(worker: Mapping[str, Any]) -> bool:
    return bool(worker["resources"].get(RESOURCE, 0) >= 1)


def release_stranded() -> Any:
    """A plugin of Dask's scheduler: what it is to do with tasks whose workers are all gone.

    Each task of ours names a worker, and others may do it where that is gone (`allow_other_workers`). But a task that
    finds no worker at all waits, and of a worker that joins Dask asks only whether the task names it: that others may
    is looked at when there is a choice. So after the last worker died, tasks wait for an address that never comes back,
    and with them what is computed again for them, of which nobody here has a future.

    Its class is a local one, which travels as code: this package need not be there.
    """
    from distributed.diagnostics.plugin import SchedulerPlugin

    class ReleaseStranded(SchedulerPlugin):
        name, idempotent = "asyncsched-release-stranded", True

        def add_worker(self, scheduler: Any, worker: str) -> None:
            """Called before Dask looks which of the waiting tasks the new worker may do."""
            for task in scheduler.unrunnable:
                named = task.worker_restrictions
                if named and task.loose_restrictions and named.isdisjoint(scheduler.workers):
                    task.worker_restrictions = None

    return ReleaseStranded()
