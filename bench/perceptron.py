"""Works of training a perceptron on made-up data, 512 -> 2048 -> 512 -> 1, as each library is used.

That is with its layers and its derivatives where it has some, else with the step that is written by hand, inline or as
one function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from .harness.contestant import Run, Work
from .libraries import Library

RATE = 1e-3


@dataclass(frozen=True)
class Size:
    """Rows of a batch, and the widths of the layers."""

    batch: int
    widths: tuple[int, ...]


SIZES = {"full": Size(1024, (512, 2048, 512, 1)), "quick": Size(128, (128, 512, 128, 1))}
Array = np.ndarray[Any, Any]
Batches = list[tuple[Any, Any]]


def size(quick: bool) -> str:
    """The name of the size to take."""
    return "quick" if quick else "full"


def parameters(size: str) -> list[Array]:
    """Weights and biases, layer by layer."""
    rng = np.random.default_rng(0)
    found: list[Array] = []
    for inputs, outputs in pairwise(SIZES[size].widths):
        weights = rng.standard_normal((inputs, outputs)) / inputs**0.5
        found += [weights.astype(np.float32), np.zeros(outputs, np.float32)]
    return found


def batches(size: str) -> list[tuple[Array, Array]]:
    """A few batches, used in turn."""
    rng = np.random.default_rng(1)
    shape = SIZES[size].batch, SIZES[size].widths[0]
    draws = [rng.standard_normal(shape).astype(np.float32) for _ in range(4)]
    return [(x, x[:, :1] * 2 + 1) for x in draws]


def step(weights: Sequence[Any], x: Any, target: Any) -> list[Any]:
    """One step of gradient descent on the squared error. For ndarrays as for tensors."""
    w1, b1, w2, b2, w3, b3 = weights
    h1 = x @ w1 + b1
    a1 = h1 * (h1 > 0)
    h2 = a1 @ w2 + b2
    a2 = h2 * (h2 > 0)
    d3 = (a2 @ w3 + b3 - target) * (2 / x.shape[0])
    d2 = (d3 @ w3.T) * (h2 > 0)
    d1 = (d2 @ w2.T) * (h1 > 0)
    gradients = [x.T @ d1, d1.sum(axis=0), a1.T @ d2, d2.sum(axis=0), a2.T @ d3, d3.sum(axis=0)]
    return [w - RATE * g for w, g in zip(weights, gradients, strict=True)]


def new_peak() -> int:
    """The resident set, from which its peak counts anew; 0 where that cannot be told."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return 0
    return resident("VmRSS")


