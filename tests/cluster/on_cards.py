"""Programs for a cluster whose workers have cards, whatever CuPy these have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.cluster.work import CardOutOfMemory
from tests.ledger import array_of

A = np.arange(12.0).reshape(3, 4)


def here(*_: Any) -> Any:
    """The name of the worker that runs this."""
    from distributed import get_worker

    return get_worker().name


async def operations(s: asc.Scheduler) -> None:
    """What leaves is NumPy's, with shape and dtype of NumPy's results, and the order of the axes that it had there."""
    x = await s.put(A)
    for found, expected in [
        (x @ x.T + 1, A @ A.T + 1),
        (x[1:, ::2].T, A[1:, ::2].T),
        (asc.nonzero(x)[0], np.nonzero(A)[0]),
        (await s.put(A.astype(">f4")) + 1, A.astype("f4") + 1),
        (await s.put(A.T), A.T),
        (await s.put(np.ones((2, 3, 4)).transpose(1, 0, 2)), np.ones((2, 3, 4)).transpose(1, 0, 2)),
        (await s.put(np.ones((0, 3))), np.ones((0, 3))),
    ]:
        there = await found
        assert type(there) is np.ndarray
        assert there.dtype == expected.dtype
        assert np.allclose(there, expected)
        assert there.strides == np.array(expected).strides
    assert await x.sum().item() == A.sum()
    large = await s.put(np.arange(100_000.0))
    assert np.array_equal(await large[::2], np.arange(100_000.0)[::2])  # the part alone travels
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        await asc.take(x, await s.put(np.array([7])), axis=0)


async def functions(s: asc.Scheduler) -> None:
    """A function is given CuPy's arrays, and what it makes stays on the card, in lists and dicts too."""

    def made(x: Any, factor: int) -> Any:
        import cupy

        assert isinstance(x, cupy.ndarray)
        return {"twice": x * factor, "host": x.get(), "name": "x"}

    def used(made: Any) -> Any:
        import cupy

        assert isinstance(made["twice"], cupy.ndarray)
        assert type(made["host"]) is np.ndarray
        return made["twice"].sum()

    x = await s.put(A)
    task = await s.submit(made, x, 2)
    total = await s.submit(used, task, shape=(), dtype=float)
    assert await (total + 1).item() == 2 * A.sum() + 1
    found = await task
    assert [type(part) for part in found.values()] == [np.ndarray, np.ndarray, str]
    assert np.array_equal(found["twice"], A * 2)


def future_of(handle: Any) -> Any:
    """Dask's future of a handle that is done."""
    return array_of(handle).call.future


async def transfers(s: asc.Scheduler) -> None:
    """Arrays of several workers' cards meet on one."""
    client = s.devices[0].connection.client  # type: ignore[attr-defined]
    xs = [await s.put(np.full(1000, float(i))) for i in range(8)]
    places = await client.who_has([future_of(x) for x in xs])
    assert len({worker for workers in places.values() for worker in workers}) == 2
    total = s.submit_nowait(lambda *arrays: sum(arrays), *xs, shape=(1000,), dtype=float)
    assert np.array_equal(await total, np.full(1000, 28.0))
    assert np.array_equal(await (xs[0] + xs[1] + total), np.full(1000, 29.0))


async def weigh(s: asc.Scheduler, model: asc.nn.Module) -> None:
    """Give a network weights that are the same everywhere: a card draws numbers of its own."""
    rng, state = np.random.default_rng(1), model.state_dict()
    shapes = {name: tensor.shape for name, tensor in state.items()}
    model.load_state_dict({name: await s.put(rng.random(shape, np.float32)) for name, shape in shapes.items()})


async def train(s: asc.Scheduler) -> list[np.ndarray]:
    """A few steps. Gives the losses, and the weights afterwards."""
    rng = np.random.default_rng(0)
    model = asc.nn.Sequential(asc.nn.Linear(8, 16, rng=1), asc.nn.ReLU(), asc.nn.Linear(16, 3, rng=2))
    await weigh(s, model)
    optimizer = asc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    X, Y = rng.standard_normal((3, 32, 8)).astype(np.float32), rng.integers(0, 3, (3, 32))
    window, losses = s.window(2), []
    for x, y in zip(X, Y, strict=True):
        async with window:
            loss = asc.nn.cross_entropy(model(await s.put(x)), await s.put(y))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
    return [*await asc.gather(*losses), *await asc.gather(*model.parameters())]


async def training(s: asc.Scheduler) -> None:
    """It gives the weights of one machine, to rounding."""
    there = await train(s)
    async with asc.Scheduler("cpu") as machine:
        here = await train(machine)
    for a, b in zip(there, here, strict=True):
        assert np.allclose(a, b, rtol=1e-5, atol=1e-6)


async def captured(s: asc.Scheduler) -> None:
    """A captured step gives what its operations give."""
    for found, expected in await replayed(s):
        assert np.allclose(found, expected)


async def replayed(s: asc.Scheduler) -> list[tuple[np.ndarray, np.ndarray]]:
    """What a captured step gives, which is one task of Dask's, and what NumPy does."""
    x, w = await s.put(A), await s.put(A.T)

    def step(x: asc.Tensor) -> tuple[asc.Tensor, asc.Tensor]:
        y = asc.tanh(x @ w / 100) + 1
        return y, (y * y).sum(axis=0)

    graph = await s.capture(step, x)
    sent: list[str] = []
    device: Any = s.devices[0]
    way = device.connection
    submit, way.submit = way.submit, lambda name, *rest: sent.append(name) or submit(name, *rest)
    y, total = graph(x)
    expected = np.tanh(A @ A.T / 100) + 1
    found = await asc.gather(y, total)
    assert len(sent) == 1
    return list(zip(found, (expected, (expected * expected).sum(axis=0)), strict=True))


async def full(s: asc.Scheduler) -> None:
    """The error of a full card is ours, and says whose card it is. The next task finds it as it was."""

    def too_much(x: Any) -> Any:
        import cupy

        return cupy.empty(1 << 50, np.uint8)

    x = await s.put(A)
    with pytest.raises(CardOutOfMemory, match="Cure: a smaller max_bytes=") as caught:
        await s.call(too_much, x)
    assert "raised on the worker" in "\n".join(caught.value.__notes__)
    assert await x.sum().item() == A.sum()


PROGRAMS = [operations, functions, transfers, training, captured, full]
