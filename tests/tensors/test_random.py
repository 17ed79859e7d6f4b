"""Random numbers: NumPy's, in the order of the calls; what a draw that failed or was cancelled leaves."""

from __future__ import annotations

import asyncio
import gc
from functools import partial

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import held

CALLS = [
    ("random", (5,), {}),
    ("random", (), {"size": (2, 3), "dtype": "f4"}),
    ("standard_normal", (), {}),
    ("standard_normal", (4,), {"dtype": np.float32}),
    ("standard_exponential", (3,), {}),
    ("normal", (1.0, 2.0, (3, 4)), {}),
    ("uniform", (-1, 1), {"size": 7}),
    ("integers", (10,), {}),
    ("integers", (0, 5, 9), {"dtype": np.int8, "endpoint": True}),
    ("integers", (2**40, 2**41, 3), {}),
    ("exponential", (), {"size": 2}),
    ("gamma", (2.0,), {"size": 2}),
    ("beta", (2, 3, 2), {}),
    ("poisson", (4,), {"size": 6}),
    ("binomial", (10, 0.3, 6), {}),
    ("permutation", (9,), {}),
    ("choice", (9, (2, 3)), {}),
    ("choice", (9, 4, False), {}),
    ("choice", (9,), {}),
]


async def test_numbers_are_numpys_whatever_the_limits(s):
    ours, numpys = asc.random.default_rng(3), np.random.default_rng(3)
    drawn = [getattr(ours, name)(*args, **options) for name, args, options in CALLS]
    for tensor, (name, args, options) in zip(drawn, CALLS, strict=True):
        expected = np.asarray(getattr(numpys, name)(*args, **options))
        assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype), name
        assert (await tensor).tobytes() == expected.tobytes(), name


async def test_the_order_is_that_of_the_calls_in_many_scopes_under_a_small_limit():
    sizes = [5000, 20, 7000, 3, 6000, 900, 8000] * 3
    numpys = np.random.default_rng(5)
    expected = [numpys.standard_normal(size) for size in sizes]
    async with asc.Scheduler("cpu", streams=3, max_bytes=200_000) as s:
        rng = asc.random.default_rng(5)

        async def draw(size: int) -> np.ndarray:
            async with s.scope():
                return await rng.standard_normal(size).numpy()

        found = await asyncio.gather(*[draw(size) for size in sizes])
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


async def test_orders_and_choices_of_tensors(s):
    ours, numpys = asc.random.default_rng(3), np.random.default_rng(3)
    a, p = np.arange(12.0).reshape(4, 3), np.array([0.1, 0.2, 0.3, 0.4])
    x, weights = await s.put(a), await s.put(p)
    for got, expected in (
        (ours.permutation(x), numpys.permutation(a)),
        (ours.permutation(x, axis=1), numpys.permutation(a, axis=1)),
        (ours.choice(x, 2, replace=False), numpys.choice(a, 2, replace=False)),
        (ours.choice(x, (2, 5), p=weights), numpys.choice(a, (2, 5), p=p)),
        (ours.choice(x, axis=1), numpys.choice(a, axis=1)),
        (ours.choice(4, 3, p=weights), numpys.choice(4, 3, p=p)),
    ):
        assert got.shape == expected.shape
        assert (await got).tobytes() == expected.tobytes()


async def test_wrong_arguments_raise_at_the_line(s):
    rng = asc.random.default_rng(0)
    with pytest.raises(ValueError, match="scale < 0"):
        rng.normal(scale=-1)
    with pytest.raises(ValueError, match="low >= high"):
        rng.integers(5, 5)
    for draw in (rng.normal, rng.random, partial(rng.integers, 5), partial(rng.choice, 5)):
        with pytest.raises(ValueError, match="negative dimensions are not allowed"):
            draw(size=(2, -1))
    for layer in (asc.nn.Linear, asc.nn.Embedding):
        with pytest.raises(ValueError, match="negative dimensions are not allowed"):
            layer(-1, 2)
    with pytest.raises(TypeError, match="float64 or float32"):
        rng.random(3, dtype="i4")
    with pytest.raises(TypeError, match="loc must be a number"):
        rng.normal(rng.random())
    with pytest.raises(TypeError, match=r"x = rng.permutation\(x\)"):
        rng.shuffle(await s.put(np.arange(3)))
    with pytest.raises(ValueError, match="without replacement"):
        rng.choice(3, 4, replace=False)
    with pytest.raises(ValueError, match="p must be a tensor of 3"):
        rng.choice(3, 4, p=[0.2, 0.3, 0.5])
    assert (await rng.random(2)).tobytes() != b""


async def test_a_draw_cancelled_with_its_scope_does_not_count(gate):
    rng, numpys = asc.random.default_rng(1), np.random.default_rng(1)
    async with asc.Scheduler("cpu", max_ops=1) as s:
        x = await s.put(np.arange(4))
        assert (await rng.random(3)).tobytes() == numpys.random(3).tobytes()
        blocker = await s.submit(held, gate)
        with pytest.raises(LookupError):
            async with s.scope():
                cancelled, behind = rng.permutation(x), rng.random(2)
                raise LookupError
        for tensor in (cancelled, behind):
            with pytest.raises(asc.TaskCancelled):
                await tensor
        again = rng.random(2)
        gate.set()
        assert (await again).tobytes() == numpys.random(2).tobytes()
        await blocker


async def test_drawn_numbers_can_be_cancelled_alone(s, gate):
    rng, numpys = asc.random.default_rng(1), np.random.default_rng(1)
    given_up, behind = rng.permutation(await s.submit(held, gate, np.ones(4), shape=(4,), dtype="f8")), rng.random(2)
    assert given_up.cancel()
    gate.set()
    numpys.permutation(4)
    assert (await behind).tobytes() == numpys.random(2).tobytes()


async def test_a_failed_draw_was_none(s):
    rng, numpys = asc.random.default_rng(1), np.random.default_rng(1)
    p = await s.put(np.array([0.5, 0.6]))
    failed = rng.choice(2, 3, p=p)
    with pytest.raises(ValueError, match="Probabilities do not sum"):
        await failed
    assert (await rng.random(2)).tobytes() == numpys.random(2).tobytes()


async def test_a_generator_does_not_hold_drawn_numbers(s):
    rng = asc.random.default_rng(1)
    before = s.statistics().bytes_retained
    x = rng.random(50_000)
    await s.barrier()
    del x
    gc.collect()
    assert s.statistics().bytes_retained - before < 1000
    many = [rng.random(2) for _ in range(1000)]
    await s.barrier()
    rng.random()
    del many
    assert s.statistics().bytes_retained - before < 1000  # nor earlier states


async def test_draws_are_not_captured_and_their_gradients_not_lost(s):
    rng, x = asc.random.default_rng(1), await s.put(np.ones(3))
    with pytest.raises(asc.CaptureError, match="a draw of random numbers"):
        await s.capture(lambda x: x + rng.random(3), x)
    x.requires_grad = True
    with pytest.raises(NotImplementedError, match="permutation"):
        rng.permutation(x)


async def test_a_generator_goes_from_one_scheduler_to_the_next():
    rng, numpys = asc.random.default_rng(9), np.random.default_rng(9)
    for _ in range(2):
        async with asc.Scheduler("cpu"):
            assert (await rng.normal(size=3)).tobytes() == numpys.normal(size=3).tobytes()
