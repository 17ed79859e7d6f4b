"""The server of `generate.py` with a PyTorch module as a guest: the same transformer, with random weights.

It runs on a stream's thread, without gradients, and does not use the event loop. Its caches are PyTorch's tensors.
Their bytes are reserved as in `generate.py`. They are free when a client has left, which waits for a step that still
writes to them.

    python demos/generate_guest.py [--port 8000] [--caches 12]                needs PyTorch
"""

from __future__ import annotations

import sys
from typing import Any

if __name__ == "__main__":
    print(__doc__.splitlines()[0], "Loading ...", flush=True)  # now, since the imports below take a while

import generate
from generate import CACHE, CONTEXT, HEADS, LAYERS, WIDTH, Texts

try:
    import torch
except ImportError:
    sys.exit("PyTorch is not installed: pip install torch")
from torch.nn import Embedding, LayerNorm, Linear, Module, ModuleList
from torch.nn.functional import gelu, scaled_dot_product_attention


class Layer(Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = LayerNorm(WIDTH), LayerNorm(WIDTH)
        self.qkv, self.out = Linear(WIDTH, 3 * WIDTH), Linear(WIDTH, WIDTH)
        self.up, self.down = Linear(WIDTH, 4 * WIDTH), Linear(4 * WIDTH, WIDTH)


class Transformer(Module):  # type: ignore[misc]
    """A step for all texts of a list of requests."""

    async def open(self, s: Any, text: Any, options: Any) -> None:
        self.character, self.place = Embedding(len(text.characters), WIDTH), Embedding(CONTEXT, WIDTH)
        self.layers, self.last = ModuleList([Layer() for _ in range(LAYERS)]), Linear(WIDTH, len(text.characters))
        self.eval()

    def cache(self) -> Any:
        return torch.zeros(CACHE)

    def forward(self, members: list[Texts]) -> list[Any]:
        caches = [(cache, member.at) for member in members for cache in member.caches]
        last = torch.tensor([number for member in members for number in member.last])
        x = self.character(last) + self.place(torch.tensor([at for _, at in caches]))
        for number, layer in enumerate(self.layers):
            heads, qkv = [], layer.qkv(layer.norm1(x)).view(len(caches), 3, HEADS, -1)
            for (cache, at), (query, *rest) in zip(caches, qkv, strict=True):
                cache[number, :, :, at] = torch.stack(rest)
                keys, values = cache[number, :, :, : at + 1]
                heads.append(scaled_dot_product_attention(query[:, None], keys, values))
            x = x + layer.out(torch.stack(heads).view(len(caches), WIDTH))
            x = x + layer.down(gelu(layer.up(layer.norm2(x))))
        rows = self.last(x).split([len(member.last) for member in members])
        return [member.take(found.numpy()) for member, found in zip(members, rows, strict=True)]


if __name__ == "__main__":
    torch.manual_seed(0)
    generate.main(Transformer())