def resident(field: str) -> int:
    """From /proc, since `getrusage` hands a child its parent's peak; 0 where there is none."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))
    except OSError:
        return 0


# -- as each library is used --------------------------------------------------------------------------------------


async def training(library: Library, n: int, *, fresh: bool) -> Run:
    """Steps of training: each batch new from the host, where it is `fresh`, else there already."""
    data: Batches = batches(_size(library))
    if not fresh:
        data = [(await library.put(x), await library.put(target)) for x, target in data]
    trainer = _as_function if library.apply is not None else _TRAINERS[library.module]
    return await trainer(library, data, fresh)


def _size(library: Library) -> str:
    return size(library.quick)


async def _by_hand(library: Library, data: Batches, fresh: bool) -> Run:
    weights = parameters(_size(library))

    async def run(count: int) -> None:
        nonlocal weights
        for i in range(count):
            x, target = data[i % len(data)]
            if fresh:
                x, target = x.copy(), target.copy()
            weights = step(weights, x, target)

    return run


async def _as_function(library: Library, data: Batches, fresh: bool) -> Run:
    """Each step one function, whose result stays where it was computed."""
    weights: Any = parameters(_size(library))
    apply, call = library.apply, library.call
    assert apply is not None

    async def run(count: int) -> None:
        nonlocal weights
        for i in range(count):
            x, target = data[i % len(data)]
            if call is not None:
                weights = await call(step, weights, x, target)
                continue
            if fresh:
                x, target = await library.put(x), await library.put(target)
            weights = apply(step, weights, x, target)
            weights = weights.persist() if library.module == "dask" else weights
            await library.finish([weights])

    return run


async def _jax(library: Library, data: Batches, fresh: bool) -> Run:
    jax = library.xp
    weights = [jax.numpy.array(array) for array in parameters(_size(library))]

    def loss(weights: Any, x: Any, target: Any) -> Any:
        w1, b1, w2, b2, w3, b3 = weights
        a2 = jax.nn.relu(jax.nn.relu(x @ w1 + b1) @ w2 + b2)
        return ((a2 @ w3 + b3 - target) ** 2).mean()

    @jax.jit  # type: ignore[untyped-decorator]
    def step(weights: Any, x: Any, target: Any) -> Any:
        gradients = jax.grad(loss)(weights, x, target)
        return [w - RATE * g for w, g in zip(weights, gradients, strict=True)]

    async def run(count: int) -> None:
        nonlocal weights
        for i in range(count):
            x, target = data[i % len(data)]
            if fresh:
                x, target = jax.numpy.array(x), jax.numpy.array(target)
            weights = step(weights, x, target)
        jax.block_until_ready(weights)

    return run


async def _mxnet(library: Library, data: Batches, fresh: bool) -> Run:
    mx = library.xp
    model = mx.gluon.nn.HybridSequential()
    for inputs, outputs in pairwise(SIZES[_size(library)].widths):
        model.add(mx.gluon.nn.Dense(outputs, in_units=inputs, activation="relu" if outputs > 1 else None))
    model.initialize()
    model.hybridize(static_alloc=True)
    trainer = mx.gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": RATE})
    loss = mx.gluon.loss.L2Loss()

    async def run(count: int) -> None:
        for i in range(count):
            x, target = data[i % len(data)]
            if fresh:
                x, target = await library.put(x), await library.put(target)
            with mx.autograd.record():
                lost = loss(model(x), target)
            lost.backward()
            trainer.step(SIZES[_size(library)].batch)
        await library.finish([])

    return run


def network(nn: Any, size: str, **options: Any) -> Any:
    """The layers, in the words of PyTorch."""
    layers: list[Any] = []
    for inputs, outputs in pairwise(SIZES[size].widths):
        layers += [nn.Linear(inputs, outputs, **options), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


async def _as_module(library: Any, data: Batches, fresh: bool) -> Run:
    nn = library.xp.nn
    mse_loss = nn.functional.mse_loss if library.module == "torch" else nn.mse_loss
    model, window = network(nn, _size(library)), library.window(2)
    optimizer = library.xp.optim.SGD(model.parameters(), lr=RATE)

    async def run(count: int) -> None:
        for i in range(count):
            x, target = data[i % len(data)]
            async with window:
                if fresh:
                    x, target = await library.put(x), await library.put(target)
                mse_loss(model(x), target).backward()
                optimizer.step()
                optimizer.zero_grad()
        await library.finish([])

    return run


async def peak(library: Library, n: int) -> Run:
    """Bytes by which the process grew at most in some steps of training, with all that they need."""
    before = new_peak()

    async def run(count: int) -> float:
        train = await training(library, n, fresh=True)
        await train(n)
        return resident("VmHWM") - before

    if not before or library.module == "ray":
        raise NotImplementedError("its memory is in other processes" if before else "no /proc to read it from")
    return run


_TRAINERS: dict[str, Callable[[Any, Batches, bool], Awaitable[Run]]] = {
    "numpy": _by_hand,
    "torch": _as_module,
    "jax": _jax,
    "mxnet": _mxnet,
    "asyncsched": _as_module,
}

WORKS: dict[str, Work] = {
    "training": Work(partial(training, fresh=True)),
    "training, data on the device": Work(partial(training, fresh=False)),
    "peak": Work(peak, 20, once=True),
}
