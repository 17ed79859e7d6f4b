"""Guests: a task's function that is PyTorch's or JAX's, or calls them.

Nothing here imports either: a program that uses one did.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from . import jax_interop, torch_interop


class Allocated(Protocol):
    """What a body took, in bytes: at most at one time, and of that what it left behind."""

    peak: int
    kept: int


def call(function: Callable[..., Any], args: Sequence[Any], stream: Any = None, device: int = 0) -> Any:
    """Call a task's function. PyTorch's modules and JAX's jitted functions are given arrays, and give arrays.

    On a CUDA stream PyTorch's own work goes to that stream. JAX's is over when this returns, whoever called it.
    """
    modules = sys.modules
    if "torch" not in modules and "jax" not in modules:
        return function(*args)
    torch, jax = _loaded("torch", "nn"), _loaded("jax", "stages")
    if jax is not None and jax_interop.is_jitted(jax, function):
        return jax_interop.call(jax, function, args, stream)
    result = function(*args) if torch is None else torch_interop.call(torch, function, args, stream, device)
    return result if jax is None else jax.block_until_ready(result)


def allocated(device: int | None = None) -> AbstractContextManager[Allocated]:
    """Counts what PyTorch allocates in a block, on this thread; on the CUDA device of that number by its allocator."""
    torch = _loaded("torch", "nn")
    if torch is None:
        return nullcontext(_Nothing())
    return torch_interop.counted(torch) if device is None else torch_interop.counted_on(torch, device)


class _Nothing:
    peak = kept = 0


def _loaded(name: str, last: str) -> Any:
    """A module, if the program has imported it. Half imported it lacks what is defined last."""
    module = sys.modules.get(name)
    return module if hasattr(module, last) else None
