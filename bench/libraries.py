"""The contestants' libraries, each as the few methods that works call. Some have operators (NumPy, PyTorch, JAX, MXNet,
asyncsched), others run functions, by `apply` (Dask, Ray, executors).

Nothing is imported before its contestant is opened, in a child process of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np

from .harness.rows import Who

Array = np.ndarray[Any, Any]
Chain = Callable[[Any, Any], Any]  # a function of a namespace and an array


class Library:
    """NumPy, inline. Others override what they do in another way."""

    module = "numpy"
    needs = "numpy"  # its entry in `environments.NEEDS`
    slow = 1  # a round has so many times fewer of the smallest operations
    apply: Callable[..., Any] | None = None  # runs a function on handles, for libraries without operators
    call: Callable[..., Awaitable[Any]] | None = None  # the same, awaited
    wait: Callable[[Any], object] | None = None  # a barrier on one result, if it is not awaited

    def __init__(self, who: Who, *, quick: bool) -> None:
        self.flags, self.options = who.flags, who.options
        self.quick = quick  # whether its numbers mean nothing

    async def open(self) -> None:
        """Imports the library and starts its threads."""
        self.threads = cpus()
        self.xp = importlib.import_module(self.module)

    async def close(self) -> None:
        """Ends what `open` started."""

    async def put(self, array: Array) -> Any:
        return array

    async def finish(self, results: Sequence[Any]) -> None:
        """A barrier on these."""

    def window(self, ahead: int) -> Any:
        """A context around each of many works: so many may be in flight."""
        return nullcontext()

    async def compiled(self, fn: Chain, x: Any) -> Callable[[Any], Any]:
        """`fn`, compiled or captured if the library can do so."""
        return lambda x: fn(self.xp, x)

    def facts(self) -> str:
        return f"{self.module} {self.xp.__version__}"


class NumPy(Library):
    async def put(self, array: Array) -> Any:
        return array.copy()

    def facts(self) -> str:
        return f"{super().facts()}{_kernel()}"


class Torch(Library):
    module = needs = "torch"

    async def open(self) -> None:
        await super().open()
        self.xp.set_num_threads(self.threads)

    async def put(self, array: Array) -> Any:
        return self.xp.tensor(array)

    async def compiled(self, fn: Chain, x: Any) -> Callable[[Any], Any]:
        return self.xp.compile(lambda x: fn(self.xp, x))  # type: ignore[no-any-return]


class Loaders(NumPy):
    """Libraries of data sets. A flag selects one, so each has a process of its own."""

    needs = "loaders"


class Guest(Torch):
    """PyTorch at one thread, with asyncsched beside it."""

    needs = "guest"

    async def open(self) -> None:
        await super().open()
        self.xp.set_num_threads(1)


class Jax(Library):
    """Each operation as a compiled function, with the flag "jit"."""

    module = needs = "jax"

    async def open(self) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        await super().open()
        self.wait = lambda result: result.block_until_ready()
        if "jit" in self.flags:
            self.apply = once_each(self.xp.jit)

    async def put(self, array: Array) -> Any:
        return self.xp.numpy.array(array)

    async def finish(self, results: Sequence[Any]) -> None:
        self.xp.block_until_ready(results)

    async def compiled(self, fn: Chain, x: Any) -> Callable[[Any], Any]:
        return self.xp.jit(lambda x: fn(self.xp.numpy, x))  # type: ignore[no-any-return]


class MXNet(Library):
    module = needs = "mxnet"

    async def open(self) -> None:
        # Threads that spin at OpenMP's barriers take the processors from each other: with other load on the machine it
        # never ends.
        os.environ |= {"OMP_NUM_THREADS": str(cpus()), "OMP_WAIT_POLICY": "PASSIVE"}
        await super().open()
        self.xp.npx.set_np()
        self.wait = lambda result: result.wait_to_read()

    async def put(self, array: Array) -> Any:
        return self.xp.np.array(array, dtype=array.dtype)

    async def finish(self, results: Sequence[Any]) -> None:
        self.xp.npx.waitall()

    async def compiled(self, fn: Chain, x: Any) -> Callable[[Any], Any]:
        class Block(self.xp.gluon.HybridBlock):  # type: ignore[name-defined,misc]
            def hybrid_forward(self, F: Any, x: Any) -> Any:
                return fn(F.np, x)

        block = Block()
        block.hybridize(static_alloc=True, static_shape=True)
        return block


class Ours(Library):
    """This library with its defaults, without the extra `[numba]` unless that is one of its flags."""

    module = "asyncsched"

    async def open(self) -> None:
        if "numba" not in self.flags:
            sys.modules["numba"] = None  # type: ignore[assignment]  # the import's way of saying: not installed
        await super().open()
        self.s = await self.xp.open("cpu", **self.options)
        self.call = self.s.call
        _compile()

    async def close(self) -> None:
        await self.s.aclose()

    async def put(self, array: Array) -> Any:
        return await self.s.put(array)

    async def finish(self, results: Sequence[Any]) -> None:
        await self.s.barrier()

    def window(self, ahead: int) -> Any:
        return self.s.window(ahead)

    async def compiled(self, fn: Chain, x: Any) -> Callable[[Any], Any]:
        graph = await self.s.capture(lambda x: fn(self.xp, x), x)
        graph(x)
        await self.s.barrier()
        _compile()
        return graph  # type: ignore[no-any-return]

    def facts(self) -> str:
        numba = f", numba {importlib.import_module('numba').__version__}" if "numba" in self.flags else ""
        return f"{super().facts()}{numba}{_kernel()}"


class Dask(Library):
    """Delayed functions on threads: issued functions run at the barrier."""

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
    """Worker processes with a shared object store."""

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
    """`run_in_executor`. A function of an unfinished result waits for that in a coroutine."""

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


class ToThread(Executor):
    """`asyncio.to_thread`, in an asyncio task if it is not awaited at once."""

    async def open(self) -> None:
        await super().open()
        self.call = asyncio.to_thread


def _chain_of(fn: Chain) -> Callable[[Any], Any]:
    return lambda x: fn(np, x)


def once_each(make: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
    """Calls the compiled function, made once for each function."""
    made: dict[Any, Callable[..., Any]] = {}
    return lambda fn, *args: (made.get(fn) or made.setdefault(fn, make(fn)))(*args)


def _compile() -> None:
    """Wait for compilation in the background."""
    from asyncsched.ops.kernels import compiled

    compiled.finish()


def _kernel() -> str:
    """The kernel of OpenBLAS that runs, if known."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return ""
    kernels = {str(lib["architecture"]) for lib in threadpool_info() if "architecture" in lib}
    return f", OpenBLAS for {' '.join(sorted(kernels))}" if kernels else ""


def cpus() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The factory of uvloop's loops."""
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


LIBRARIES: dict[str, type[Library]] = {
    "numpy": NumPy,
    "torch": Torch,
    "loaders": Loaders,
    "jax": Jax,
    "mxnet": MXNet,
    "dask": Dask,
    "distributed": Distributed,
    "ray": Ray,
    "run_in_executor": Executor,
    "to_thread": ToThread,
    "asyncsched": Ours,
    "guest": Guest,
}
