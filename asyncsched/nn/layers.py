"""Linear layers, convolutions, pools, attention, the layers between them, and the initial values of their parameters.

Parameters have the names, shapes and initial distributions that PyTorch documents. Their values are drawn by tasks:
nothing waits, and nothing is copied from the host.

In training BatchNorm keeps running statistics, in buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import DTypeLike

from .._instead import OPTIONS
from ..ops.table import TABLE
from ..runtime.context import find
from ..runtime.runtime import Runtime
from ..tensors.arguments import dtype_of
from ..tensors.functions import full, moveaxis
from ..tensors.functions._common import lengths
from ..tensors.handles import runtime_of
from ..tensors.tensor import Tensor, apply
from . import functional as F
from .functional.layers import Padding, Size, check_padding, counted_batch_norm, pair, single
from .module import Module

__all__ = [
    "AvgPool2d", "BatchNorm1d", "BatchNorm2d", "Conv1d", "Conv2d", "Dropout", "Embedding",
    "Flatten", "GroupNorm", "Identity", "LayerNorm", "Linear", "MaxPool2d", "MultiheadAttention", "RMSNorm",
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

    weight: Tensor
    bias: Tensor | None

    def __init__(self, in_features: int, out_features: int, bias: bool = True, **options: Unpack[Options]) -> None:
        self.weight, self.bias = Initial(**options).weight_and_bias((out_features, in_features), bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class _Conv(Module):
    """The base of convolutions of one axis and of two: `_sizes` has a size for each axis."""

    _sizes: Callable[[Size], tuple[int, ...]]
    weight: Tensor
    bias: Tensor | None

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | Padding = 0,
        dilation: Size = 1, *, bias: bool = True, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self.stride: tuple[int, ...] = self._sizes(stride)
        self.padding: Any = check_padding(padding) if isinstance(padding, str) else self._sizes(padding)
        self.dilation: tuple[int, ...] = self._sizes(dilation)
        shape = (out_channels, in_channels, *self._sizes(kernel_size))
        self.weight, self.bias = Initial(**options).weight_and_bias(shape, bias)


class Conv1d(_Conv):
    """A convolution of sequences (sequences, in_channels, length).

    `weight` is (out_channels, in_channels, kernel_size), `bias` (out_channels,); both are drawn evenly from -b to b
    with b = 1 / sqrt(in_channels kernel_size).

    >>> nn.Conv1d(3, 4, 3)(asc.ones((1, 3, 8), dtype=asc.float32)).shape
    (1, 4, 6)
    """

    _sizes = staticmethod(single)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x, self.weight, self.bias, stride=self.stride, padding=self.padding, dilation=self.dilation)


class Conv2d(_Conv):
    """A convolution of images (images, in_channels, height, width). Sizes are one number, or one for each direction;
    `padding="same"` keeps the size of the images.

    `weight` is (out_channels, in_channels, rows, columns), `bias` (out_channels,); both are drawn evenly from -b to b
    with b = 1 / sqrt(in_channels rows columns).

    >>> nn.Conv2d(3, 4, 3)(asc.ones((1, 3, 8, 8), dtype=asc.float32)).shape
    (1, 4, 6, 6)
    """

    _sizes = staticmethod(pair)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, stride=self.stride, padding=self.padding, dilation=self.dilation)


class _Pool(Module):
    """The base of pools of a window; by default the windows do not overlap."""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        self.kernel_size: tuple[int, int] = pair(kernel_size)
        self.stride: tuple[int, int] = self.kernel_size if stride is None else pair(stride)
        self.padding: tuple[int, int] = pair(padding)


class MaxPool2d(_Pool):
    """The largest element of each window; by default the windows do not overlap.

    >>> nn.MaxPool2d(2)(asc.ones((1, 3, 8, 8))).shape
    (1, 3, 4, 4)
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding)


class AvgPool2d(_Pool):
    """The mean of each window; by default the windows do not overlap, and the padding counts.

    >>> nn.AvgPool2d(2)(asc.ones((1, 3, 8, 8))).shape
    (1, 3, 4, 4)
    """

    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, *, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, padding)
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(
            x, self.kernel_size, self.stride, self.padding,
            count_include_pad=self.count_include_pad, divisor_override=self.divisor_override,
        )  # fmt: skip


