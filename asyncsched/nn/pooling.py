"""Pooling as modules."""

from __future__ import annotations

from collections.abc import Sequence

from ..tensors.tensor import Tensor
from . import functional as F
from .functional.common import Size, pair
from .module import Module

__all__ = ["AdaptiveAvgPool2d", "AvgPool2d", "MaxPool2d"]


class MaxPool2d(Module):
    """The largest element of each window; by default the windows do not overlap."""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        self.kernel_size = pair(kernel_size)
        self.stride = self.kernel_size if stride is None else pair(stride)
        self.padding = pair(padding)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding)


class AvgPool2d(Module):
    """The mean of each window; by default the windows do not overlap, and the padding counts."""

    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, *, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        self.kernel_size = pair(kernel_size)
        self.stride = self.kernel_size if stride is None else pair(stride)
        self.padding = pair(padding)
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
