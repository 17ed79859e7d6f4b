"""A training loop of the perceptron of `bench.synthetic`, as each library is used: with its layers and its derivatives
where it has some, else with the step that is written by hand, inline or as one function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

from . import synthetic
from .libraries import Library

Run = Callable[[int], Awaitable[None]]
Batches = list[tuple[Any, Any]]


async def training(library: Library, n: int, *, fresh: bool) -> Run:
    """Steps of training: each batch new from the host, where it is `fresh`, else there already."""
    data: Batches = synthetic.batches(_size(library))
    if not fresh:
        data = [(await library.put(x), await library.put(target)) for x, target in data]
    trainer = _as_function if library.apply is not None else _TRAINERS[library.module]
    return await trainer(library, data, fresh)


def _size(library: Library) -> str:
    return synthetic.size(library.quick)


async def _by_hand(library: Library, data: Batches, fresh: bool) -> Run:
    weights = synthetic.parameters(_size(library))

    async def run(count: int) -> None:
        nonlocal weights
        for i in range(count):
            x, target = data[i % len(data)]
            if fresh:
                x, target = x.copy(), target.copy()
            weights = synthetic.step(weights, x, target)

    return run


async def _as_function(library: Library, data: Batches, fresh: bool) -> Run:
    """Each step one function, whose result stays where it was computed."""
    weights: Any = synthetic.parameters(_size(library))
    apply, call = library.apply, library.call
    assert apply is not None

    async def run(count: int) -> None:
        nonlocal weights
        for i in range(count):
            x, target = data[i % len(data)]
            if call is not None:
                weights = await call(synthetic.step, weights, x, target)
                continue
            if fresh:
                x, target = await library.put(x), await library.put(target)
            weights = apply(synthetic.step, weights, x, target)
            weights = weights.persist() if library.module == "dask" else weights
            await library.finish([weights])

    return run


async def _torch(library: Library, data: Batches, fresh: bool) -> Run:
    torch = library.xp
    layers: list[Any] = []
    for inputs, outputs in pairwise(synthetic.SIZES[_size(library)].widths):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=synthetic.RATE)

    async def run(count: int) -> None:
        for i in range(count):
            x, target = data[i % len(data)]
            if fresh:
                x, target = torch.tensor(x), torch.tensor(target)  # copied, as `put` does
            torch.nn.functional.mse_loss(model(x), target).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


async def _jax(library: Library, data: Batches, fresh: bool) -> Run:
    jax = library.xp
    weights = [jax.numpy.array(array) for array in synthetic.parameters(_size(library))]

    def loss(weights: Any, x: Any, target: Any) -> Any:
        w1, b1, w2, b2, w3, b3 = weights
        a2 = jax.nn.relu(jax.nn.relu(x @ w1 + b1) @ w2 + b2)
        return ((a2 @ w3 + b3 - target) ** 2).mean()

    @jax.jit  # type: ignore[untyped-decorator]
    def step(weights: Any, x: Any, target: Any) -> Any:
        gradients = jax.grad(loss)(weights, x, target)
        return [w - synthetic.RATE * g for w, g in zip(weights, gradients, strict=True)]

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
    for inputs, outputs in pairwise(synthetic.SIZES[_size(library)].widths):
        model.add(mx.gluon.nn.Dense(outputs, in_units=inputs, activation="relu" if outputs > 1 else None))
    model.initialize()
    model.hybridize(static_alloc=True)
    trainer = mx.gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": synthetic.RATE})
    loss = mx.gluon.loss.L2Loss()

    async def run(count: int) -> None:
        for i in range(count):
            x, target = data[i % len(data)]
            if fresh:
                x, target = await library.put(x), await library.put(target)
            with mx.autograd.record():
                lost = loss(model(x), target)
            lost.backward()
            trainer.step(synthetic.SIZES[_size(library)].batch)
        await library.finish([])

    return run


async def _ours(library: Any, data: Batches, fresh: bool) -> Run:
    from asyncsched import nn, optim

    from .training import perceptron

    s = library.s
    model, window = perceptron(_size(library)), s.window(2)
    optimizer = optim.SGD(model.parameters(), lr=synthetic.RATE)

    async def run(count: int) -> None:
        for i in range(count):
            x, target = data[i % len(data)]
            async with window:
                if fresh:
                    x, target = await s.put(x), await s.put(target)
                nn.mse_loss(model(x), target).backward()
                optimizer.step()
                optimizer.zero_grad()
        await s.barrier()

    return run


_TRAINERS: dict[str, Callable[[Any, Batches, bool], Awaitable[Run]]] = {
    "numpy": _by_hand,
    "torch": _torch,
    "jax": _jax,
    "mxnet": _mxnet,
    "asyncsched": _ours,
}
