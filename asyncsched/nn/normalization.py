"""Normalization as modules. In training BatchNorm keeps running statistics, in buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from ..tensors.functions._common import lengths
from ..tensors.tensor import Tensor
from . import functional as F
from .functional.normalization import counted_batch_norm
from .initial import Initial, Options
from .module import Module

__all__ = ["BatchNorm1d", "BatchNorm2d", "GroupNorm", "LayerNorm", "RMSNorm"]


class LayerNorm(Module):
    """The last axes brought to mean 0 and variance 1, times `weight` (at first 1) plus `bias` (at first 0).

    >>> nn.LayerNorm(4)(asc.ones((2, 4), dtype=asc.float32)).shape
    (2, 4)
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        initial = Initial(**options)
        self.normalized_shape: tuple[int, ...] = lengths(normalized_shape)
        self.eps = eps
        self.weight: Tensor | None = initial.constant(self.normalized_shape, 1) if elementwise_affine else None
        self.bias: Tensor | None = initial.constant(self.normalized_shape, 0) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """The last axes over the root of the mean of their squares, times `weight` (at first 1).

    >>> nn.RMSNorm(4)(asc.ones((2, 4), dtype=asc.float32)).shape
    (2, 4)
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        initial = Initial(**options)
        self.normalized_shape: tuple[int, ...] = lengths(normalized_shape)
        self.eps = eps
        self.weight: Tensor | None = initial.constant(self.normalized_shape, 1) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GroupNorm(Module):
    """Groups of channels of each example brought to mean 0 and variance 1, times `weight` (1) plus `bias` (0).

    >>> nn.GroupNorm(2, 4)(asc.ones((1, 4, 3), dtype=asc.float32)).shape
    (1, 4, 3)
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, **options: Unpack[Options]
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(f"num_channels={num_channels} must be divisible by num_groups={num_groups}")
        initial = Initial(**options)
        self.num_groups = num_groups
        self.eps = eps
        self.weight: Tensor | None = initial.constant((num_channels,), 1) if affine else None
        self.bias: Tensor | None = initial.constant((num_channels,), 0) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class _BatchNorm(Module):
    """Each channel brought to mean 0 and variance 1 over the batch, times `weight` (at first 1) plus `bias` (0).

    In training `running_mean` and `running_var` follow the statistics of the batches, and `num_batches_tracked` counts
    the batches. In `eval()` they are used in place of the batch's statistics. All three are buffers: part of
    `state_dict()`, and not parameters. A forward pass in training moves them to new versions, as one commit, when the
    batch's statistics are there. If the batch fails or is cancelled before, they stay as they were, and later batches
    go on from there. If the optimiser's step is skipped for another reason, later in the batch, they are not set back.
    A captured step takes this module in `eval()` only.

    Args:
        num_features: how many channels there are.
        eps: keeps the quotient finite.
        momentum: how much of a batch goes into the running statistics; None for the mean over all batches.
        affine: whether there are weight and bias.
        track_running_stats: if False, each batch is normalized by its own statistics, also in `eval()`.

    Raises:
        ValueError, TypeError: if it is called with a shape that does not fit, and in training for channels of a single
            element.
        QueueFull, CaptureError: if it is called in training without room, or while a step is captured.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         norm = asc.nn.BatchNorm1d(2)
    ...         y = norm(await s.put(np.array([[0, 10], [2, 30]], np.float32)))
    ...         print(await y, await norm.running_mean, await norm.num_batches_tracked.item())
    >>> asc.run(main)  # a tenth of the means, 1 and 20
    [[-0.999995 -1.      ]
     [ 0.999995  1.      ]] [0.1 2. ] 1
    """

    _axes: tuple[int, ...] = ()  # how many an input may have
    _form = ""
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self.eps = eps
        self.momentum = momentum
        initial, shape = Initial(**options), (num_features,)
        self.weight: Tensor | None = initial.constant(shape, 1) if affine else None
        self.bias: Tensor | None = initial.constant(shape, 0) if affine else None
        self.register_buffer("running_mean", initial.buffer(shape, 0) if track_running_stats else None)
        self.register_buffer("running_var", initial.buffer(shape, 1) if track_running_stats else None)
        self.register_buffer("num_batches_tracked", initial.buffer((), 0, "i8") if track_running_stats else None)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in self._axes:
            raise ValueError(f"{type(self).__name__}: shape {x.shape} must be {self._form}")
        mean, variance, count = self.running_mean, self.running_var, self.num_batches_tracked
        running = None if mean is None or variance is None else (mean, variance)
        training = self.training or running is None
        return counted_batch_norm(x, running, self.weight, self.bias, training, self.momentum, self.eps, count)


class BatchNorm1d(_BatchNorm):
    __doc__ = f"{_BatchNorm.__doc__}\n    The input is (examples, channels) or (examples, channels, length).\n    "
    _axes, _form = (2, 3), "(examples, channels) or (examples, channels, length)"


class BatchNorm2d(_BatchNorm):
    __doc__ = f"{_BatchNorm.__doc__}\n    The input is (images, channels, height, width).\n    "
    _axes, _form = (4,), "(images, channels, height, width)"
