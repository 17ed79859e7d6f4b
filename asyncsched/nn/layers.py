"""The layers. Parameters have the names, shapes and initial distributions that PyTorch documents."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, Literal, Unpack

import numpy as np

from ..tensors.functions._common import lengths
from ..tensors.tensor import Tensor
from . import functional as F
from .initial import Initial, Options, Rng, draw_seed
from .module import Module

__all__ = ["GELU", "Conv2d", "Dropout", "Embedding", "Flatten", "LayerNorm", "Linear", "MaxPool2d", "ReLU"]
__all__ += ["Sequential"]


class Linear(Module):
    """x weight^T + bias, for x of (..., in_features).

    `weight` is (out_features, in_features), `bias` (out_features,); both are drawn evenly from -b to b with
    b = 1 / sqrt(in_features).

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         layer = asc.nn.Linear(3, 2, rng=0)
    ...         y = layer(await s.put(np.ones((4, 3), np.float32)))
    ...         print(layer, (await y).shape)
    >>> asc.run(main)
    Linear(weight=(2, 3), bias=(2,)) (4, 2)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, **options: Unpack[Options]) -> None:
        initial, bound = Initial(**options), 1 / sqrt(max(in_features, 1))
        self.weight = initial.uniform((out_features, in_features), bound)
        self.bias = initial.uniform((out_features,), bound) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Conv2d(Module):
    """A convolution of images (images, in_channels, height, width). Sizes are one number, or one for each direction.

    `weight` is (out_channels, in_channels, rows, columns), `bias` (out_channels,); both are drawn evenly from -b to b
    with b = 1 / sqrt(in_channels rows columns).
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: F.Size, stride: F.Size = 1, padding: F.Size = 0,
        dilation: F.Size = 1, *, bias: bool = True, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self.stride, self.padding, self.dilation = F.pair(stride), F.pair(padding), F.pair(dilation)
        shape = (out_channels, in_channels, *F.pair(kernel_size))
        initial, bound = Initial(**options), 1 / sqrt(max(prod(shape[1:]), 1))
        self.weight = initial.uniform(shape, bound)
        self.bias = initial.uniform((out_channels,), bound) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, stride=self.stride, padding=self.padding, dilation=self.dilation)


class MaxPool2d(Module):
    """The largest element of each window; by default the windows do not overlap."""

    def __init__(self, kernel_size: F.Size, stride: F.Size | None = None, padding: F.Size = 0) -> None:
        self.kernel_size = F.pair(kernel_size)
        self.stride = self.kernel_size if stride is None else F.pair(stride)
        self.padding = F.pair(padding)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding)


class Embedding(Module):
    """Rows of `weight` (num_embeddings, embedding_dim), drawn from the standard normal distribution.

    An index below 0 or above the last row is an IndexError where the result is awaited.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, **options: Unpack[Options]) -> None:
        self.weight = Initial(**options).normal((num_embeddings, embedding_dim))

    def forward(self, indices: Tensor) -> Tensor:
        return F.embedding(indices, self.weight)


class LayerNorm(Module):
    """The last axes brought to mean 0 and variance 1, times `weight` (at first 1) plus `bias` (at first 0)."""

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5, **options: Unpack[Options]) -> None:
        shape, initial, self.eps = lengths(normalized_shape), Initial(**options), eps
        self.weight, self.bias = initial.constant(shape, 1), initial.constant(shape, 0)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Dropout(Module):
    """In training each element 0 with probability `p`, else divided by 1 - p; in use nothing is changed.

    The state of its random numbers is part of `state_dict()`, so a resumed run drops what the unbroken one would have.
    """

    def __init__(self, p: float = 0.5, *, rng: Rng = None) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"p={p} must be a probability, from 0 to 1")
        self.p = p
        self._rng = np.random.default_rng(rng)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, seed=draw_seed(self._rng)) if self.training and self.p else x

    def get_extra_state(self) -> Any:
        return self._rng.bit_generator.state

    def set_extra_state(self, state: Any) -> None:
        self._rng.bit_generator.state = state


class ReLU(Module):
    """The larger of each element and 0."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


class GELU(Module):
    """x times the normal distribution function of x, or its approximation by tanh."""

    def __init__(self, approximate: Literal["none", "tanh"] = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, self.approximate)


class Flatten(Module):
    """All axes after the first made one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], prod(x.shape[1:]))  # -1 would not do where there are no rows


class Sequential(Module):
    """Modules called one after the other. Their names are "0", "1", ..., and they are had by number, as in a list.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         model = asc.nn.Sequential(asc.nn.Linear(3, 8, rng=0), asc.nn.ReLU(), asc.nn.Linear(8, 2, rng=1))
    ...         y = model(await s.put(np.ones((4, 3), np.float32)))
    ...         print(model[1], list(model.state_dict()), (await y).shape)
    >>> asc.run(main)
    ReLU() ['0.weight', '0.bias', '2.weight', '2.bias'] (4, 2)
    """

    def __init__(self, *modules: Module) -> None:
        for i, module in enumerate(modules):
            if not isinstance(module, Module):
                raise TypeError(
                    f"Sequential: {module!r} is no module: nn.ReLU() is one, and nn.relu and nn.ReLU are not"
                )
            setattr(self, str(i), module)

    def forward(self, x: Tensor) -> Tensor:
        for module in self._list():
            x = module(x)
        return x

    def __getitem__(self, i: int) -> Module:
        return self._list()[i]

    def __len__(self) -> int:
        return len(self._list())

    def _list(self) -> list[Module]:
        return [module for _, module in self._members(Module)]
