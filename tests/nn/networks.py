"""Three networks in PyTorch's terms and in ours, with the same names of parameters."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

import asyncsched as asc
from asyncsched import nn

LENGTH, WORDS, WIDTH = 12, 17, 16


def mlp(nn: Any, **options: Any) -> Any:
    return nn.Sequential(nn.Linear(64, 32, **options), nn.ReLU(), nn.Linear(32, 10, **options))


def cnn(nn: Any, **options: Any) -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, **options),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, **options),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 10, **options),
    )


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and added to what came in."""

    def __init__(self, **options: Any) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, **options), nn.LayerNorm(WIDTH, **options)
        self.attention = nn.MultiheadAttention(WIDTH, 2, **options)
        wide, narrow = nn.Linear(WIDTH, 4 * WIDTH, **options), nn.Linear(4 * WIDTH, WIDTH, **options)
        self.mlp = nn.Sequential(wide, nn.GELU(), narrow)

    def forward(self, x: asc.Tensor) -> asc.Tensor:
        x = x + self.attention(self.norm1(x), is_causal=True)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Next words: embedding of words and places, two blocks, a norm and a Linear."""

    def __init__(self, **options: Any) -> None:
        self.words, self.places = nn.Embedding(WORDS, WIDTH, **options), nn.Embedding(LENGTH, WIDTH, **options)
        self.blocks = [Block(**options), Block(**options)]
        self.norm, self.head = nn.LayerNorm(WIDTH, **options), nn.Linear(WIDTH, WORDS, **options)

    def forward(self, words: asc.Tensor) -> asc.Tensor:
        x = self.words(words) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).reshape(-1, WORDS)


def torch_transformer(torch: ModuleType, **options: Any) -> Any:
    """The same in PyTorch."""
    tnn = torch.nn
    mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)

    class TorchBlock(tnn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = tnn.LayerNorm(WIDTH, **options), tnn.LayerNorm(WIDTH, **options)
            self.attention = tnn.MultiheadAttention(WIDTH, 2, batch_first=True, **options)
            wide, narrow = tnn.Linear(WIDTH, 4 * WIDTH, **options), tnn.Linear(4 * WIDTH, WIDTH, **options)
            self.mlp = tnn.Sequential(wide, tnn.GELU(), narrow)

        def forward(self, x: Any) -> Any:
            y = self.norm1(x)
            x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
            return x + self.mlp(self.norm2(x))

    class TorchTransformer(tnn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = tnn.Embedding(WORDS, WIDTH, **options), tnn.Embedding(LENGTH, WIDTH, **options)
            self.blocks = tnn.ModuleList([TorchBlock(), TorchBlock()])
            self.norm, self.head = tnn.LayerNorm(WIDTH, **options), tnn.Linear(WIDTH, WORDS, **options)

        def forward(self, words: Any) -> Any:
            x = self.words(words) + self.places.weight
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)).reshape(-1, WORDS)

    return TorchTransformer()


def data(name: str, count: int, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    """What the network of this name learns, and the targets."""
    if name == "transformer":
        return sentences(count)
    x, labels = digits(count, dtype)
    return (x.reshape(-1, 1, 8, 8) if name == "cnn" else x), labels


def digits(count: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Blurred patterns of 8 x 8 like handwritten digits, and what they are."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, count)
    patterns = rng.uniform(0, 1, (10, 64))
    return (patterns[labels] + rng.normal(0, 0.3, (count, 64))).astype(dtype), labels


def sentences(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Words that mostly follow from the one before, and the words after each."""
    rng = np.random.default_rng(0)
    words = np.empty((count, LENGTH + 1), np.int64)
    words[:, 0] = rng.integers(0, WORDS, count)
    for i in range(LENGTH):
        words[:, i + 1] = np.where(
            rng.random(count) < 0.8, (3 * words[:, i] + 1) % WORDS, rng.integers(0, WORDS, count)
        )
    return words[:, :-1].copy(), words[:, 1:].copy()
