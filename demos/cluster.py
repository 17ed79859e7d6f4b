"""Training a network data-parallel on a cluster, with a worker killed on the way.

The digits of `train_digits.py`, each batch in shards. For each shard a pipeline reads its share of an epoch's order and
puts it on the cluster, ahead of the training. For each shard a captured step computes the loss and the gradients on the
shard's worker, as one task of Dask. One more task averages the gradients and moves the parameters. The same program
runs on this machine alone, on a cluster of one worker process, on a cluster of several, and there again while a worker
is killed: the weights are the same, to float rounding. With --address it runs unchanged on the cluster there.

    python demos/cluster.py [--workers 2] [--steps 30] [--address tcp://scheduler:8786]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from time import perf_counter
from typing import Any

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np

try:
    from distributed import Client, LocalCluster
except ImportError:
    sys.exit('Dask is not installed: pip install "asyncsched[cluster]"')
from sklearn.datasets import load_digits

import asyncsched as asc
from asyncsched import nn

F = nn.functional
SIZES = (64, 1024, 1024, 10)
SHARDS, SHARD, RATE = 4, 256, 0.1
Tensors = Sequence[asc.Tensor]
Told = Callable[[int], Awaitable[None]]


def network(rng: np.random.Generator) -> list[np.ndarray]:
    """Weights and biases, layer by layer."""
    shapes = [shape for m, n in pairwise(SIZES) for shape in ((n, m), (n,))]
    return [rng.uniform(-1, 1, shape).astype(np.float32) / np.float32(np.sqrt(shape[-1])) for shape in shapes]


def gradients(images: asc.Tensor, labels: asc.Tensor, *parameters: asc.Tensor) -> list[asc.Tensor]:
    """The loss of a shard, and the gradient of each parameter."""
    leaves = [parameter.detach() for parameter in parameters]
    for leaf in leaves:
        leaf.requires_grad = True
    x = images
    for i in range(0, len(leaves), 2):
        x = F.linear(x if i == 0 else F.relu(x), leaves[i], leaves[i + 1])
    loss = F.cross_entropy(x, labels)
    return [loss.detach(), *asc.autograd.grad(loss, leaves)]


def moved(*given: asc.Tensor) -> list[asc.Tensor]:
    """The mean loss of the shards, and the parameters moved against the mean of their gradients."""
    count = 2 * (len(SIZES) - 1)
    parameters, found = given[:count], given[count:]
    loss, *means = [sum(found[i :: count + 1][1:], found[i]) / SHARDS for i in range(count + 1)]
    return [loss, *[p - RATE * mean for p, mean in zip(parameters, means, strict=True)]]


def shares(s: asc.Scheduler, images: np.ndarray, labels: np.ndarray) -> list[asc.Pipeline[Any]]:
    """Batches of each shard, for ever: disjoint in each epoch, and put on the cluster ahead of the training."""

    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng((0, epoch)).permutation(len(images))

    def batch(rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
        return images[rows], labels[rows]

    rows = s.pipeline(range(len(images)), order=order)
    shards = [rows.shard(i, SHARDS, drop_last=True) for i in range(SHARDS)]
    return [shard.repeat().batch(SHARD, collate=batch).to_device(depth=1) for shard in shards]


async def train(s: asc.Scheduler, steps: int, told: Told) -> tuple[list[np.ndarray], float]:
    """Train. Returns the weights, and the seconds that the steps after the first took."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 8 - 1).astype(np.float32)
    parameters: Tensors = [await s.put(array) for array in network(np.random.default_rng(0))]
    window, began = s.window(2), 0.0
    async with AsyncExitStack() as stack:
        shards = [await stack.enter_async_context(pipe.open()) for pipe in shares(s, images, labels)]
        batch = [await anext(shard) for shard in shards]
        shard_step = await s.capture(gradients, *batch[0], *parameters)
        example = [shard_step(*shard, *parameters) for shard in batch]
        move = await s.capture(moved, *parameters, *[tensor for found in example for tensor in found])
        del example
        for step in range(steps):
            async with window:
                found = [shard_step(*shard, *parameters) for shard in batch]
                loss, *parameters = move(*parameters, *[tensor for each in found for tensor in each])
                del found
                await told(step)
            batch = [await anext(shard) for shard in shards]
            if step == 0 or step == steps - 1:
                value = await loss.item()
                began = began or perf_counter()
        seconds = perf_counter() - began
    print(f"    the loss after {steps} steps: {value:.4f}")
    return list(await asc.gather(*parameters)), seconds


async def nothing(step: int) -> None:
    """Between two steps most runs do nothing."""


async def on_machine(steps: int) -> tuple[list[np.ndarray], float]:
    async with asc.Scheduler("cpu") as s:
        return await train(s, steps, nothing)


async def on_cluster(address: str, steps: int, told: Told = nothing) -> tuple[list[np.ndarray], float]:
    async with asc.Scheduler(asc.cluster.DaskDevice(address), max_ops=64) as s:
        return await train(s, steps, told)


async def on_processes(workers: int, steps: int, kill: bool) -> tuple[list[np.ndarray], float]:
    """On a cluster of processes of this machine; with `kill`, one of them dies half way."""
    options: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    async with LocalCluster(asynchronous=True, silence_logs=50, **options) as cluster:

        async def murder(step: int) -> None:
            if step == steps // 2:
                async with Client(cluster.scheduler_address, asynchronous=True) as client:
                    name, process = next(iter((await client.run(os.getpid)).items()))
                os.kill(process, signal.SIGKILL)
                print(f"    step {step}: killed the worker {name}, process {process}, with all that was there")

        return await on_cluster(cluster.scheduler_address, steps, murder if kill else nothing)


def told(name: str, found: tuple[list[np.ndarray], float], expected: list[np.ndarray], steps: int) -> float:
    weights, seconds = found
    off = max(float(np.abs(a - b).max()) for a, b in zip(weights, expected, strict=True))
    assert off < 1e-4, off  # float32: sums in another order
    print(f"{name}: {1e3 * seconds / max(steps - 1, 1):.0f} ms a step, weights off by {off:.1e} at most", flush=True)
    return seconds


async def main(options: argparse.Namespace) -> None:
    steps = options.steps
    alone = await on_machine(steps)
    told("this machine alone", alone, alone[0], steps)
    if options.address:
        told(options.address, await on_cluster(options.address, steps), alone[0], steps)
        return
    one = told("1 worker", await on_processes(1, steps, False), alone[0], steps)
    more = told(f"{options.workers} workers", await on_processes(options.workers, steps, False), alone[0], steps)
    print(f"{options.workers} workers are {one / more:.2f} times as fast as 1")
    told("one worker killed", await on_processes(options.workers, steps, True), alone[0], steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="processes of the local cluster")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--address", help="of the scheduler of a cluster, instead of local ones")
    asyncio.run(main(parser.parse_args()))
