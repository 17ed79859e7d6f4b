"""Linear layers, convolutions, pools and what goes between them.

Parameters have the names, shapes and initial distributions that PyTorch documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Unpack

import numpy as np

from ..tensors.handles import runtime_of
from ..tensors.tensor import Tensor
from . import functional as F
from .functional.common import Size, pair, single
from .initial import Initial, Options, Rng, draw_seed
from .module import Module

__all__ = [
    "AdaptiveAvgPool2d", "AvgPool2d", "Conv1d", "Conv2d", "Dropout", "Embedding", "Flatten", "Identity", "Linear",
    "MaxPool2d",
]  # fmt: skip


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
        self.weight, self.bias = Initial(**options).weight_and_bias((out_features, in_features), bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class _Conv(Module):
    """What convolutions of one axis and of two have in common: `_sizes` has a size for each axis."""

    _sizes: Callable[[Size], tuple[int, ...]]

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0,
        dilation: Size = 1, *, bias: bool = True, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self.stride, self.padding, self.dilation = self._sizes(stride), self._sizes(padding), self._sizes(dilation)
        shape = (out_channels, in_channels, *self._sizes(kernel_size))
        self.weight, self.bias = Initial(**options).weight_and_bias(shape, bias)


class Conv1d(_Conv):
    """A convolution of sequences (sequences, in_channels, length).

    `weight` is (out_channels, in_channels, kernel_size), `bias` (out_channels,); both are drawn evenly from -b to b
    with b = 1 / sqrt(in_channels kernel_size).
    """

    _sizes = staticmethod(single)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x, self.weight, self.bias, stride=self.stride, padding=self.padding, dilation=self.dilation)


class Conv2d(_Conv):
    """A convolution of images (images, in_channels, height, width). Sizes are one number, or one for each direction.

    `weight` is (out_channels, in_channels, rows, columns), `bias` (out_channels,); both are drawn evenly from -b to b
    with b = 1 / sqrt(in_channels rows columns).
    """

    _sizes = staticmethod(pair)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, stride=self.stride, padding=self.padding, dilation=self.dilation)


class _Pool(Module):
    """What pools of a window have in common; by default the windows do not overlap."""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        self.kernel_size = pair(kernel_size)
        self.stride = self.kernel_size if stride is None else pair(stride)
        self.padding = pair(padding)


class MaxPool2d(_Pool):
    """The largest element of each window; by default the windows do not overlap."""

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding)


class AvgPool2d(_Pool):
    """The mean of each window; by default the windows do not overlap, and the padding counts."""

    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, *, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, padding)
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(
            x, self.kernel_size, self.stride, self.padding,
            count_include_pad=self.count_include_pad, divisor_override=self.divisor_override,
        )  # fmt: skip


class AdaptiveAvgPool2d(Module):
    """The means of windows so laid that they give `output_size` rows and columns; None for as many as there are."""

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, self.output_size)


class Embedding(Module):
    """Rows of `weight` (num_embeddings, embedding_dim), drawn from the standard normal distribution.

    An index below 0 or above the last row is an IndexError where the result is awaited.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, **options: Unpack[Options]) -> None:
        self.weight = Initial(**options).normal((num_embeddings, embedding_dim))

    def forward(self, indices: Tensor) -> Tensor:
        return F.embedding(indices, self.weight)


class Dropout(Module):
    """In training each element is set to 0 with probability `p`, else divided by 1 - p. In use nothing is changed.

    The state of its random numbers is part of `state_dict()`, so a resumed run drops what the unbroken one would have.
    A captured step takes it in `eval()` only, since its replays would all drop the same.

    Raises:
        CaptureError: by a call in training, while a step is captured.
    """

    def __init__(self, p: float = 0.5, *, rng: Rng = None) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"p={p} must be a probability, from 0 to 1")
        self.p = p
        self._rng = np.random.default_rng(rng)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        seed = draw_seed(self._rng, runtime_of(x._value), "Dropout, which draws anew for each call except in `eval()`,")
        return F.dropout(x, self.p, seed=seed)

    def get_extra_state(self) -> Any:
        return self._rng.bit_generator.state

    def set_extra_state(self, state: Any) -> None:
        self._rng.bit_generator.state = state


class Flatten(Module):
    """Makes one axis of all after the first."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], prod(x.shape[1:]))  # -1 would not do where there are no rows


class Identity(Module):
    """Returns what it is called with. The constructor takes any arguments, and ignores them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return x
