"""Gradients where operands are equal, zero, infinite or NaN: as PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn
from asyncsched.autograd.rules.elementwise import ELEMENTWISE
from asyncsched.ops.table import TABLE
from asyncsched.tensors.tensor import apply
from tests.declared import ARITIES

pytestmark = [pytest.mark.one_loop, pytest.mark.usefixtures("torch_may_block")]
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

nan, inf = np.nan, np.inf
POINTS = np.array([-inf, -2, -1, -0.5, -0.0, 0.0, 0.5, 1, 2, inf, nan])
PAIRS = [grid.ravel() for grid in np.meshgrid(POINTS, POINTS)]
UNARY = [name for name in ELEMENTWISE if ARITIES.get(name) == 1 and hasattr(torch, name)] + ["round"]
# Not copysign, whose gradient at infinities is NaN there, as a quotient of such; and there is none of floor_divide.
BINARY = [name for name in ELEMENTWISE if ARITIES.get(name) == 2 and name not in ("copysign", "floor_divide")]
ROWS = np.array([[1, nan, 3, nan], [2, 2, 1, 0], [inf, inf, 1, -inf], [-inf, -inf, -inf, -inf], [0, 0, -1, -1]])

GRID = np.random.default_rng(5).standard_normal((3, 4))
LINES = np.array([[1, nan, 3, nan], [2, 7, 1, 0], [4, -3, 1, 8], [0.5, 6, -1, 9], [3, 2, 5, -4]])
PARTS = [0.0, 0.2, 0.5, 0.9]


async def compare(s: asc.Scheduler, ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Gradients, in single and in double precision."""
    for dtype in ("f4", "f8"):
        given = [array.astype(dtype) for array in arrays]
        mine, yours = [await s.put(a) for a in given], [torch.tensor(a, requires_grad=True) for a in given]
        for tensor in mine:
            tensor.requires_grad = True
        value, expected = ours(*mine), theirs(*yours)
        weights = np.random.default_rng(0).uniform(0.5, 1.5, tuple(expected.shape)).astype(dtype)
        value.backward(await s.put(weights))
        expected.backward(torch.tensor(weights))
        for tensor, there in zip(mine, yours, strict=True):
            # Where terms near 1 cancel, single precision leaves their rounding.
            rounding = 1e-7 if dtype == "f4" else 1e-30
            np.testing.assert_allclose(await tensor.grad, there.grad.numpy(), rtol=1e-5, atol=rounding)


@pytest.mark.parametrize("name", UNARY)
async def test_of_one_operand(s, name):
    # At -1 and below acosh is NaN. So is its gradient here, where PyTorch gives a number.
    points = POINTS[~(POINTS <= -1)] if name == "acosh" else POINTS
    await compare(s, lambda x: apply(TABLE[name], (x,)), getattr(torch, name), points)


@pytest.mark.parametrize("name", BINARY)
async def test_of_two_operands(s, name):
    await compare(s, lambda x, y: apply(TABLE[name], (x, y)), getattr(torch, name), *PAIRS)


