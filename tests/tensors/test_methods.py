"""Methods where users of NumPy expect them, or an error that names the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc

pytestmark = pytest.mark.one_loop

CALLS: list[Callable[[Any], Any]] = [
    lambda a: a.sum(0),
    lambda a: a.sum((0, 1), "f4"),
    lambda a: a.sum(axis=[0]) if not isinstance(a, np.ndarray) else a.sum(axis=0),
    lambda a: a.prod(1, keepdims=True),
    lambda a: a.max(0),
    lambda a: a.min(),
    lambda a: a.mean(0),
    lambda a: a.all(1),
    lambda a: a.any(),
    lambda a: a.std(0),
    lambda a: a.std(ddof=1),
    lambda a: a.var(1, ddof=1, keepdims=True),
    lambda a: a.argmax(),
    lambda a: a.argmin(0),
    lambda a: a.cumsum(),
    lambda a: a.cumsum(1),
    lambda a: a.cumprod(0, "f8"),
    lambda a: a.reshape(2, -1),
    lambda a: a.reshape((6, 2)),
    lambda a: a.flatten(),
    lambda a: a.ravel(),
    lambda a: a[:1].squeeze(),
    lambda a: a[:1].squeeze(0),
    lambda a: a.transpose(),
    lambda a: a.transpose(1, 0),
    lambda a: a.transpose((1, 0)),
    lambda a: a.repeat(2),
    lambda a: a.repeat(2, 1),
    lambda a: a.take(1, 0),
    lambda a: a.astype("i4"),
    lambda a: a.copy(),
    lambda a: a.clip(-0.5, 0.5),
    lambda a: a.astype("i1").clip(-1000, 1),
    lambda a: a.round(),
    lambda a: a.conj(),
    lambda a: a.dot(a.T),
    lambda a: a.real,
    lambda a: a.imag,
    lambda a: a.T,
    lambda a: a.ndim,
]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
async def test_methods_are_numpys(s, call):
    a = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    for array in (a, np.asfortranarray(a)):
        expected, found = call(array), call(await s.put(array))
        if isinstance(found, asc.Tensor):
            assert (found.shape, found.dtype) == (np.shape(expected), np.asarray(expected).dtype)
            found = await found
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


async def test_a_missing_method_names_the_replacement(s):
    x = await s.put(np.arange(3.0))
    with pytest.raises(AttributeError, match=r"a Tensor has no attribute 'sort': use `asc.sort\(t\)`"):
        x.sort()
    with pytest.raises(AttributeError, match=r"use `t\[\.\.\.\] = value`"):
        x.fill(0)
    with pytest.raises(AttributeError, match="a Tensor has no attribute 'whatever'$"):
        x.whatever  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'asnumpy': use `await t.numpy\(\)`"):
        x.asnumpy()
    with pytest.raises(AttributeError, match=r"use `asyncio.ensure_future\(t\)`"):
        await asyncio.wait([x])
    assert not hasattr(x, "__array_interface__")


async def test_a_transposed_gradient_finds_its_way(s):
    x = await s.put(np.arange(6.0).reshape(2, 3))
    x.requires_grad = True
    (x.transpose() * 2).flatten().sum().backward()
    assert x.grad is not None
    assert (await x.grad).tolist() == [[2.0] * 3] * 2
