"""The way to Dask: a client on our own loop, where its workers are, and the futures of what it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from importlib import import_module
from typing import Any
from uuid import uuid4

from ..errors import AsyncSchedError
from .card import RESOURCE, look
from .choice import Choice, Worker
from .stranded import release_stranded
from .work import describe, over

LOOK_EVERY, SECONDS_PER_LOOK = 1.0, 2e-3  # seconds between two looks at where the workers are, and for each of them
_LOOK_FOR_CARDS = 0.1  # seconds between two looks for workers that join


class ResultLost(AsyncSchedError):
    """A result that was on a worker is gone, and Dask cannot compute it again; or it has no scheduler any more."""


def load() -> None:
    """Import Dask's client, and have it ask what it asks of this machine: that takes seconds, and starts a process."""
    try:
        import_module("distributed.versions").get_versions()
    except ImportError as error:
        raise RuntimeError('a cluster needs Dask: pip install "asyncsched[cluster]"') from error


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

    async def open(self, choice: Choice) -> dict[Any, Worker]:
        """Connect. Returns the workers that are chosen, by name."""
        self.loop = asyncio.get_running_loop()
        self._look_at = self.loop.time() + LOOK_EVERY
        self.client = await self._connected()
        if choice.count:
            await self.client.wait_for_workers(choice.count)
        while not choice.enough(await self._look()):  # noqa: ASYNC110  # Dask's client looks again and again, too
            await asyncio.sleep(_LOOK_FOR_CARDS)
        found = choice.among(await self._look())
        self.gpu = choice.on_cards(found)
        self._choice = choice
        self._addresses = {name: worker["address"] for name, worker in found.items()}
        await self.client.register_plugin(release_stranded())
        return found

    async def cards(self, workers: dict[Any, Worker]) -> dict[Any, int]:
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

    async def _look(self) -> dict[Any, Worker]:
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
                **self._restrictions(worker),
            )

    def _restrictions(self, worker: Any) -> dict[str, Any]:
        """Who may run a task. One for a card may wait for a worker that has one, and then Dask chooses, by where the
        data is: what it is told of preferred workers it forgets with the resource, once they are gone."""
        if self.gpu:
            return {"resources": {RESOURCE: 1}}
        # By address: the name of a worker that is gone breaks Dask's scheduler.
        return {"workers": [self._addresses[worker]], "allow_other_workers": True}

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
