"""Kernels of random numbers: NumPy's from the state of a generator, which they give back; CuPy's from a seed."""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np

from .layers import seeded

STATE = 6  # words of 64 bits: the state and the increment of PCG64, 128 bits each, and half a word that is left over
_here = threading.local()


def words(generator: np.random.Generator) -> tuple[int, ...]:
    """The state of a generator as words."""
    state: Any = generator.bit_generator.state
    numbers = state["state"]["state"], state["state"]["inc"]
    halves = [word for number in numbers for word in (number & (2**64 - 1), number >> 64)]
    return (*halves, state["has_uint32"], state["uinteger"])


def draw(xp: Any, *arrays: Any, start: Any, method: str, tensors: Any, named: Any, shape: Any, dtype: Any) -> Any:
    """The state after a draw, and what was drawn. The state before is `start`, or else the first array."""
    state, operands = (start, arrays) if start is not None else (arrays[0], arrays[1:])
    generator = _generator([int(word) for word in state])
    found = getattr(generator, method)(**dict(named), **dict(zip(tensors, operands, strict=True)))
    return np.asarray(words(generator), np.uint64), np.asarray(found).astype(dtype, copy=False)


def draw_seeded(
    xp: Any, seed: int, *operands: Any, method: str, tensors: Any, named: Any, shape: Any, dtype: Any
) -> Any:
    """The same from a generator of its own, for where no state is kept."""
    generator, given, arrays = seeded(xp, seed), dict(named), dict(zip(tensors, operands, strict=True))
    if method in ("permutation", "choice"):
        return (_permutation if method == "permutation" else _choice)(xp, generator, arrays, shape=shape, **given)
    if method == "normal":
        found = generator.standard_normal(shape) * given["scale"] + given["loc"]
    elif method == "integers":
        found = generator.integers(given["low"], given["high"], size=shape, dtype=dtype, endpoint=given["endpoint"])
    else:
        given.pop("dtype", None)
        found = getattr(generator, method)(**{**given, "size": shape})
    return xp.asarray(found).astype(dtype, copy=False)


def _permutation(xp: Any, generator: Any, arrays: Any, *, shape: Any, x: int | None = None, axis: int = 0) -> Any:
    order = xp.argsort(generator.random(shape[axis]))
    return order if x is not None else xp.take(arrays["x"], order, axis=axis)


def _choice(
    xp: Any, generator: Any, arrays: Any, *, shape: Any, size: Any, replace: bool, axis: int = 0,
    shuffle: bool = True, a: int | None = None,
) -> Any:  # fmt: skip
    count = arrays["a"].shape[axis] if a is None else a
    wanted = prod(size)
    if "p" in arrays:
        ends = xp.cumsum(arrays["p"])
        if replace:
            places = xp.searchsorted(ends / ends[-1], generator.random(wanted), side="right")
        else:  # the largest of u ** (1 / p), by Efraimidis and Spirakis
            places = xp.argsort(-xp.log(generator.random(count)) / arrays["p"])[:wanted]
    elif replace:
        places = generator.integers(0, count, size=wanted)
    else:
        places = xp.argsort(generator.random(count))[:wanted]
    places = places.reshape(size)
    return places if a is not None else xp.take(arrays["a"], places, axis=axis)


def _generator(state: list[int]) -> np.random.Generator:
    """This thread's, set to a state: to make one takes longer than to draw."""
    if not hasattr(_here, "generator"):
        _here.generator = np.random.Generator(np.random.PCG64(0))
    generator: np.random.Generator = _here.generator
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": state[0] | state[1] << 64, "inc": state[2] | state[3] << 64},
        "has_uint32": state[4],
        "uinteger": state[5],
    }
    return generator
