"""Every rule of the table against central differences, at first and at second order.

At first order element by element, at second along directions drawn at random.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

import asyncsched as asc
from asyncsched.autograd import RULES, grad, gradcheck
from asyncsched.autograd.rules import COMPLEX, HOLOMORPHIC
from asyncsched.autograd.rules.along_axes import ALONG_AXES
from asyncsched.autograd.rules.elementwise import ELEMENTWISE
from asyncsched.autograd.rules.linear_maps import FOURIER, SHAPES, SIGNAL
from asyncsched.autograd.rules.matrices import MATRICES
from asyncsched.ops.table import TABLE

from .cases import CASES, FIRST_ORDER
from .moved import NOT_YET, moved

pytestmark = pytest.mark.one_loop
OURS = {**ELEMENTWISE, **ALONG_AXES, **SHAPES, **MATRICES, **FOURIER, **SIGNAL}


@contextmanager
def told(number: int) -> Iterator[None]:
    """An error says in which case of a rule: all are one item, since each costs milliseconds."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in case {number}")
        raise


WITHOUT_NETWORKS = """
import sys
import numpy as np
import asyncsched as asc

async def main():
    async with asc.Scheduler("cpu") as s:
        x = await s.put(np.ones((2, 2)))
        x.requires_grad = True
        (slope,) = asc.autograd.grad((x @ x @ x).sum(), [x], create_graph=True)
        (curvature,) = asc.autograd.grad(slope.sum(), [x])
        print((await curvature).tolist(), "asyncsched.nn" in sys.modules)

asc.run(main())
"""


def test_a_product_has_second_derivatives_where_no_networks_are_imported():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NETWORKS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[[24.0, 24.0], [24.0, 24.0]] False\n"


def test_every_rule_has_a_case_and_a_row():
    assert set(OURS) == set(CASES) | set(FIRST_ORDER)
    assert set(RULES) <= set(TABLE)


@pytest.mark.parametrize("name", sorted(CASES.keys() | FIRST_ORDER.keys()))
async def test_gradients_are_those_of_central_differences(s, name):
    for number, (fn, arrays) in enumerate([*CASES.get(name, ()), *FIRST_ORDER.get(name, ())]):
        with told(number):
            await gradcheck(fn, *arrays)
            tensors = [await s.put(array) for array in arrays]
            for tensor in tensors:
                tensor.requires_grad = True
            assert name in rows_behind(fn(*tensors))


def rows_behind(tensor: asc.Tensor) -> set[str]:
    """The names of the rows that the tape has for a tensor."""
    names, todo = set(), [tensor._node]
    while todo:
        node = todo.pop()
        if node is not None and not node.leaf:
            names.add(node.op.name)
            todo += node.parents
    return names


@pytest.mark.parametrize("name", CASES)
async def test_gradients_of_gradients_are_too(s, name):
    def gradient(fn: Callable[..., asc.Tensor], *tensors: asc.Tensor) -> asc.Tensor:
        for tensor in tensors:
            tensor.requires_grad = True
        # Squares, so that nothing is linear, and of the operands too, so that no second derivative is missing.
        total = (fn(*tensors) ** 2).sum()
        for tensor in tensors:
            total = total + (tensor**2).sum()
        first = grad(total, tensors, create_graph=True)
        return asc.concat([asc.reshape(part, -1) for part in first])

    for number, (fn, arrays) in enumerate(CASES[name]):
        with told(number):
            await gradcheck(await moved(s, partial(gradient, fn), arrays), NOT_YET, atol=1e-4)


# Whose cases cast to real numbers, take those alone, or compare.
NOT_COMPLEX = {"astype", "rfft", "rfftn", "where"}


@pytest.mark.parametrize("name", sorted((HOLOMORPHIC | set(COMPLEX)) - NOT_COMPLEX))
async def test_gradients_of_complex_numbers_are_those_of_their_parts(s, name):
    fn, arrays = CASES[name][0]

    def parts(*tensors: asc.Tensor) -> asc.Tensor:
        half = len(tensors) // 2
        found = fn(*[x + y * 1j for x, y in zip(tensors[:half], tensors[half:], strict=True)])
        return asc.real(found) - asc.imag(found) * 0.7 if found.dtype.kind == "c" else found

    await gradcheck(parts, *arrays, *[array[..., ::-1] * 0.3 if array.ndim else array * 0.3 for array in arrays])


async def test_a_spectrum_leads_back_to_its_signal(s):
    """By Parseval's theorem the energy of the spectrum is n times that of the signal."""
    x = await s.put(np.random.default_rng(0).normal(size=32).astype("f4"))
    x.requires_grad = True
    (asc.abs(asc.fft.fft(x)) ** 2).sum().backward()
    assert x.grad.dtype == np.float32
    assert_allclose(await x.grad, 64 * await x, rtol=1e-4)
    x.grad = None
    asc.real(asc.fft.ifftshift(asc.fft.fftshift(asc.fft.fft(x))) * 2).sum().backward()
    assert_allclose(await x.grad, [64] + [0] * 31, atol=1e-4)
    low, x.grad = asc.arange(32) < 3, None  # a filter's gradient is filtered
    asc.real(asc.where(low, asc.fft.fft(x.astype("c8")), 0)).sum().backward()
    assert_allclose(await x.grad, np.real(np.fft.fft(np.arange(32) < 3)), atol=1e-4)
