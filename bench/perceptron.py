"""Works of training a perceptron on made-up data, 512 -> 2048 -> 512 -> 1, as each library is used.

That is with its own layers and derivatives, if it has some. Else with a step that is written by hand, inline or as one
function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from .harness.contestant import Run, Work
from .libraries import Library

RATE = 1e-3
SIZES = {"full": (1024, (512, 2048, 512, 1)), "quick": (128, (128, 512, 128, 1))}
"""Rows of a batch, and the widths of the layers."""
Array = np.ndarray[Any, Any]
Started = tuple[Any, Callable[[Any, Any, Any], Any]]
"""Weights, or None, and a step: a function of them, a batch and its target."""


def size(quick: bool) -> str:
    """The name of the size."""
    return "quick" if quick else "full"


def parameters(size: str) -> list[Array]:
    """Weights and biases, layer by layer."""
    rng = np.random.default_rng(0)
    found: list[Array] = []
    for inputs, outputs in pairwise(SIZES[size][1]):
        weights = rng.standard_normal((inputs, outputs)) / inputs**0.5
        found += [weights.astype(np.float32), np.zeros(outputs, np.float32)]
    return found


def batches(size: str) -> list[tuple[Array, Array]]:
    """A few batches, used in turn."""
    rng = np.random.default_rng(1)
    rows, widths = SIZES[size]
    draws = [rng.standard_normal((rows, widths[0])).astype(np.float32) for _ in range(4)]
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
    """The resident set, from which its peak counts anew; 0 if it is not known."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return 0
    return resident("VmRSS")


def resident(field: str, process: int | str = "self") -> int:
    """From /proc, since `getrusage` gives a child its parent's peak; 0 if there is no /proc."""
    try:
        with open(f"/proc/{process}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))
    except OSError:
        return 0


# -- as each library is used --------------------------------------------------------------------------------------


async def training(library: Library, n: int, *, fresh: bool = True, written: bool = False) -> Run:
    """Training steps. If `fresh`, each batch is new from the host; else batches are on the device already.

    A loop that is `written` by hand runs ahead as far as the bounds let it.
    """
    data: list[tuple[Any, Any]] = batches(size(library.quick))
    if not fresh:
        data = [(await library.put(x), await library.put(target)) for x, target in data]
    window = nullcontext() if written else library.window(2)
    start = _by_hand if written else _as_function if library.apply is not None else _STARTS[library.module]
    weights, one = await start(library)

    async def run(count: int) -> None:
        nonlocal weights
        for i in range(count * n):
            x, target = data[i % len(data)]
            async with window:
                if fresh:
                    x, target = await library.put(x), await library.put(target)
                weights = one(weights, x, target)
                if library.apply is not None:
                    await library.finish([weights])
        await library.finish([weights])

    return run


async def _by_hand(library: Library) -> Started:
    return [await library.put(array) for array in parameters(size(library.quick))], step


async def _as_function(library: Library) -> Started:
    """One function. Its result stays where it was computed."""
    apply, keep = library.apply, library.module == "dask"
    assert apply is not None

    def one(weights: Any, x: Any, target: Any) -> Any:
        weights = apply(step, weights, x, target)
        return weights.persist() if keep else weights

    return parameters(size(library.quick)), one


async def _jax(library: Library) -> Started:
    jax = library.xp

    def loss(weights: Any, x: Any, target: Any) -> Any:
        w1, b1, w2, b2, w3, b3 = weights
        a2 = jax.nn.relu(jax.nn.relu(x @ w1 + b1) @ w2 + b2)
        return ((a2 @ w3 + b3 - target) ** 2).mean()

    def one(weights: Any, x: Any, target: Any) -> Any:
        gradients = jax.grad(loss)(weights, x, target)
        return [w - RATE * g for w, g in zip(weights, gradients, strict=True)]

    return (await _by_hand(library))[0], jax.jit(one)


async def _mxnet(library: Library) -> Started:
    mx, (rows, widths) = library.xp, SIZES[size(library.quick)]
    model = mx.gluon.nn.HybridSequential()
    for inputs, outputs in pairwise(widths):
        model.add(mx.gluon.nn.Dense(outputs, in_units=inputs, activation="relu" if outputs > 1 else None))
    model.initialize()
    model.hybridize(static_alloc=True)
    trainer = mx.gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": RATE})
    loss = mx.gluon.loss.L2Loss()

    def one(weights: None, x: Any, target: Any) -> None:
        with mx.autograd.record():
            lost = loss(model(x), target)
        lost.backward()
        trainer.step(rows)

    return None, one


async def _as_module(library: Library) -> Started:
    nn, layers = library.xp.nn, list[Any]()
    for inputs, outputs in pairwise(SIZES[size(library.quick)][1]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    mse_loss = nn.functional.mse_loss if library.module == "torch" else nn.mse_loss
    optimizer = library.xp.optim.SGD(model.parameters(), lr=RATE)

    def one(weights: None, x: Any, target: Any) -> None:
        mse_loss(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return None, one


_STARTS = {"numpy": _by_hand, "torch": _as_module, "jax": _jax, "mxnet": _mxnet, "asyncsched": _as_module}


async def peak(library: Any, n: int, *, written: bool = False, tracked: bool = False) -> Run:
    """Bytes at the peak of some steps: the growth of the process, with all that the steps need, or the tracked
    bytes."""
    before = new_peak()

    async def run(count: int) -> float:
        train = await training(library, n, written=written)
        await train(count)
        return float(library.s.statistics().peak_bytes if tracked else resident("VmHWM") - before)

    if not before or library.module == "ray":
        raise NotImplementedError("its memory is in other processes" if before else "no /proc to read it from")
    return run


WORKS: dict[str, Work] = {
    "training": Work(training),
    "training, data on the device": Work(partial(training, fresh=False)),
    "peak": Work(peak, 20, once=True),
    "by hand": Work(partial(training, written=True), 20, 1),
    "by hand, tracked": Work(partial(peak, written=True, tracked=True), 60, 1, once=True),
    "by hand, resident": Work(partial(peak, written=True), 60, 1, once=True),
}
