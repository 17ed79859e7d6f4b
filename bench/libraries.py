"""What has operators: NumPy, PyTorch, JAX, MXNet, asyncsched; each by the few things that a work asks of it.

Nothing is imported before its contestant is opened, in a child process of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from .measure import cpus, uvloop_factory

Array = np.ndarray[Any, Any]
Chain = Callable[[Any, Any], Any]  # a function of a namespace and an array


class Library:
    """NumPy, inline. What others do in another way they override."""

    module = "numpy"
    needs = "numpy"  # which of `environments.NEEDS` it runs in
    slow = 1  # of the smallest operations a round has that many times fewer
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    quick = False  # whether its numbers mean nothing
    apply: Callable[..., Any] | None = None  # runs a function on handles, for what has no operators
    call: Callable[..., Awaitable[Any]] | None = None  # the same, awaited
    wait: Callable[[Any], object] | None = None  # a barrier on one result, for what is not awaited

    async def open(self) -> None:
        """Imports what is needed and starts its threads."""
        self.threads = cpus()
        self.xp = importlib.import_module(self.module)

    async def close(self) -> None:
        """Ends what `open` started."""

    async def put(self, array: Array) -> Any:
        return array

    async def finish(self, results: Sequence[Any]) -> None:
        """A barrier on these."""

    async def compiled(self, fn: Chain, x: Any) -> Callable[[Any], Any]:
        """`fn`, compiled or captured where the library can do so."""
        return lambda x: fn(self.xp, x)

    def facts(self) -> str:
        return f"{self.module} {self.xp.__version__}"


class NumPy(Library):
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


class Jax(Library):
    module = needs = "jax"

    async def open(self) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        await super().open()
        self.wait = lambda result: result.block_until_ready()

    async def put(self, array: Array) -> Any:
        return self.xp.numpy.array(array)

    async def finish(self, results: Sequence[Any]) -> None:
        self.xp.block_until_ready(results)

    async def compiled(self, fn: Chain, x: Any) -> Callable[[Any], Any]:
        return self.xp.jit(lambda x: fn(self.xp.numpy, x))  # type: ignore[no-any-return]


class JaxJit(Jax):
    """Each operation as a compiled function."""

    async def open(self) -> None:
        await super().open()
        self.apply = once_each(self.xp.jit)


class MXNet(Library):
    module = needs = "mxnet"

    async def open(self) -> None:
        # Threads that spin at OpenMP's barriers take the processors from each other: beside other load it never ends.
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
    """This library with its defaults, without the extra `[numba]`."""

    module = "asyncsched"
    numba = False
    options: Mapping[str, Any] = MappingProxyType({})

    async def open(self) -> None:
        if not self.numba:
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

    async def compiled(self, fn: Chain, x: Any) -> Callable[[Any], Any]:
        graph = await self.s.capture(lambda x: fn(self.xp, x), x)
        graph(x)
        await self.s.barrier()
        _compile()
        return graph  # type: ignore[no-any-return]

    def facts(self) -> str:
        numba = f", numba {importlib.import_module('numba').__version__}" if self.numba else ""
        return f"{super().facts()}{numba}{_kernel()}"


class OursOneStream(Ours):
    options = MappingProxyType({"streams": 1})


class OursNumba(Ours):
    needs = "numba"
    numba = True


class OursUvloop(Ours):
    loop_factory = uvloop_factory()


def once_each(make: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
    """Calls what is made of a function, once for each."""
    made: dict[Any, Callable[..., Any]] = {}
    return lambda fn, *args: (made.get(fn) or made.setdefault(fn, make(fn)))(*args)


def _compile() -> None:
    """Wait for what is compiled in the background."""
    from asyncsched.ops.kernels import compiled

    compiled.finish()


def _kernel() -> str:
    """Which of OpenBLAS's kernels runs, if that can be told."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return ""
    kernels = {str(lib["architecture"]) for lib in threadpool_info() if "architecture" in lib}
    return f", OpenBLAS for {' '.join(sorted(kernels))}" if kernels else ""
