"""Attention with several heads."""

from __future__ import annotations

from math import sqrt
from typing import Unpack

from ..tensors.functions import permute_dims
from ..tensors.functions._common import op
from ..tensors.tensor import Tensor
from . import functional as F
from .functional.layers import mask_operand
from .initial import Initial, Options
from .layers import Linear
from .module import Module


class MultiheadAttention(Module):
    """Attention of `num_heads` heads, over batches of sequences (batch, length, embed_dim).

    A. Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2. As in PyTorch, `in_proj_weight`
    (3 embed_dim, embed_dim) has the projections of query, key and value one below the other, drawn evenly from -b to b
    with b = sqrt(6 / (4 embed_dim)); `out_proj` is a Linear; the biases start at 0. Other than there, the batch comes
    first, and the result is one tensor, since the weights are never in memory as a whole.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, bias: bool = True, **options: Unpack[Options]) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} must be divisible by num_heads={num_heads}")
        initial, self.num_heads = Initial(**options), num_heads
        options["rng"] = initial.rng  # one generator for both: two from one seed would draw the same numbers
        self.in_proj_weight = initial.uniform((3 * embed_dim, embed_dim), sqrt(6 / (4 * embed_dim)))
        self.in_proj_bias = initial.constant((3 * embed_dim,), 0) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias=False, **options)
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
            query, key, value: without a key it is the query, without a value it is the key.
            attn_mask: (L, S), (batch * heads, L, S), or what broadcasts to (batch, heads, L, S): boolean, True where
                *not* to attend, as in PyTorch's module, or numbers to add. Gets no gradient. PyTorch's
                `key_padding_mask=pad`, of (batch, S), is `attn_mask=pad[:, None, None, :]`.
            is_causal: let position i attend to 0 to i only, in addition to the mask.

        Raises:
            ValueError, TypeError: for shapes and dtypes that do not fit.
        """
        mask = self._mask(attn_mask, query)
        if key is None and value is None:
            packed = F.linear(query, self.in_proj_weight, self.in_proj_bias)
            y = op("self_attention", packed, mask_operand(mask), heads=self.num_heads, causal=is_causal)
        else:
            key = query if key is None else key
            q, k, v = [self._heads(x, i) for i, x in enumerate((query, key, key if value is None else value))]
            y = permute_dims(F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal), (0, 2, 1, 3))
            y = y.reshape(query.shape)
        return self.out_proj(y)

    def _mask(self, mask: Tensor | None, query: Tensor) -> Tensor | None:
        """The mask as the functions have it: by batch and heads, and True where to attend."""
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

    def _heads(self, x: Tensor, i: int) -> Tensor:
        """The query, the key or the value of each head: (batch, heads, length, width)."""
        heads, width = self.num_heads, self.in_proj_weight.shape[1] or 0
        part = slice(i * width, (i + 1) * width)
        weight, bias = self.in_proj_weight[part], None if self.in_proj_bias is None else self.in_proj_bias[part]
        return permute_dims(F.linear(x, weight, bias).reshape(*x.shape[:2], heads, width // heads), (0, 2, 1, 3))
