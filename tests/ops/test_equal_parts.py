"""Tiles and pools in equal parts for several threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncsched.ops import parallel
from asyncsched.ops.kernels import pool

pytestmark = pytest.mark.one_loop

RNG = np.random.default_rng(0)


def shared(monkeypatch: pytest.MonkeyPatch, threads: int) -> list[int]:
    """How many parts rows are in from now on, one after the other."""
    found: list[int] = []
    monkeypatch.setattr(parallel.here, "threads", threads)

    def run(parts: Any) -> None:
        found.append(len(parts))
        for part in parts:
            part()

    monkeypatch.setattr(parallel.here, "run", run)
    return found


def test_the_tiles_of_a_batch_are_in_parts_of_one_length_for_two_threads(monkeypatch):
    found, seen = shared(monkeypatch, 2), list[int]()
    parallel.each(range(8), 1.0, seen.append)
    assert seen == list(range(8))
    assert found == [8]


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("name", ["max_pool2d", "max_pool2d_backward"])
def test_pools_are_in_equal_blocks_for_the_threads_with_the_bits_of_the_whole(monkeypatch, name, threads):
    options = {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 0)}
    x = np.maximum(RNG.standard_normal((64, 32, 28, 14), np.float32), 0)
    y = pool.max_pool2d(np, x, **options)
    grad = RNG.standard_normal(y.shape, np.float32)
    kernel = getattr(pool, name)
    operands = (x,) if name == "max_pool2d" else (x, y, grad)
    whole, sizes = kernel(np, *operands, **options), list[int]()
    shared(monkeypatch, threads)
    each = parallel.each

    def noted(items: Any, *rest: Any) -> None:
        sizes.extend(item.stop - item.start for item in items)
        each(items, *rest)

    monkeypatch.setattr(parallel, "each", noted)
    assert kernel(np, *operands, **options).tobytes() == whole.tobytes()
    assert len(sizes) % threads == 0
    assert sum(sizes) == 64 * 32
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (1, 1, 1000, 1002)])
def test_a_pool_of_no_images_or_of_one_large_image_equals_the_plain_one(monkeypatch, shape, threads):
    shared(monkeypatch, threads)
    options = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
    x = RNG.standard_normal(shape, np.float64)
    windows = x.reshape(*shape[:2], shape[2] // 2, 2, shape[3] // 2, 2)
    y = pool.max_pool2d(np, x, **options)
    np.testing.assert_array_equal(y, windows.max((3, 5), initial=-np.inf))
    found = pool.max_pool2d_backward(np, x, y, 2 * y, **options)
    np.testing.assert_array_equal(found, np.where(x == y.repeat(2, 2).repeat(2, 3), 2 * x, 0))
