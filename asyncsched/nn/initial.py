"""Initial values of parameters, drawn by tasks: nothing waits, and nothing is copied from the host."""

from __future__ import annotations

from math import prod, sqrt
from typing import Any, TypeAlias, TypedDict

import numpy as np
from numpy.typing import DTypeLike

from .._instead import OPTIONS
from ..ops.table import TABLE
from ..runtime.context import find
from ..runtime.runtime import Runtime
from ..tensors.arguments import dtype_of
from ..tensors.functions import full
from ..tensors.functions._common import lengths
from ..tensors.tensor import Tensor, apply

Rng: TypeAlias = "np.random.Generator | int | None"  # as text, since naming NumPy's `random` imports it


class Options(TypedDict, total=False):
    """The options of every constructor that makes parameters."""

    dtype: DTypeLike
    rng: Rng
    device: object
    scheduler: Any


class Initial:
    """Makes parameters. All have `requires_grad` set."""

    def __init__(
        self,
        dtype: DTypeLike = np.float32,
        rng: Rng = None,
        device: object = None,
        scheduler: Any = None,
        **unknown: object,
    ) -> None:
        for name in unknown:  # from a layer's constructor, which passes on options that it does not know
            raise TypeError(f"a layer has no option {name!r}" + (f": {OPTIONS[name]}" if name in OPTIONS else ""))
        self._dtype = dtype_of(dtype)
        self.rng: np.random.Generator = np.random.default_rng(rng)
        self._where = {"device": device, "scheduler": scheduler}

    def uniform(self, shape: tuple[int, ...], bound: float) -> Tensor:
        """A parameter drawn evenly from -bound to bound."""
        return self._drawn("uniform", shape, low=-bound, high=bound)

    def weight_and_bias(self, shape: tuple[int, ...], bias: bool) -> tuple[Tensor, Tensor | None]:
        """A weight (outputs, ...) and perhaps a bias (outputs,), drawn evenly within 1 / sqrt(inputs of an output)."""
        bound = 1 / sqrt(max(prod(shape[1:]), 1))
        return self.uniform(shape, bound), self.uniform(shape[:1], bound) if bias else None

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """A parameter drawn from the standard normal distribution."""
        return self._drawn("normal", shape)

    def constant(self, shape: tuple[int, ...], value: float) -> Tensor:
        """A parameter with one value throughout."""
        return _parameter(full(shape, value, dtype=self._dtype, **self._where))

    def buffer(self, shape: tuple[int, ...], value: float, dtype: DTypeLike | None = None) -> Tensor:
        """A buffer with one value throughout."""
        return full(shape, value, dtype=self._dtype if dtype is None else dtype, **self._where)

    def _drawn(self, name: str, shape: tuple[int, ...], **options: float) -> Tensor:
        form = {"shape": lengths(shape), "dtype": self._dtype}
        seed = draw_seed(self.rng, find(self._where["scheduler"]), "a layer's initial values")
        return _parameter(apply(TABLE[name], (seed,), form | options, **self._where))


def draw_seed(rng: np.random.Generator, runtime: Runtime, what: str) -> int:
    """A seed for a task. Refused in a captured step, whose replays would all draw the same."""
    if runtime.sink is not None:
        runtime.sink.refuse(what)
    return int(rng.integers(2**63))


def _parameter(tensor: Tensor) -> Tensor:
    tensor.requires_grad = True
    return tensor
