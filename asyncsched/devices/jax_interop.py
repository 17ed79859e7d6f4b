"""JAX inside a task: its jitted functions take and give arrays, and are over when the task is.

A jitted function returns before it is computed. To wait for that is the business of the stream's thread: on the loop's,
everything else would stand still. Nothing here imports JAX: a program that uses it did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .._tree import map_leaves


def is_jitted(jax: Any, function: object) -> bool:
    """Whether JAX compiles the function, or has compiled it."""
    return isinstance(function, jax.stages.Wrapped | jax.stages.Compiled)


def call(jax: Any, function: Callable[..., Any], args: Sequence[Any], stream: Any = None) -> Any:
    """Call a jitted function, and wait for what it computes.

    The arrays in its result become NumPy's or CuPy's, in the same memory; those that are no numbers (keys of random
    generators) stay what they are.
    """
    if stream is not None:  # JAX knows NumPy's arrays by itself
        args = map_leaves(lambda arg: jax.dlpack.from_dlpack(arg) if _on_a_card(arg) else arg, list(args))
    result = jax.block_until_ready(function(*args))
    return jax.tree.map(partial(_array, jax), result)


def _on_a_card(arg: Any) -> bool:
    return hasattr(arg, "__cuda_array_interface__") and hasattr(arg, "__dlpack__")


def _array(jax: Any, result: Any) -> Any:
    if not isinstance(result, jax.Array) or jax.dtypes.issubdtype(result.dtype, jax.dtypes.prng_key):
        return result
    if all(device.platform == "cpu" for device in result.devices()):
        return np.asarray(result)
    import cupy

    return cupy.from_dlpack(result)