class Embedding(Module):
    """Rows of `weight` (num_embeddings, embedding_dim), drawn from the standard normal distribution.

    An index below 0 or above the last row raises IndexError where the result is awaited.

    >>> x = await s.put(np.array([1, 7]))
    >>> nn.Embedding(10, 4)(x).shape
    (2, 4)
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, **options: Unpack[Options]) -> None:
        self.weight: Tensor = Initial(**options).normal((num_embeddings, embedding_dim))

    def forward(self, indices: Tensor) -> Tensor:
        return F.embedding(indices, self.weight)


class MultiheadAttention(Module):
    """Attention of `num_heads` heads, over batches of sequences (batch, length, embed_dim).

    A. Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2. As in PyTorch, `in_proj_weight` (3 embed_dim,
    embed_dim) has the projections of query, key and value one below the other, drawn evenly from -b to b with b =
    sqrt(6 / (4 embed_dim)); `out_proj` is a Linear; the biases start at 0. Unlike there, the batch comes first, and the
    result is one tensor, since the weights are never in memory as a whole.

    >>> x = asc.ones((2, 5, 8), dtype=asc.float32)
    >>> nn.MultiheadAttention(8, 2)(x, x, x).shape
    (2, 5, 8)
    """

    def __init__(self, embed_dim: int, num_heads: int, *, bias: bool = True, **options: Unpack[Options]) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} must be divisible by num_heads={num_heads}")
        self.num_heads = num_heads
        initial = Initial(**options)
        options["rng"] = initial.rng  # one generator for both, since two from one seed would draw the same numbers
        self.in_proj_weight: Tensor = initial.uniform((3 * embed_dim, embed_dim), sqrt(6 / (4 * embed_dim)))
        self.in_proj_bias: Tensor | None = initial.constant((3 * embed_dim,), 0) if bias else None
        self.out_proj: Linear = Linear(embed_dim, embed_dim, bias=False, **options)
        self.out_proj.bias = initial.constant((embed_dim,), 0) if bias else None

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Attend from `query` (batch, L, embed_dim) to itself, or to `key` and `value` (batch, S, embed_dim).

        Args:
            query, key, value: the default of the key is the query, that of the value the key.
            attn_mask: (L, S), (batch * heads, L, S), or a shape that broadcasts to (batch, heads, L, S): boolean, True
                where *not* to attend, as in PyTorch's module, or numbers to add. Gets no gradient. PyTorch's
                `key_padding_mask=pad`, of (batch, S), is `attn_mask=pad[:, None, None, :]`.
            is_causal: let position i attend to 0 to i only, in addition to the mask.

        Raises:
            ValueError, TypeError: for shapes and dtypes that do not fit.
        """
        mask = self._mask(attn_mask, query)
        if key is None and value is None:  # one product for all three
            q, k, v = self._by_heads(F.linear(query, self.in_proj_weight, self.in_proj_bias), 3)
        else:
            key = query if key is None else key
            q, k, v = [self._projected(x, i) for i, x in enumerate((query, key, key if value is None else value))]
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)
        return self.out_proj(moveaxis(y, -3, -2).reshape(query.shape))

    def _mask(self, mask: Tensor | None, query: Tensor) -> Tensor | None:
        """The mask as the functions take it: by batch and heads, and True where to attend."""
        if not isinstance(mask, Tensor):
            return mask
        if mask.ndim == 3:
            batch = query.shape[0]
            if mask.shape[0] != (batch or 0) * self.num_heads:
                raise ValueError(
                    f"attn_mask has shape {mask.shape} for a batch of {batch} and {self.num_heads} heads: with three"
                    " axes the first is batch * heads; with four they are (batch, heads, L, S), and may be 1"
                )
            mask = mask.reshape(batch, self.num_heads, *mask.shape[1:])
        return ~mask if mask.dtype == bool else mask

    def _projected(self, x: Tensor, i: int) -> Tensor:
        """The query, the key or the value of each head."""
        width = self.in_proj_weight.shape[1] or 0
        part = slice(i * width, (i + 1) * width)
        bias = None if self.in_proj_bias is None else self.in_proj_bias[part]
        return self._by_heads(F.linear(x, self.in_proj_weight[part], bias), 1)[0]

    def _by_heads(self, x: Tensor, parts: int) -> Tensor:
        """Parts that stand side by side on the last axis: (parts, batch, heads, length, width of a head)."""
        width = (self.in_proj_weight.shape[1] or 0) // self.num_heads
        return moveaxis(x.reshape(*x.shape[:-1], parts, self.num_heads, width), (-3, -2), (0, -3))


class Dropout(Module):
    """In training each element is set to 0 with probability `p`, else divided by 1 - p. In `eval()` nothing changes.

    The state of its random numbers is part of `state_dict()`, so a resumed run drops the same elements as an unbroken
    one. A captured step takes it in `eval()` only, since all replays would drop the same elements.

    >>> nn.Dropout(0.5, rng=0)(asc.ones(5)).shape
    (5,)

    Raises:
        CaptureError: if it is called in training, while a step is captured.
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
    """Makes one axis of all axes after the first.

    >>> nn.Flatten()(asc.ones((1, 3, 8, 8))).shape
    (1, 192)
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], prod(x.shape[1:]))  # -1 would not do if there are no rows


class Identity(Module):
    """Returns its argument. The constructor takes any arguments, and ignores them.

    >>> await nn.Identity()(asc.arange(2))
    array([0, 1])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return x


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


Rng: TypeAlias = "np.random.Generator | int | None"  # as text, since naming NumPy's `random` imports it


class Options(TypedDict, total=False):
    """The options of every constructor that makes parameters."""

    dtype: DTypeLike
    rng: Rng
    device: object
    scheduler: Any


class Initial:
    """Makes parameters. All have `requires_grad` set."""

    def __init__(self, **options: Unpack[Options]) -> None:
        for name in options:  # of a layer's constructor, which passes on also those that it does not know
            if name not in Options.__annotations__:
                raise TypeError(f"a layer has no option {name!r}" + (f": {OPTIONS[name]}" if name in OPTIONS else ""))
        self._dtype = dtype_of(options.get("dtype", np.float32))
        self.rng: np.random.Generator = np.random.default_rng(options.get("rng"))
        self._where: dict[str, Any] = {name: options.get(name) for name in ("device", "scheduler")}

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
