"""Captured steps on a card: graphs, replayed and compared by value, and what CuPy does not let into one."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn
from tests.waiting import until

from .cases import values
from .conftest import NONE, recorded

pytestmark = pytest.mark.one_loop


def step(x: asc.Tensor, y: asc.Tensor) -> list[asc.Tensor]:
    h = asc.tanh(x * 2) + y
    return [h.sum(axis=0), h.mT, asc.maximum(h, x)]


def eager(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    h = np.tanh(x * 2) + y
    return [h.sum(axis=0), h.mT, np.maximum(h, x)]


async def test_graphs_on_two_streams_give_what_their_operations_give(card):
    """The second reads what the first gives, on a stream of its own."""
    async with asc.Scheduler("cuda", streams=2, max_bytes="64 MiB") as s:
        second = values(32, 48, seed=1)
        x, y = await s.put(values(32, 48)), await s.put(second)
        graphs = [await s.capture(step, x, y)]
        while len({graph._lanes[0] for graph in graphs}) < 2:
            graphs.append(await s.capture(step, x, y))
            await (x + 1)
        one, other = graphs[0], graphs[-1]
        for seed in range(20):
            first = values(32, 48, seed=seed)
            found = one(await s.put(first), y)
            after = other(found[2], y)
            expected = eager(first, second)
            for ours, theirs in zip([*found, *after], [*expected, *eager(expected[2], second)], strict=True):
                assert np.allclose(await ours.numpy(), theirs, rtol=1e-4, atol=1e-5), seed
        if card.fake is None:
            assert all(recorded(s))


@pytest.mark.gpu
async def test_cupy_refuses_copies_from_the_host(has_card):
    """It copies the addresses of many arrays to the device, to concatenate them."""
    if not has_card:
        pytest.skip(NONE)
    async with asc.Scheduler("cuda") as s:
        x = await s.put(values(24, 16))

        def parts(x: asc.Tensor) -> asc.Tensor:
            return asc.concat([x[2 * i : 2 * i + 2] * float(i) for i in range(12)], axis=0)

        with pytest.raises(asc.CaptureError, match=r"H2D transfers are disallowed .*'concat', written at .*captures"):
            await s.capture(parts, x)
        expected = np.concatenate([values(24, 16)[2 * i : 2 * i + 2] * i for i in range(12)])
        assert np.allclose(await parts(x).numpy(), expected)


@pytest.mark.parametrize("part", [slice(None), slice(8, None)], ids=["all of it", "a part"])
async def test_an_argument_that_comes_back_beside_a_donated_one_is_never_written_over(card, part):
    def write(cache: asc.Tensor, x: asc.Tensor) -> tuple[asc.Tensor, asc.Tensor]:
        cache[0] = 1.0
        return cache, x[part]

    async with asc.Scheduler("cuda", streams=1) as s:
        x, cache = await s.put(values(16, 16)), await s.put(values(4, 4))
        graph = await s.capture(write, cache, x, donate=(0,))
        cache, y = graph(cache, x)
        await s.barrier()
        y = y * 100  # nobody else holds the handle of before
        await s.barrier()
        y = y * 100
        assert np.array_equal(await x.numpy(), values(16, 16))
        assert np.allclose(await y.numpy(), values(16, 16)[part] * 10_000)


def perceptron(x: asc.Tensor, y: asc.Tensor) -> list[asc.Tensor]:
    """Its loss, and the gradients."""
    leaves = [y.detach(), y.mT.detach()]
    for leaf in leaves:
        leaf.requires_grad = True
    h = nn.functional.linear(nn.functional.gelu(nn.functional.linear(x, leaves[0])), leaves[1])
    loss = (h * h).mean()
    return [h.detach(), loss.detach(), *asc.autograd.grad(loss, leaves)]


def token(x: asc.Tensor, y: asc.Tensor) -> list[asc.Tensor]:
    """The last row looks at those before it, of two heads."""
    heads = [part.reshape((len(part), 2, -1)).transpose((1, 0, 2)) for part in (x[-1:], x, x @ y)]
    h = nn.functional.scaled_dot_product_attention(*heads)
    return [nn.functional.rms_norm(h.transpose((1, 0, 2)).reshape((1, -1)) @ y, (y.shape[1],)), x @ y]


def products(x: asc.Tensor, y: asc.Tensor) -> list[asc.Tensor]:
    """In each way in which CuPy calls cuBLAS."""
    many, one = asc.stack([x, x + 1]), asc.expand_dims(y, axis=0)
    return [x @ y, y.mT @ y, many @ one, many @ asc.stack([y, y]), x[0] @ y, asc.tensordot(many, y, axes=1)]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16", "i8"])
@pytest.mark.parametrize("network", [perceptron, token, products])
async def test_a_step_with_products_is_a_graph_with_the_bits_of_its_operations(card, network, dtype):
    if network is not products and dtype not in ("f4", "f8"):
        pytest.skip("networks are of floats")
    async with asc.Scheduler("cuda", streams=1) as s:
        x, y = await s.put(values(6, 8, dtype=dtype)), await s.put(values(8, 8, dtype=dtype, seed=1))
        graph = await s.capture(network, x, y)
        for first in (x, x * 2, x):
            expected = [await one.numpy() for one in network(first, y)]  # between replays cuBLAS runs on CuPy's handle
            for ours, theirs in zip(graph(first, y), expected, strict=True):
                assert (await ours.numpy()).tobytes() == theirs.tobytes()
        if card.fake is None:
            assert recorded(s) == [True]


@pytest.mark.gpu
async def test_other_threads_call_cublas_while_a_step_with_products_is_recorded(has_card):
    if not has_card:
        pytest.skip(NONE)
    import cupy

    ended, failed = threading.Event(), list[Exception]()

    def multiply() -> None:
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                a = cupy.ones((8, 8))
                while not ended.is_set():
                    assert float((a @ a).get(stream=stream).max()) == 8
        except Exception as error:
            failed.append(error)

    async with asc.Scheduler("cuda", streams=1) as s:
        x, y = await s.put(values(6, 8)), await s.put(values(8, 8, seed=1))
        multiplying = asyncio.create_task(asyncio.to_thread(multiply))
        try:
            for _ in range(20):
                await asc.gather(*(await s.capture(products, x, y))(x, y))
        finally:
            ended.set()
        await multiplying
    assert not failed


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["Global", "ThreadLocal", "Relaxed"])
async def test_a_capture_of_the_users_goes_beside_the_scheduler(has_card, mode):
    """In the global mode, PyTorch's own, CUDA lets no other thread take memory, but for those that are relaxed."""
    if not has_card:
        pytest.skip(NONE)
    import cupy

    begun, go = threading.Event(), threading.Event()

    def capture() -> float:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.zeros(4)
            x += 1
            stream.begin_capture(getattr(cupy.cuda.runtime, f"streamCaptureMode{mode}"))
            x += 1
            begun.set()
            go.wait(60)
            stream.end_capture().launch(stream)
            return float(x.get(stream=stream).max())

    async with asc.Scheduler("cuda", max_bytes="64 MiB") as s:
        x = await s.put(np.ones(4))
        assert (await (x + 1).numpy()).max() == 2
        capturing = asyncio.create_task(asyncio.to_thread(capture))
        await until(begun.is_set)
        try:
            y = await s.put(np.ones(4_000_000))  # of a slab of its own, as its copy
            assert (await (y * 2).numpy()).max() == 2
            assert (await (x + 2)).shape == (4,)
        finally:
            go.set()
        assert await capturing == 2