@pytest.mark.parametrize("number", POINTS, ids=str)
@pytest.mark.parametrize("name", ["maximum", "minimum"])
async def test_of_a_tensor_and_a_number(s, name, number):
    def theirs(x):
        return getattr(torch, name)(x, torch.tensor(number, dtype=x.dtype))

    number = float(number)
    await compare(s, lambda x: getattr(asc, name)(x, number), theirs, POINTS)
    await compare(s, lambda x: getattr(asc, name)(number, x), theirs, POINTS)


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[np.ndarray, ...]]] = {
    **{
        f"norm of order {order}": (
            lambda x, order=order: asc.linalg.vector_norm(x, axis=1, ord=order),
            lambda x, order=order: torch.linalg.vector_norm(x, order, 1),
            (np.array([[1.0, -2.0, 4.0], [0.5, 0.0, -3.0], [0.0, 0.0, 1.0]]),),
        )
        for order in (-3, -2, -1, -0.5, 0.5, 1.5, 3)
    },
    "max along an axis": (lambda x: asc.max(x, axis=1), lambda x: torch.amax(x, 1), (ROWS,)),
    "min along an axis": (lambda x: asc.min(x, axis=1), lambda x: torch.amin(x, 1), (ROWS,)),
    "max of all, one NaN": (asc.max, torch.max, (ROWS,)),
    "min of all, one NaN": (asc.min, torch.min, (ROWS,)),
    "max of all": (asc.max, torch.max, (ROWS[1:],)),
    "sort": (lambda x: asc.sort(x, axis=1), lambda x: torch.sort(x, stable=True, dim=1).values, (ROWS,)),
    "clip": (lambda x: asc.clip(x, 0, 1), lambda x: torch.clamp(x, 0, 1), (POINTS,)),
    "clip, no room": (lambda x: asc.clip(x, 1, 0), lambda x: torch.clamp(x, 1, 0), (POINTS,)),
    "relu": (nn.relu, torch.relu, (POINTS,)),
    "root of relu": (lambda x: asc.sqrt(nn.relu(x)), lambda x: torch.sqrt(torch.relu(x)), (POINTS,)),
    "root of maximum": (
        lambda x: asc.sqrt(asc.maximum(x, 0)),
        lambda x: torch.sqrt(torch.maximum(x, torch.zeros((), dtype=x.dtype))),
        (POINTS[~np.signbit(POINTS) | (POINTS < 0)],),  # which 0 the larger of 0 and -0 is they tell otherwise
    ),
    "root of max": (lambda x: asc.sqrt(asc.max(x)), lambda x: torch.sqrt(torch.max(x)), (np.array([-1.0, 0.0, -2]),)),
    "maximum, broadcast": (asc.maximum, torch.maximum, (ROWS, ROWS[:, 1:2])),
    "maximum, turned": (lambda x, y: asc.maximum(x.mT, y), lambda x, y: torch.maximum(x.mT, y), (ROWS[:4], ROWS[1:])),
    "smooth_l1_loss": (
        lambda x: nn.smooth_l1_loss(x, asc.zeros_like(x), reduction="none", beta=0.7),
        lambda x: torch.nn.functional.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=0.7),
        (POINTS,),
    ),
    **{
        f"gradient, order {order}, {number}": (
            lambda x, o=order, h=h: sum(y * k for k, y in enumerate(asc.gradient(x, *h, edge_order=o), 1)),
            lambda x, o=order, t=t: sum(y * k for k, y in enumerate(torch.gradient(x, edge_order=o, **t), 1)),
            (ROWS[:4],),
        )
        for order in (1, 2)
        for number, (h, t) in enumerate((((), {}), ((2.0,), {"spacing": 2.0}), ((0.5, 2.0), {"spacing": (0.5, 2.0)})))
    },
    **{
        f"gradient at {last:g}, order {order}": (
            lambda x, y, z, o=order: sum(y * k for k, y in enumerate(asc.gradient(x, y, z, edge_order=o), 1)),
            lambda x, y, z, o=order: sum(
                y * k for k, y in enumerate(torch.gradient(x, spacing=(y, z), edge_order=o), 1)
            ),
            (GRID, np.array([0.0, 1, last]), np.array([-1.0, 0, last - 1, 2])),
        )
        for order in (1, 2)
        for last in (1.5, 2.0)
    },
    "trapezoid": (lambda y: asc.trapezoid(y, dx=0.5), lambda y: torch.trapezoid(y, dx=0.5), (ROWS,)),
    "trapezoid at coordinates": (asc.trapezoid, torch.trapezoid, (GRID, np.array([-1.0, 0, 2, 2.5]))),
    "trapezoid along the first axis": (
        lambda y, x: asc.trapezoid(y, x, axis=0),
        lambda y, x: torch.trapezoid(y, x, dim=0),
        (GRID, GRID[::-1] ** 2),
    ),
    **{
        f"convolve, {mode}": (
            lambda a, v, m=mode: asc.convolve(a, v, m),
            lambda a, v, p=padding: torch.nn.functional.conv1d(a[None, None], v.flip(0)[None, None], padding=p)[0, 0],
            (GRID.ravel(), np.array([0.5, 2, -1])),
        )
        for mode, padding in (("full", 2), ("same", 1), ("valid", 0))
    },
    **{
        f"pad, {mode}": (
            lambda x, m=mode: asc.pad(x, ((0, 0), (2, 1)), m),
            lambda x, m=theirs: torch.nn.functional.pad(x, (2, 1), m),
            (ROWS[:, :3],),
        )
        for mode, theirs in (
            ("constant", "constant"),
            ("edge", "replicate"),
            ("reflect", "reflect"),
            ("wrap", "circular"),
        )
    },
    "windows": (lambda x: asc.sliding_window_view(x, 3, 1), lambda x: x.unfold(1, 3, 1), (ROWS,)),
    "every other window": (lambda x: asc.sliding_window_view(x, 3, 0)[::2], lambda x: x.unfold(0, 3, 2), (ROWS,)),
    "nansum": (lambda x: asc.nansum(x, 1), lambda x: torch.nansum(x, 1), (ROWS,)),
    "nanmean": (lambda x: asc.nanmean(x, 1), lambda x: torch.nanmean(x, 1), (LINES,)),
    "median": (lambda x: asc.median(x, 1), lambda x: torch.quantile(x, 0.5, 1), (LINES[1:],)),
    "median of all": (asc.median, lambda x: torch.quantile(x, 0.5), (LINES[1:],)),
    **{
        f"quantiles, {method}": (
            lambda x, method=method: asc.quantile(x, np.array(PARTS, x.dtype), 1, method=method),
            lambda x, method=method: torch.quantile(x, torch.tensor(PARTS, dtype=x.dtype), 1, interpolation=method),
            (LINES,),
        )
        for method in ("linear", "lower", "higher", "midpoint", "nearest")
    },
    "topk": (lambda x: asc.topk(x, 3, 1).values, lambda x: torch.topk(x, 3, 1).values, (LINES,)),
    "topk, smallest": (
        lambda x: asc.topk(x, 3, 0, largest=False).values,
        lambda x: torch.topk(x, 3, 0, largest=False).values,
        (LINES,),
    ),
    "cov": (lambda x: asc.cov(x, dtype=x.dtype), torch.cov, (LINES[1:],)),
    "cov, weights": (
        lambda x, w: asc.cov(x, aweights=w, ddof=0).astype(x.dtype),
        lambda x, w: torch.cov(x, aweights=w, correction=0),
        (LINES[1:], np.array([1.0, 2, 0.5, 3])),
    ),
    "corrcoef": (lambda x: asc.corrcoef(x, dtype=x.dtype), torch.corrcoef, (LINES[1:],)),
    "softmax": (nn.softmax, lambda x: torch.softmax(x, -1), (ROWS,)),
    "log_softmax": (nn.log_softmax, lambda x: torch.log_softmax(x, -1), (ROWS,)),
}


