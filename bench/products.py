"""The products of matrices that a work cannot do without, alone: what would be left of its time if all else were free.

They are NumPy's, with the BLAS that ours has, into arrays that are there, on a thread for each processor.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from .graphs import normal, ones
from .harness.contestant import Run, Work
from .layers import LAYERS
from .libraries import Library
from .perceptron import SIZES, size

Step = tuple[int, Callable[[slice], object]]
"""How long something is, and what multiplies a part of it."""


async def alone(library: Library, n: int, *, steps: Callable[[bool], list[Step]]) -> Run:
    """The products of these steps, one step after the other, each in as many parts as there are threads."""
    from threadpoolctl import threadpool_limits  # which not every contestant's environment has

    made, count_of = steps(library.quick), library.threads

    async def run(count: int) -> None:
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(count_of) as threads:
            for _ in range(count):
                for length, multiply in made:
                    bounds = pairwise(length * i // count_of for i in range(count_of + 1))
                    list(threads.map(multiply, [slice(*part) for part in bounds]))

    return run


def perceptron(quick: bool) -> list[Step]:
    """Two products forward, three backward; the last layer, of one column, is left out."""
    rows, (inputs, hidden, outputs, _) = SIZES[size(quick)]
    x, a1, a2 = (normal((rows, width)) for width in (inputs, hidden, outputs))
    w1, w2 = normal((inputs, hidden)), normal((hidden, outputs))
    d1, d2, g1, g2 = (np.zeros_like(array) for array in (a1, a2, w1, w2))
    products = [(x, w1, d1), (a1, w2, d2), (a1.T, a2, g2), (a2, w2.T, d1), (x.T, a1, g1)]
    return [(len(out), partial(_rows, a, b, out)) for a, b, out in products]


def _rows(a: Any, b: Any, out: Any, part: slice) -> None:
    np.matmul(a[part], b, out=out[part])


def attention(quick: bool) -> list[Step]:
    """Scores and weighted values, head by head; a thread's scores stay in its cache."""
    *heads, length, width = LAYERS["attention"].sizes(quick)[0]
    q = normal((prod(heads), length, width))
    out = np.zeros_like(q)

    def multiply(part: slice) -> None:
        scores = ones((length, length))
        for i in range(len(q))[part]:
            np.matmul(q[i], q[i].T, out=scores)
            np.matmul(scores, q[i], out=out[i])

    return [(len(q), multiply)]


def convolution(quick: bool) -> list[Step]:
    """The filters with an image's windows as columns, image by image; a thread's columns are there, in its cache."""
    (images, channels, *image), (filters, _, *window), _ = LAYERS["conv2d"].sizes(quick)
    weights, out = normal((filters, channels * prod(window))), np.zeros((images, filters, prod(image)), np.float32)

    def multiply(part: slice) -> None:
        columns = ones((weights.shape[1], prod(image)))
        for i in range(images)[part]:
            np.matmul(weights, columns, out=out[i])

    return [(images, multiply)]


WORKS: dict[str, Work] = {
    "the perceptron": Work(partial(alone, steps=perceptron)),
    "attention": Work(partial(alone, steps=attention)),
    "conv2d": Work(partial(alone, steps=convolution)),
}
