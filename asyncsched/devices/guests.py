"""Guests: tasks whose function is of PyTorch or JAX, or calls them.

Nothing here imports either: a program that uses one has imported it.

A jitted function of JAX returns before its result is computed. The stream's thread waits for that: on the loop's
thread, a wait would block everything else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from .._arguments import called
from .._tree import find, map_leaves
from . import torch_interop
from .torch_interop import Allocated as Allocated


def call(function: Callable[..., Any], args: Sequence[Any], stream: Any = None, device: int = 0) -> Any:
    """Call a task's function. PyTorch's modules and JAX's jitted functions take arrays and return arrays.

    On a CUDA stream PyTorch's own work goes to that stream. JAX's work is over when this returns.
    """
    modules = sys.modules
    torch = _loaded("torch", "nn") if "torch" in modules else None
    jax = _loaded("jax", "stages") if "jax" in modules else None
    if jax is not None and _is_jitted(jax, function):
        return _call_jitted(jax, function, args)
    result = function(*args) if torch is None else torch_interop.call(torch, function, args, stream, device)
    if "jax" in modules:  # perhaps the function has imported it
        jax = _loaded("jax", "stages")
        if jax is not None:
            _wait(jax, result)
    return result


def allocated(device: int | None = None) -> AbstractContextManager[Allocated]:
    """Counts PyTorch's allocations in a block: on this thread; or, on the CUDA device with this number, by its
    allocator."""
    torch = _loaded("torch", "nn")
    if torch is None:
        return nullcontext(Allocated())
    return torch_interop.counted(torch) if device is None else torch_interop.counted_on(torch, device)


def is_guest(function: Callable[..., Any]) -> bool:
    """Whether it is a PyTorch module or a function that JAX has jitted: these allocate from allocators of their own."""
    torch, jax = _loaded("torch", "nn"), _loaded("jax", "stages")
    return (torch is not None and torch_interop.is_module(torch, function)) or (
        jax is not None and _is_jitted(jax, function)
    )


def cached(device: int) -> int:
    """Bytes of a CUDA device that PyTorch keeps for later tensors."""
    torch = _loaded("torch", "nn")
    return 0 if torch is None else torch_interop.cached(torch, device)


def empty_caches() -> None:
    """Have PyTorch give the devices the memory that it keeps for later tensors. May block."""
    torch = _loaded("torch", "nn")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _is_jitted(jax: Any, function: Callable[..., Any]) -> bool:
    """By its type: `Wrapped` is a protocol, which would ask an object for its attributes each time. A mock has all."""
    kind = type(called(function))
    return issubclass(kind, jax.stages.Wrapped) or issubclass(kind, jax.stages.Compiled)


def _call_jitted(jax: Any, function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Call a jitted function, and wait for its result.

    The arrays in its result become NumPy's or CuPy's, in the same memory; those that are no numbers (keys of random
    generators) stay what they are.
    """
    # JAX takes NumPy's arrays by itself. A batcher's items may be on a card: it calls this without the stream.
    args = map_leaves(lambda arg: jax.dlpack.from_dlpack(arg) if _on_a_card(arg) else arg, list(args))
    result = jax.block_until_ready(function(*args))
    return jax.tree.map(partial(_array, jax), result)


def _wait(jax: Any, result: Any) -> None:
    """Wait for JAX's arrays in the result of a function that need not be JAX's: it may be anything."""
    try:
        parts = jax.tree.leaves(result)
    except (SystemError, TypeError, ValueError):  # JAX cannot walk a list that contains itself, or keys of two types
        parts = find((jax.Array,), result)
    kinds = {kind for kind in set(map(type, parts)) if issubclass(kind, jax.Array)}  # there may be a million parts
    if kinds:
        jax.block_until_ready([part for part in parts if type(part) in kinds])


def _on_a_card(arg: Any) -> bool:
    return hasattr(arg, "__cuda_array_interface__") and hasattr(arg, "__dlpack__")


def _array(jax: Any, result: Any) -> Any:
    if not isinstance(result, jax.Array) or jax.dtypes.issubdtype(result.dtype, jax.dtypes.prng_key):
        return result
    if all(device.platform == "cpu" for device in result.devices()):
        return np.asarray(result)
    import cupy

    return cupy.from_dlpack(result)


def _loaded(name: str, last: str) -> Any:
    """A module, if the program has imported it. A half imported module lacks its last names."""
    module = sys.modules.get(name)
    return module if isinstance(module, ModuleType) and hasattr(module, last) else None