@pytest.mark.parametrize("name", CASES)
async def test_of_more(s, name):
    ours, theirs, arrays = CASES[name]
    await compare(s, ours, theirs, *arrays)


def symmetric(x: Any) -> Any:
    return x @ x.mT + 0.1 * x @ x.mT @ x @ x.mT


# Vectors as squares: of which sign they are is nobody's promise.
MATRICES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "cholesky": (lambda x: asc.linalg.cholesky(symmetric(x)), lambda x: torch.linalg.cholesky(symmetric(x))),
    "eigenvalues": (lambda x: asc.linalg.eigh(symmetric(x))[0], lambda x: torch.linalg.eigh(symmetric(x))[0]),
    "eigenvectors": (
        lambda x: asc.linalg.eigh(symmetric(x))[1] ** 2,
        lambda x: torch.linalg.eigh(symmetric(x))[1] ** 2,
    ),
    "eigvalsh": (lambda x: asc.linalg.eigvalsh(symmetric(x)), lambda x: torch.linalg.eigvalsh(symmetric(x))),
    "slogdet": (lambda x: asc.linalg.slogdet(x)[1], lambda x: torch.linalg.slogdet(x)[1]),
    "det": (asc.linalg.det, lambda x: torch.linalg.det(x)),
    "inv": (asc.linalg.inv, lambda x: torch.linalg.inv(x)),
    "Q": (lambda x: asc.linalg.qr(x)[0] ** 2, lambda x: torch.linalg.qr(x)[0] ** 2),
    "R": (lambda x: asc.linalg.qr(x)[1] ** 2, lambda x: torch.linalg.qr(x)[1] ** 2),
    "U": (
        lambda x: asc.linalg.svd(x[..., :2], full_matrices=False)[0] ** 2,
        lambda x: torch.linalg.svd(x[..., :2], full_matrices=False)[0] ** 2,
    ),
    "S": (lambda x: asc.linalg.svd(x[..., :2]).S, lambda x: torch.linalg.svd(x[..., :2]).S),
    "Vh": (lambda x: asc.linalg.svd(x)[2] ** 2, lambda x: torch.linalg.svd(x)[2] ** 2),
    "all of them": (
        lambda x: sum((part**2).sum() * k for k, part in enumerate(asc.linalg.svd(x), 1)),
        lambda x: sum((part**2).sum() * k for k, part in enumerate(torch.linalg.svd(x), 1)),
    ),
    "einsum": (
        lambda x: asc.einsum("...ij,...kj,...ll->...ik", x, x, x),
        lambda x: torch.einsum("...ij,...kj,...ll->...ik", x, x, x),
    ),
}


