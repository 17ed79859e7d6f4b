"""The products of matrices that a work cannot do without, alone: what would be left of its time if all else were free.

They are NumPy's, with the BLAS that ours has, into arrays that are there, on a thread for each processor.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from .harness.contestant import Prepare, Run, Work
from .layers import LAYERS
from .libraries import Library
from .perceptron import SIZES, size

Array = np.ndarray[Any, Any]
Product = tuple[Array, Array, Array]
"""Two operands, and where their product goes."""
Step = list[list[Product]]
"""What each thread multiplies, until they meet."""


def alone(steps: Callable[[bool, int], list[Step]]) -> Prepare:
    """A work: the products of these steps, of a size and for so many threads."""

    async def prepare(library: Library, n: int) -> Run:
        from threadpoolctl import threadpool_limits  # which not every contestant's environment has

        made = steps(library.quick, library.threads)

        async def run(count: int) -> None:
            with threadpool_limits(1, "blas"), ThreadPoolExecutor(library.threads) as threads:
                for _ in range(count):
                    for step in made:
                        list(threads.map(_multiply, step))

        return run

    return prepare


def _multiply(products: list[Product]) -> None:
    for a, b, out in products:
        np.matmul(a, b, out=out)


def perceptron(quick: bool, threads: int) -> list[Step]:
    """Two products forward, three backward, each in as many parts; the last layer, of one column, is left out."""
    shape = SIZES[size(quick)]
    inputs, hidden, outputs, _ = shape.widths
    x, a1, a2 = (_random(shape.batch, width) for width in (inputs, hidden, outputs))
    w1, w2 = _random(inputs, hidden), _random(hidden, outputs)
    d1, d2, g1, g2 = (np.zeros_like(array) for array in (a1, a2, w1, w2))
    products = [(x, w1, d1), (a1, w2, d2), (a1.T, a2, g2), (a2, w2.T, d1), (x.T, a1, g1)]
    return [[[(a[part], b, out[part])] for part in _parts(len(out), threads)] for a, b, out in products]


def attention(quick: bool, threads: int) -> list[Step]:
    """Scores and weighted values, head by head; a thread's scores stay in its cache."""
    *heads, length, width = LAYERS["attention"].sizes(quick)[0]
    q = _random(prod(heads), length, width)
    out = np.zeros_like(q)
    step: Step = []
    for part in _parts(len(q), threads):
        scores = np.zeros((length, length), np.float32)
        step.append([each for i in range(len(q))[part] for each in ((q[i], q[i].T, scores), (scores, q[i], out[i]))])
    return [step]


def convolution(quick: bool, threads: int) -> list[Step]:
    """The filters with an image's windows as columns, image by image; a thread's columns are there, in its cache."""
    (images, channels, *image), (filters, _, *window), _ = LAYERS["conv2d"].sizes(quick)
    weights, out = _random(filters, channels * prod(window)), np.zeros((images, filters, prod(image)), np.float32)
    step: Step = []
    for part in _parts(images, threads):
        columns = _random(weights.shape[1], prod(image))
        step.append([(weights, columns, out[i]) for i in range(images)[part]])
    return [step]


def _parts(n: int, threads: int) -> list[slice]:
    return [slice(*bounds) for bounds in pairwise(n * i // threads for i in range(threads + 1))]


def _random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


WORKS: dict[str, Work] = {
    "the perceptron": Work(alone(perceptron)),
    "attention": Work(alone(attention)),
    "conv2d": Work(alone(convolution)),
}
