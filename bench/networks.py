"""How fast networks are trained, beside PyTorch at as many threads: `python -m bench.networks`.

a  single operations, forwards and backwards     b  training steps of whole networks, with AdamW
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

import asyncsched as asc
from asyncsched import nn, optim

from .measure import Contestant, Report, compare, on_loop, run_bench, timed
from .rows import cnn, mlp

NO_TORCH = "PyTorch: not installed, skipped (`pip install torch`)"
Step = Callable[[], object]
Arrays = list[np.ndarray[Any, Any]]
# For a: name, our function, its name in PyTorch, shapes of the operands, options.
OPERATIONS: tuple[tuple[str, Callable[..., asc.Tensor], str, tuple[tuple[int, ...], ...], dict[str, Any]], ...] = (
    ("conv2d", nn.conv2d, "conv2d", ((32, 32, 32, 32), (64, 32, 3, 3), (64,)), {"padding": 1}),
    ("max_pool2d", nn.max_pool2d, "max_pool2d", ((64, 32, 28, 28),), {"kernel_size": 2}),
    (
        "attention",
        nn.scaled_dot_product_attention,
        "scaled_dot_product_attention",
        ((8, 8, 128, 32),) * 3,
        {"is_causal": True},
    ),
    ("layer_norm", lambda x, w, b: nn.layer_norm(x, w.shape, w, b), "layer_norm", ((4096, 512), (512,), (512,)), {}),
    (
        "batch_norm",
        nn.batch_norm,
        "batch_norm",
        ((64, 32, 28, 28),),
        {"running_mean": None, "running_var": None, "training": True},
    ),
    ("avg_pool2d", nn.avg_pool2d, "avg_pool2d", ((64, 32, 28, 28),), {"kernel_size": 2}),
    ("gelu", nn.gelu, "gelu", ((2048, 1024),), {}),
    ("silu", nn.silu, "silu", ((2048, 1024),), {}),
    ("softplus", nn.softplus, "softplus", ((2048, 1024),), {}),
    ("leaky_relu", nn.leaky_relu, "leaky_relu", ((2048, 1024),), {}),
    ("softmax", nn.softmax, "softmax", ((2048, 1024),), {}),
    ("cross_entropy", nn.cross_entropy, "cross_entropy", ((1024, 1000),), {}),
)


def operations(quick: bool, report: Report) -> None:
    for name, ours, theirs, shapes, options in OPERATIONS:
        rng = np.random.default_rng(0)
        sizes = [(2, *shape[1:]) if quick and shape == shapes[0] else shape for shape in shapes]
        arrays = [rng.standard_normal(size).astype(np.float32) for size in sizes]
        target = rng.integers(0, sizes[0][1], sizes[0][0]) if name == "cross_entropy" else None
        _beside_torch(
            f"a {name}",
            lambda s, f=ours, a=arrays, t=target, o=options: _our_operation(s, f, a, t, o),
            lambda torch, f=theirs, a=arrays, t=target, o=options: _their_operation(torch, f, a, t, o),
            2 if quick else 20,
            quick,
            report,
        )


async def _our_operation(s: asc.Scheduler, function: Any, arrays: Arrays, target: Any, options: Any) -> Step:
    operands = [await s.put(array) for array in arrays]
    for operand in operands:
        operand.requires_grad = True
    targets = () if target is None else (await s.put(target),)
    gradient = await s.put(np.ones(function(*operands, *targets, **options).shape, np.float32))

    return _there_and_back(partial(function, *operands, *targets, **options), operands, gradient)


def _there_and_back(operation: Callable[[], Any], operands: Sequence[Any], gradient: Any) -> Step:
    """An operation and its derivative, of tensors that are ours or PyTorch's."""

    def step() -> None:
        for operand in operands:
            operand.grad = None
        operation().backward(gradient)

    return step


def _their_operation(torch: Any, name: str, arrays: Arrays, target: Any, options: Any) -> Step:
    function, operands = getattr(torch.nn.functional, name), [torch.tensor(a, requires_grad=True) for a in arrays]
    targets = () if target is None else (torch.tensor(target),)
    options = options | ({"normalized_shape": arrays[1].shape} if name == "layer_norm" else {})
    if name == "layer_norm":
        operands, options = operands[:1], options | {"weight": operands[1], "bias": operands[2]}
    options = options | ({"dim": -1} if name == "softmax" else {})
    gradient = torch.ones(function(*operands, *targets, **options).shape)

    return _there_and_back(partial(function, *operands, *targets, **options), operands, gradient)


# -- b: whole networks --------------------------------------------------------------------------------------------


NETWORKS = {"mlp": (mlp, (1024, 512)), "cnn": (cnn, (64, 1, 28, 28))}


def training(quick: bool, report: Report) -> None:
    for name, (build, shape) in NETWORKS.items():
        rng = np.random.default_rng(0)
        x = rng.standard_normal((8, *shape[1:]) if quick else shape).astype(np.float32)
        target = rng.integers(0, 10, len(x))
        _beside_torch(
            f"b {name}",
            lambda s, b=build, x=x, t=target: _our_training(s, b, x, t),
            lambda torch, b=build, x=x, t=target: _their_training(torch, b, x, t),
            2 if quick else 10,
            quick,
            report,
        )


async def _our_training(s: asc.Scheduler, build: Any, x: Any, target: Any) -> Step:
    model, inputs, targets = build(nn), await s.put(x), await s.put(target)
    optimizer = optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        nn.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def _their_training(torch: Any, build: Any, x: Any, target: Any) -> Step:
    model, inputs, targets = build(torch.nn), torch.tensor(x), torch.tensor(target)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


# -- what both sections share -------------------------------------------------------------------------------------


def _beside_torch(name: str, ours: Any, theirs: Any, n: int, quick: bool, report: Report) -> None:
    contestants = [Contestant(f"{name}, asyncsched", on_loop(lambda: _timed(ours, n)), n, "ms")]
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(max([pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]))
        step = theirs(torch)
        step()
        peer = Contestant(f"{name}, PyTorch", lambda: timed(lambda: [step() for _ in range(n)]), n, "ms")
        contestants.insert(0, peer)
    elif NO_TORCH not in report.notes:
        report.notes.append(NO_TORCH)
    report.rows += compare(contestants, 1 if quick else 9)


async def _timed(prepare: Any, n: int) -> float:
    async with asc.Scheduler("cpu") as s:
        step, window = await prepare(s), s.window(2)
        step()
        await s.barrier()
        started = perf_counter()
        for _ in range(n):
            async with window:
                step()
        await s.barrier()
        return perf_counter() - started


if __name__ == "__main__":
    run_bench("networks", {"a": operations, "b": training})