@pytest.mark.parametrize("name", MATRICES)
async def test_of_matrices(s, name):
    ours, theirs = MATRICES[name]
    x = np.random.default_rng(3).standard_normal((2, 3, 3)) + 2 * np.eye(3)
    given, expected = await s.put(x), torch.tensor(x, requires_grad=True)
    given.requires_grad = True
    (ours(given) ** 3).sum().backward()
    (theirs(expected) ** 3).sum().backward()
    np.testing.assert_allclose(await given.grad, expected.grad.numpy(), rtol=1e-9, atol=1e-10)


async def test_a_choice_larger_than_a_block(s):
    rng = np.random.default_rng(0)
    x, y = [rng.choice([nan, inf, -inf, 0, 1, 2, 3], (400, 700)) for _ in range(2)]
    await compare(s, asc.maximum, torch.maximum, x, y)


WINDOWS = [
    {"kernel_size": kernel, "stride": stride, "padding": padding}
    for kernel in (2, 3, (2, 3))
    for stride in (1, 2, 3, (1, 2))  # windows that overlap, meet, or leave gaps
    for padding in (0, 1)
]


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
async def test_windows_with_infinities_and_nan(s, windows):
    for seed in range(5):
        chances = [0.05 * (seed % 2), 0.1, 0.45 - 0.05 * (seed % 2), 0.15, 0.15, 0.15]
        images = np.random.default_rng(seed).choice([nan, inf, -inf, 0, 1, 2], (2, 3, 5, 6), p=chances)
        images[1, 2] = -inf
        await compare(s, lambda x: nn.max_pool2d(x, **windows), lambda x: torch.max_pool2d(x, **windows), images)


async def test_an_infinite_gradient_stays_in_its_window(s):
    images = np.array([[[4.0, 1.0, 0.0, -1.0], [2.0, 3.0, -2.0, -3.0]]])
    await compare(s, lambda x: asc.sqrt(nn.max_pool2d(x, 2)), lambda x: torch.sqrt(torch.max_pool2d(x, 2)), images)
