"""Works of networks, in the libraries that have them: single layers, forward or forward and backward, and training
steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from .harness.contestant import Run, Work
from .libraries import Library

_AHEAD = 4  # layers or steps in flight, if the library runs ahead


@dataclass(frozen=True)
class Layer:
    """The shapes of its operands, and the functions: of `torch.nn.functional` and `asyncsched.nn`, and in JAX."""

    shapes: tuple[tuple[int, ...], ...]
    name: str
    jax: Callable[..., Any] | None = None  # of jax and the operands
    options: dict[str, Any] = field(default_factory=dict)
    classes: int = 0  # of a loss

    def sizes(self, quick: bool) -> list[tuple[int, ...]]:
        """The shapes; for a smoke run with a batch of two."""
        return [(2, *shape[1:]) if quick and shape == self.shapes[0] else shape for shape in self.shapes]


def _layer_norm(jax: Any, x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * weight + bias


def _cross_entropy(jax: Any, x: Any, target: Any) -> Any:
    return -jax.numpy.take_along_axis(jax.nn.log_softmax(x, -1), target[:, None], 1).mean()


def _attention(jax: Any, q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -1) @ v


_WIDE, _IMAGES, _SQUARE = ((4096, 1024),), ((64, 32, 28, 28),), ((2048, 1024),)
CONV2D = Layer(((32, 32, 32, 32), (64, 32, 3, 3), (64,)), "conv2d", options={"padding": 1})
LAYERS = {
    "layer_norm": Layer(((4096, 768), (768,), (768,)), "layer_norm", _layer_norm),
    "gelu": Layer(((1024, 2048),), "gelu", lambda jax, x: jax.nn.gelu(x, approximate=False)),
    "softmax": Layer(_WIDE, "softmax", lambda jax, x: jax.nn.softmax(x, -1)),
    "cross_entropy": Layer(_WIDE, "cross_entropy", _cross_entropy, classes=1024),
    "attention": Layer(((8, 8, 256, 64),) * 3, "scaled_dot_product_attention", _attention),
    "conv2d": CONV2D,
}
THERE_AND_BACK = {
    "conv2d": CONV2D,
    "max_pool2d": Layer(_IMAGES, "max_pool2d", options={"kernel_size": 2}),
    "attention": Layer(((8, 8, 128, 32),) * 3, "scaled_dot_product_attention", options={"is_causal": True}),
    "layer_norm": Layer(((4096, 512), (512,), (512,)), "layer_norm"),
    "batch_norm": Layer(_IMAGES, "batch_norm", options={"running_mean": None, "running_var": None, "training": True}),
    "avg_pool2d": Layer(_IMAGES, "avg_pool2d", options={"kernel_size": 2}),
    **{name: Layer(_SQUARE, name) for name in ("gelu", "silu", "softplus", "leaky_relu", "softmax")},
    "cross_entropy": Layer(((1024, 1000),), "cross_entropy", classes=1000),
}


async def layer(library: Any, n: int, *, layer: Layer, back: bool = False) -> Run:
    """One layer, again and again."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in layer.sizes(library.quick)]
    operands = [await library.put(array) for array in arrays]
    target = [await library.put(rng.integers(0, layer.classes, len(arrays[0])))] if layer.classes else []
    if library.module == "jax":
        if layer.jax is None:
            raise NotImplementedError("not written in JAX here")
        return _repeated(library, partial(library.xp.jit(partial(layer.jax, library.xp)), *operands, *target))
    function = _function(library, layer, [*operands, *target])
    if not back:
        return _repeated(library, function)
    for operand in operands:
        operand.requires_grad = True
    gradient = await library.put(np.ones(tuple(function().shape), np.float32))

    def there_and_back() -> None:
        for operand in operands:
            operand.grad = None
        function().backward(gradient)

    return _repeated(library, there_and_back)


def _function(library: Library, layer: Layer, args: list[Any]) -> Callable[[], Any]:
    torch, options = library.module == "torch", dict(layer.options)
    if layer.name == "layer_norm":
        args.insert(1, tuple(args[1].shape))
    if layer.name == "softmax" and torch:
        options["dim"] = -1
    return partial(getattr(library.xp.nn.functional if torch else library.xp.nn, layer.name), *args, **options)


def _repeated(library: Any, function: Callable[[], Any]) -> Run:
    window = library.window(_AHEAD)

    async def run(count: int) -> None:
        result = None
        for _ in range(count):
            async with window:
                result = function()
        await library.finish([result])

    return run


# -- networks -----------------------------------------------------------------------------------------------------


def mlp(nn: Any) -> Any:
    return nn.Sequential(
        nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 10)
    )


def cnn(nn: Any) -> Any:
    first = (nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*first, *second, nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 10))


async def trained(library: Any, n: int, *, build: Callable[[Any], Any], shape: tuple[int, ...]) -> Run:
    """Steps of training a network, with AdamW."""
    rng, xp = np.random.default_rng(0), library.xp
    size = (8, *shape[1:]) if library.quick else shape
    x = await library.put(rng.standard_normal(size).astype(np.float32))
    target = await library.put(rng.integers(0, 10, size[0]))
    loss = xp.nn.functional if library.module == "torch" else xp.nn
    model = build(xp.nn)
    optimizer = xp.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss.cross_entropy(model(x), target).backward()
        optimizer.step()

    return _repeated(library, step)


WORKS: dict[str, Work] = {
    **{name: Work(partial(layer, layer=each)) for name, each in LAYERS.items()},
    **{f"{name}, there and back": Work(partial(layer, layer=each, back=True)) for name, each in THERE_AND_BACK.items()},
    "mlp": Work(partial(trained, build=mlp, shape=(1024, 512))),
    "cnn": Work(partial(trained, build=cnn, shape=(64, 1, 28, 28))),
}
