"""Rows of networks, and a network, in the libraries that have them: works of `bench.beside`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from .libraries import Library

Run = Callable[[int], Awaitable[None]]
_AHEAD = 4  # rows in flight, of what runs ahead


@dataclass(frozen=True)
class Row:
    """Shapes of its operands, and what is called: of `torch.nn.functional`, of `asyncsched.nn`, and in JAX."""

    shapes: tuple[tuple[int, ...], ...]
    name: str
    jax: Callable[..., Any] | None = None  # of jax and the operands
    options: dict[str, Any] = field(default_factory=dict)
    classes: int = 0  # of a loss

    def sizes(self, quick: bool) -> list[tuple[int, ...]]:
        """The shapes; of a batch of two, for a smoke run."""
        return [(2, *shape[1:]) if quick and shape == self.shapes[0] else shape for shape in self.shapes]


def _layer_norm(jax: Any, x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * weight + bias


def _cross_entropy(jax: Any, x: Any, target: Any) -> Any:
    return -jax.numpy.take_along_axis(jax.nn.log_softmax(x, -1), target[:, None], 1).mean()


def _attention(jax: Any, q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -1) @ v


_WIDE = ((4096, 1024),)
ROWS = {
    "layer_norm": Row(((4096, 768), (768,), (768,)), "layer_norm", _layer_norm),
    "gelu": Row(((1024, 2048),), "gelu", lambda jax, x: jax.nn.gelu(x, approximate=False)),
    "softmax": Row(_WIDE, "softmax", lambda jax, x: jax.nn.softmax(x, -1)),
    "cross_entropy": Row(_WIDE, "cross_entropy", _cross_entropy, classes=1024),
    "attention": Row(((8, 8, 256, 64),) * 3, "scaled_dot_product_attention", _attention),
    "conv2d": Row(((32, 32, 32, 32), (64, 32, 3, 3), (64,)), "conv2d", options={"padding": 1}),
}


async def row(library: Any, n: int, *, row: Row) -> Run:
    """One row, again and again."""
    rng = np.random.default_rng(0)
    arrays: list[Any] = [rng.standard_normal(shape).astype(np.float32) for shape in row.sizes(library.quick)]
    if row.classes:
        arrays.append(rng.integers(0, row.classes, len(arrays[0])))
    function = _FUNCTIONS[library.module](library, row, [await library.put(array) for array in arrays])
    return _repeated(library, function)


def _repeated(library: Any, function: Callable[[], Any]) -> Run:
    window = library.s.window(_AHEAD) if library.module == "asyncsched" else nullcontext()

    async def run(count: int) -> None:
        result = None
        for _ in range(count):
            async with window:
                result = function()
        await library.finish([result])

    return run


def _torch(library: Library, row: Row, args: list[Any]) -> Callable[[], Any]:
    options = dict(row.options)
    if row.name == "layer_norm":
        options |= {"normalized_shape": args[1].shape, "weight": args[1], "bias": args[2]}
        args = args[:1]
    if row.name == "softmax":
        options["dim"] = -1
    return partial(getattr(library.xp.nn.functional, row.name), *args, **options)


def _jax(library: Library, row: Row, args: list[Any]) -> Callable[[], Any]:
    if row.jax is None:
        raise NotImplementedError("not written in JAX here")
    return partial(library.xp.jit(partial(row.jax, library.xp)), *args)


def _ours(library: Library, row: Row, args: list[Any]) -> Callable[[], Any]:
    if row.name == "layer_norm":
        args.insert(1, args[1].shape)
    return partial(getattr(library.xp.nn, row.name), *args, **row.options)


_FUNCTIONS: dict[str, Callable[..., Callable[[], Any]]] = {"torch": _torch, "jax": _jax, "asyncsched": _ours}


# -- a network ----------------------------------------------------------------------------------------------------


def mlp(nn: Any) -> Any:
    return nn.Sequential(
        nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 10)
    )


def cnn(nn: Any) -> Any:
    first = (nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*first, *second, nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 10))


async def cnn_steps(library: Any, n: int) -> Run:
    """Steps of training the small CNN, with AdamW."""
    rng, xp, size = np.random.default_rng(0), library.xp, 2 if library.quick else 64
    x = await library.put(rng.standard_normal((size, 1, 28, 28)).astype(np.float32))
    target = await library.put(rng.integers(0, 10, size))
    optim, loss = (xp.optim, xp.nn.functional) if library.module == "torch" else (xp.optim, xp.nn)
    model = cnn(xp.nn)
    optimizer = optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss.cross_entropy(model(x), target).backward()
        optimizer.step()

    return _repeated(library, step)
