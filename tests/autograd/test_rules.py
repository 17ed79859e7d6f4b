"""Every rule of the table against central differences, at first and at second order."""

from __future__ import annotations

from typing import Any

import pytest

import asyncsched as asc
from asyncsched.autograd import RULES, grad, gradcheck
from asyncsched.autograd.rules.along_axes import ALONG_AXES
from asyncsched.autograd.rules.decompositions import DECOMPOSITIONS
from asyncsched.autograd.rules.einsum import EINSUM
from asyncsched.autograd.rules.elementwise import ELEMENTWISE
from asyncsched.autograd.rules.matrices import MATRICES
from asyncsched.autograd.rules.shapes import SHAPES
from asyncsched.ops.table import TABLE

from .cases import CASES, FIRST_ORDER, Case

pytestmark = pytest.mark.one_loop
OURS = {**ELEMENTWISE, **ALONG_AXES, **SHAPES, **MATRICES, **DECOMPOSITIONS, **EINSUM}


def each(*tables: dict[str, list[Case]]) -> list[Any]:
    return [
        pytest.param(name, *case, id=f"{name}-{i}")
        for table in tables
        for name, cases in table.items()
        for i, case in enumerate(cases)
    ]


def test_every_rule_has_a_case_and_a_row():
    assert set(OURS) == set(CASES) | set(FIRST_ORDER)
    assert set(RULES) <= set(TABLE)


@pytest.mark.parametrize(("name", "fn", "arrays"), each(CASES, FIRST_ORDER))
async def test_gradients_are_those_of_central_differences(s, name, fn, arrays):
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
            names.add(node.row.name)
            todo += node.parents
    return names


@pytest.mark.parametrize(("name", "fn", "arrays"), each(CASES))
async def test_gradients_of_gradients_are_too(s, name, fn, arrays):

    def gradient(*tensors: asc.Tensor) -> asc.Tensor:
        for tensor in tensors:
            tensor.requires_grad = True
        # Squares, so that nothing is linear, and of the operands too, so that no second derivative is missing.
        total = (fn(*tensors) ** 2).sum()
        for tensor in tensors:
            total = total + (tensor**2).sum()
        first = grad(total, tensors, create_graph=True)
        return asc.concat([asc.reshape(part, -1) for part in first])

    await gradcheck(gradient, *arrays, atol=1e-4)
