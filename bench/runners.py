"""What runs functions, by `apply`: Dask, Ray, executors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from .libraries import Array, Chain, Library, once_each
from .measure import uvloop_factory


class Dask(Library):
    """Delayed functions on threads: what is issued runs at the barrier."""

    module = needs = "dask"
    slow = 10

    async def open(self) -> None:
        await super().open()
        self.xp.config.set(scheduler="threads", num_workers=self.threads)
        self.apply = lambda fn, *args: self.xp.delayed(fn, pure=False, traverse=False)(*args)
        self.wait = lambda result: result.compute()

    async def finish(self, results: Sequence[Any]) -> None:
        self.xp.compute(*results)

    async def compiled(self, fn: Chain, x: Any) -> Callable[[Any], Any]:
        run = _chain_of(fn)
        return lambda x: self.apply(run, x)  # type: ignore[misc]


class Distributed(Library):
    """A client and one worker with threads, in this process."""

    module = needs = "distributed"
    slow = 10
    compiled = Dask.compiled

    async def open(self) -> None:
        await super().open()
        options = {"processes": False, "n_workers": 1, "threads_per_worker": self.threads}
        self.client = self.xp.Client(dashboard_address=None, **options)
        self.apply = lambda fn, *args: self.client.submit(fn, *args, pure=False)
        self.wait = lambda result: result.result()

    async def close(self) -> None:
        self.client.close()

    async def put(self, array: Array) -> Any:
        return self.client.scatter(array)

    async def finish(self, results: Sequence[Any]) -> None:
        self.xp.wait(results)


class Ray(Library):
    """Worker processes, with an object store that they share."""

    module = needs = "ray"
    slow = 10
    compiled = Dask.compiled

    async def open(self) -> None:
        os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        await super().open()
        self.xp.init(num_cpus=self.threads, include_dashboard=False, log_to_driver=False, logging_level="error")
        remote = once_each(lambda fn: self.xp.remote(fn).remote)
        self.apply, self.wait = remote, self.xp.get

    async def close(self) -> None:
        self.xp.shutdown()

    async def put(self, array: Array) -> Any:
        return self.xp.put(array)

    async def finish(self, results: Sequence[Any]) -> None:
        self.xp.wait(results, num_returns=len(results), fetch_local=False)


class Executor(Library):
    """`run_in_executor`; a function of what is not done yet waits for that in a coroutine."""

    compiled = Dask.compiled

    async def open(self) -> None:
        await super().open()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(self.threads))
        self.call = lambda fn, *args: loop.run_in_executor(None, fn, *args)
        self.apply = self._apply

    def _apply(self, fn: Callable[..., Any], *args: Any) -> Any:
        for arg in args:
            if isinstance(arg, asyncio.Future):
                return asyncio.ensure_future(self._later(fn, args))
        assert self.call is not None
        return asyncio.ensure_future(self.call(fn, *args))

    async def _later(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        assert self.call is not None
        return await self.call(fn, *[await arg if isinstance(arg, asyncio.Future) else arg for arg in args])

    async def finish(self, results: Sequence[Any]) -> None:
        await asyncio.gather(*results)


class ExecutorUvloop(Executor):
    loop_factory = uvloop_factory()


class ToThread(Executor):
    """`asyncio.to_thread`, in a task of its own where it is not awaited at once."""

    async def open(self) -> None:
        await super().open()
        self.call = asyncio.to_thread


def _chain_of(fn: Chain) -> Callable[[Any], Any]:
    return lambda x: fn(np, x)
