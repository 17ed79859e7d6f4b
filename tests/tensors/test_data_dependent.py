"""Lengths that depend on data: whether a line raises never depends on timing, and the largest result is charged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import held

X, Y = np.arange(8.0), np.arange(8.0) * 2


async def pending(s: asc.Scheduler, gate: threading.Event, array: np.ndarray) -> asc.Tensor:
    return await s.submit(held, gate, array, shape=array.shape, dtype=array.dtype)


def selected(x: asc.Tensor, least: float) -> asc.Tensor:
    return x[x > least]


# Of two tensors whose lengths depend on data.
LINES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda m, a, b: a + b,
    "with a known length": lambda m, a, b: a + m.arange(5.0 if m is np else 5),
    "where": lambda m, a, b: m.where(a > 4, a, b),
    "stack": lambda m, a, b: m.stack([a, b]),
    "concat": lambda m, a, b: m.concat([a, b]),
    "matmul": lambda m, a, b: a @ b,
    "reshape": lambda m, a, b: m.reshape(a, (5, 1)),
    "index": lambda m, a, b: a[4] + b[0],
    "sum": lambda m, a, b: m.sum(a[::-1] * b),
    "maximum": lambda m, a, b: m.max(b) + a,
    "outer": lambda m, a, b: a[:, None] * b,
}


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("first", ["pending", "done", "awaited"])
async def test_what_fits_is_computed_whoever_is_done(s, gate, name, first):
    x = await s.put(X) if first != "pending" else await pending(s, gate, X)
    a = selected(x, 2)
    if first == "awaited":
        await a
    elif first == "done":
        await s.barrier()
    b = selected(await pending(s, gate, Y), 5)
    found = LINES[name](asc, a, b)
    gate.set()
    expected = LINES[name](np, X[X > 2], Y[Y > 5])
    np.testing.assert_array_equal(await found, expected)
    assert found.shape == np.shape(expected)


@pytest.mark.parametrize("name", [name for name in LINES if name not in ("concat", "outer", "maximum")])
async def test_what_does_not_fit_raises_at_await_whoever_is_done(s, gate, name):
    done = selected(await s.put(X), 5), selected(await s.put(Y), 7)
    await s.barrier()  # both are there, and nobody has asked for them
    waiting = [selected(await pending(s, gate, array), least) for array, least in ((X, 5), (Y, 7))]
    pairs = done, waiting, (done[0], waiting[1]), (waiting[0], done[1])
    found = [LINES[name](asc, a, b) for a, b in pairs]
    gate.set()
    for result in found:
        with pytest.raises((ValueError, IndexError)):
            await result


async def test_a_length_is_known_from_the_await_on_and_not_by_timing(s):
    a, b = selected(await s.put(X), 2), selected(await s.put(Y), 5)
    await s.barrier()
    assert a.shape == (a + b).shape == (None,)
    with pytest.raises(ValueError, match="`await` it first"):
        asc.unstack(a)
    await a
    assert a.shape == (5,)
    assert len(asc.unstack(a)) == 5
    assert b.shape == (None,)
    await asc.gather(b.numpy())
    assert b.shape == (5,)


@pytest.mark.parametrize("done", [False, True])
async def test_what_may_be_too_large_is_refused_until_its_lengths_are_awaited(gate, done):
    async with asc.Scheduler("cpu", max_bytes="64 MiB") as s:
        counts = [asc.bincount(await pending(s, gate, np.array([0, 2, 2]))) for _ in range(2)]
        if done:
            gate.set()
            await s.barrier()
        with pytest.raises(asc.TaskTooLarge, match="its operands' lengths are known, so `await` them first"):
            asc.linalg.outer(*counts)
        gate.set()
        await asc.gather(*counts)
        assert (await asc.linalg.outer(*counts)).tolist() == [[1, 0, 2], [0, 0, 0], [2, 0, 4]]
        x = await s.put(np.ones((3, 4_000_000), np.int8))
        with pytest.raises(asc.TaskTooLarge, match=r"or split the task\n"):
            asc.linalg.outer(x[0], x[1])


async def test_counts_of_unknown_length_are_divided(s):
    rng = np.random.default_rng(0)
    for size in (10, 100_000):
        arrays = [np.append(rng.integers(0, 50, size), 49) for _ in range(2)]
        counts = [asc.bincount(await s.put(array)) for array in arrays]
        with np.errstate(all="ignore"):
            expected = np.bincount(arrays[0]) / np.bincount(arrays[1])
        np.testing.assert_array_equal(await (counts[0] / counts[1]), expected)


async def test_counts_charge_the_most_that_they_may_be(s):
    x = await s.put(np.array([5_000_000]))
    found = asc.bincount(x)
    assert found.nbytes == 65_536
    with pytest.raises(ValueError, match=r"the largest number is 5,000,000.*`maxlength=`, at least 5000001"):
        await found
    found = asc.bincount(x, maxlength=5_000_001)
    assert found.nbytes == 40_000_008
    assert (await found).shape == (5_000_001,)
    assert (await asc.bincount(await s.put([1, 3]), maxlength=9)).tolist() == [0, 1, 0, 1]
    with pytest.raises(asc.TaskTooLarge):
        async with asc.Scheduler("cpu", max_bytes="1 MiB") as small:
            asc.bincount(await small.put(np.array([5_000_000])), maxlength=5_000_001)
    with pytest.raises(ValueError, match="maxlength=3 is less than minlength=4"):
        asc.bincount(x, minlength=4, maxlength=3)


async def test_repeats_charge_the_most_that_they_may_be(s):
    x, often = await s.put(np.arange(3.0)), np.array([1, 0, 100_000])
    found = asc.repeat(x, await s.put(often))
    assert found.nbytes == 65_536
    with pytest.raises(ValueError, match=r"add up to 100,001, and 8,192 were charged: give `maxlength=`, at least 1"):
        await found
    found = asc.repeat(x, await s.put(often), maxlength=200_000)
    assert found.nbytes == 1_600_000
    np.testing.assert_array_equal(await found, np.repeat(np.arange(3.0), often))
    with pytest.raises(ValueError, match="add up to 30,000"):
        await asc.repeat(x, await s.put(np.array([10_000])))
    with pytest.raises(TypeError, match="a number gives a length that is known"):
        asc.repeat(x, 2, maxlength=6)
