"""For each rule of the table: functions that use it, and arrays at which they are differentiated, clear of kinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import asyncsched as asc
from asyncsched.autograd.rules.elementwise import ELEMENTWISE
from asyncsched.ops.table import TABLE
from asyncsched.tensors.functions._common import op
from asyncsched.tensors.tensor import apply
from tests.declared import ARITIES

Case = tuple[Callable[..., asc.Tensor], tuple[np.ndarray, ...]]


def real(*shape: int, seed: int = 0) -> np.ndarray:
    """Between -1 and 1, but not within 0.1 of 0."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.uniform(0.1, 1.0, shape) * rng.choice([-1.0, 1.0], shape))


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    """Between 0.3 and 0.9."""
    return np.random.default_rng(seed).uniform(0.3, 0.9, shape)


def distinct(*shape: int) -> np.ndarray:
    """In no order, 0.1 apart."""
    count = int(np.prod(shape))
    return (np.random.default_rng(1).permutation(count).reshape(shape) - count / 2 + 0.25) * 0.1


def unary(name: str, array: np.ndarray) -> list[Case]:
    return [(lambda x: apply(TABLE[name], (x,)), (array,))]


def binary(name: str, x: np.ndarray, y: np.ndarray) -> list[Case]:
    """Both operands, broadcast either way, and each with a number."""
    row = TABLE[name]
    return [
        (lambda x, y: apply(row, (x, y)), (x, y)),
        (lambda x, y: apply(row, (x[0], y)), (x, y)),
        (lambda x, y: apply(row, (x, y[:, :1])), (x, y)),
        (lambda x: apply(row, (x, 0.7)), (x,)),
        (lambda y: apply(row, (0.7, y)), (y,)),
    ]


def along(name: str, array: np.ndarray, **more: Any) -> list[Case]:
    """A reduction over all, one and several axes."""
    options = ({"axis": None}, {"axis": 1}, {"axis": (0, -1), "keepdims": True}, {"axis": -2, "keepdims": True})
    return [(lambda x, o=o: getattr(asc, name)(x, **o, **more), (array,)) for o in options]


def along_quantiles(array: np.ndarray, options: dict[str, Any]) -> list[Case]:
    """Of one and of several parts of the way, along all, one and several axes."""
    axes = ({"axis": None}, {"axis": 1}, {"axis": (0, -1), "keepdims": True})
    return [(lambda x, o=o, q=q: asc.quantile(x, q, **o, **options), (array,)) for o in axes for q in (0.3, [0.0, 0.7])]


def on_axis(name: str, array: np.ndarray, *options: dict[str, Any]) -> list[Case]:
    return [(lambda x, o=o: getattr(asc, name)(x, **o), (array,)) for o in options]


def transformed(name: str, array: np.ndarray, *options: dict[str, Any], to_complex: bool = False) -> list[Case]:
    """A transform in all its norms, as real numbers: of the array, or of a complex one with it as both its parts."""

    def case(o: dict[str, Any], norm: Any) -> Case:
        def fn(x: asc.Tensor) -> asc.Tensor:
            found = getattr(asc.fft, name)(x * (0.5 + 1j) if to_complex else x, norm=norm, **o)
            return asc.real(found) - asc.imag(found) * 0.7 if found.dtype.kind == "c" else found

        return fn, (array,)

    norms = ("backward", "ortho", "forward")
    return [case(o, norms[i % 3]) for i, o in enumerate((*options, *options[:1], *options[:1]))]


def whole(*numbers: int) -> asc.Tensor:
    """An index tensor, without a put."""
    return asc.stack([asc.full((), n, dtype=int) for n in numbers])


def ones(*shape: int) -> asc.Tensor:
    return asc.full(shape, 1, dtype=int)


def assigned(x: asc.Tensor, value: Any, key: Any) -> asc.Tensor:
    y = x + 0
    y[key] = value
    return y


MATRIX, OTHER = real(3, 4), real(3, 4, seed=1)
CUBE = real(2, 3, 4)
SQUARE, SQUARES = real(3, 3) + 2 * np.eye(3), real(2, 3, 3) + 2 * np.eye(3)
GAPS = np.array([[0.5, 0.0, -2.0], [0.0, 1.5, 0.0], [0.7, 0.2, -0.4]])  # rows with no, one and two zeros

# Universal functions are differentiated between 0 and 1 unless they are listed here.
_ANYWHERE = (
    "abs asinh atan ceil conj copy cos cosh exp expm1 floor imag negative positive real reciprocal round sign sin sinh"
    " square tan tanh trunc"
)

CASES: dict[str, list[Case]] = {
    **{name: unary(name, positive(3, 4)) for name in ELEMENTWISE if ARITIES.get(name) == 1},
    **{name: unary(name, MATRIX) for name in _ANYWHERE.split()},
    **{name: binary(name, MATRIX, OTHER) for name in ELEMENTWISE if ARITIES.get(name) == 2},
    "acosh": unary("acosh", positive(3, 4) + 1),
    "astype": [(lambda x: asc.sin(x.astype("f8")), (MATRIX,))],
    "clip": [
        (lambda x: asc.clip(x, -0.55, 0.45), (distinct(3, 4),)),
        (lambda x, low, high: asc.clip(x, low, high), (distinct(3, 4), -positive(4) / 2, positive(3, 1) / 2)),
    ],
    "full": [(lambda x: asc.full((2, 3), x), (real(),)), (lambda x: asc.full((2, 4), x), (real(4),))],
    "full_like": [(lambda x: asc.full_like(x.detach(), x.sum()) * x, (MATRIX,))],
    "choice_backward": [
        (lambda g: apply(TABLE["choice_backward"], (g, asc.full_like(g.detach(), 0.5), 0.7)), (MATRIX,)),
        (lambda g: apply(TABLE["choice_backward"], (g, asc.full_like(g.detach(), 0.5), 0.5)), (MATRIX,)),
        (lambda g: apply(TABLE["choice_backward"], (g, 0.7, asc.full_like(g.detach(), 0.5))), (MATRIX,)),
    ],
    "pow": [
        *binary("pow", positive(3, 4), OTHER),
        (lambda x: x**3, (MATRIX,)),
        (lambda x: asc.pow(x, 0), (MATRIX,)),
    ],
    "remainder": binary("remainder", MATRIX * 3, OTHER),
    "where": [
        (lambda x, y: asc.where(x > y, x, y * 2), (MATRIX, OTHER)),
        (lambda x: asc.where(x > 0, x, 0.5), (MATRIX,)),
        (lambda x, y: asc.where(x[0] > 0, x, y), (MATRIX, real(3, 1))),
    ],
    # Along axes.
    "sum": [*along("sum", CUBE), (lambda x: asc.sum(x, axis=0), (real(),))],
    "accurate_sum": [(lambda x: apply(TABLE["accurate_sum"], (x,), {"axis": (0, 2)}), (CUBE,))],
    "mean": along("mean", CUBE),
    "max": along("max", distinct(2, 3, 4)),
    "min": along("min", distinct(2, 3, 4)),
    "prod": along("prod", CUBE) + along("prod", GAPS[:, None]) + along("prod", np.ones((2, 0))),
    "var": along("var", CUBE, correction=1),
    "std": along("std", CUBE, correction=0.5),
    "cumulative_sum": on_axis("cumulative_sum", CUBE, {"axis": 1}, {"axis": -1, "include_initial": True}),
    "cumulative_prod": [
        *on_axis("cumulative_prod", CUBE, {"axis": 1}, {"axis": -1, "include_initial": True}),
        *on_axis("cumulative_prod", GAPS, {"axis": 0}, {"axis": 1}),
        *on_axis("cumulative_prod", real(4), {}),
    ],
    "diff": on_axis("diff", MATRIX, {}, {"axis": 0}, {"axis": 1, "n": 3}, {"axis": 0, "n": 2}),
    "sort": on_axis("sort", distinct(3, 4), {}, {"axis": 0, "descending": True}, {"stable": False}),
    # Statistics.
    "nansum": along("nansum", CUBE),
    "nanprod": along("nanprod", CUBE),
    "nanmax": along("nanmax", distinct(2, 3, 4)),
    "nanmin": along("nanmin", distinct(2, 3, 4)),
    "nanmean": along("nanmean", CUBE),
    "nanvar": along("nanvar", CUBE, correction=1),
    "nanstd": along("nanstd", CUBE, correction=0.5),
    "median": along("median", distinct(2, 3, 4)) + along("median", distinct(1, 3, 5)) + [(asc.median, (real(),))],
    "quantile": [
        *along_quantiles(distinct(2, 3, 4), {"method": "linear"}),
        *[
            (lambda x, method=method: asc.quantile(x, [0.1, 0.5, 0.8], axis=1, method=method), (distinct(3, 7),))
            for method in ("lower", "midpoint", "nearest", "hazen", "inverted_cdf", "averaged_inverted_cdf")
        ],
        (lambda x: asc.percentile(x, [[5, 20], [50, 99]]), (distinct(3, 7),)),
    ],
    "observation_weights": [
        (lambda w: asc.cov(asc.linspace(0, 1, 4) ** 2, aweights=w), (positive(4),)),
        (lambda w: asc.cov(asc.linspace(0, 1, 3) ** 2, fweights=whole(2, 0, 3), aweights=w), (positive(3),)),
    ],
    # Products.
    "linear_weight_grad": [
        (lambda g, x: op("linear_weight_grad", g, x), (real(2, 3, 4, seed=3)[..., :n], real(2, 3, 5))) for n in (4, 1)
    ],
    "matmul": [
        (asc.matmul, arrays)
        for arrays in (
            (real(3, 4), real(4, 2)),
            (real(2, 3, 4), np.ones((4, 0))),
            (real(4), real(4)),
            (real(4), real(4, 2)),
            (real(3, 4), real(4)),
            (real(2, 3, 4), real(4, 2)),
            (real(3, 4), real(2, 4, 2)),
            (real(2, 3, 4), real(2, 4, 2)),
            (real(2, 1, 3, 4), real(3, 4, 2)),
            (real(4), real(2, 4, 3)),
            (real(2, 3, 4), real(4)),
        )
    ]
    + [
        *[(lambda x, o=o: asc.cov(x, **o), (MATRIX,)) for o in ({}, {"rowvar": False}, {"bias": True})],
        (lambda x, y: asc.cov(x, y, ddof=0), (MATRIX, OTHER)),
        (lambda x: asc.cov(x, fweights=whole(1, 2, 0, 1)), (MATRIX,)),
        (asc.corrcoef, (distinct(3, 5),)),
    ],
    "vecdot": [
        (asc.vecdot, (real(2, 3, 4), real(3, 4))),
        (asc.vecdot, (real(4), real(3, 4))),
        (lambda x, y: asc.vecdot(x, y, axis=-2), (real(2, 3, 4), real(1, 3, 4))),
        (lambda x, y: asc.vecdot(x, y, axis=0), (real(3, 2), real(3, 2))),
    ],
    "tensordot": [
        (asc.tensordot, (real(2, 3, 4), real(3, 4, 2))),
        (lambda x, y: asc.tensordot(x, y, axes=0), (real(2), real(3))),
        (lambda x, y: asc.tensordot(x, y, axes=1), (real(2, 3), real(3))),
        (lambda x, y: asc.tensordot(x, y, axes=((2, 0), (0, 1))), (real(2, 3, 4), real(4, 2, 5))),
        (lambda x, y: asc.tensordot(x, y, axes=((0, -1), (-1, 0))), (real(2, 3, 4), real(4, 5, 2))),
    ],
    "dot": [
        (asc.dot, arrays)
        for arrays in (
            (real(3, 4), real(4, 2)),
            (real(4), real(4)),
            (real(2, 3, 4), real(4)),
            (real(3, 4), real(2, 4, 2)),
            (real(3), real()),
        )
    ],
    "einsum": [
        (lambda *operands, text=text: asc.einsum(text, *operands), arrays)
        for text, arrays in (
            ("ij,jk->ik", (MATRIX, real(4, 2))),
            ("ij,jk", (MATRIX, real(4, 2))),
            ("ij->i", (MATRIX,)),
            ("ij->", (MATRIX,)),
            ("ii->i", (SQUARE,)),
            ("ii", (SQUARE,)),
            ("iji,j->i", (real(3, 2, 3), real(2))),
            ("...ij,...jk->...ik", (real(2, 3, 4), real(4, 2))),
            ("...i,...i", (real(2, 3), real(1, 3, seed=1))),
            ("i...,j->...", (real(2, 3), real(2, seed=1))),
            ("ij,j,jk,k->i", (MATRIX, real(4), real(4, 2), real(2))),
            ("ij,ij->ij", (MATRIX, real(3, 1))),
            ("i,i", (real(3), real(1))),
            ("ij,jk->ik", (real(2, 1), real(3, 4))),
            ("...i,...i", (real(2, 3), real(1, 1))),
            ("ij,jk,kl->il", (real(2, 1), real(3, 1), real(4, 2))),
            ("ii,i->i", (real(1, 1), real(3))),
            ("ij->", (np.ones((2, 0)),)),
            ("i,j->j", (np.ones(0), real(1))),
        )
    ],
    # Matrices.
    "cholesky": [
        (lambda x, upper=upper: asc.linalg.cholesky(x @ x.mT + asc.eye(x.shape[-1]), upper=upper), (a,))
        for a in (SQUARE, SQUARES)
        for upper in (False, True)
    ],
    "slogdet": [(lambda x: sum(asc.linalg.slogdet(x)), (a,)) for a in (SQUARE, SQUARES, -SQUARE)],
    "eigh": [
        (lambda x, part=part: asc.linalg.eigh(x + x.mT)[part], (a,)) for a in (SQUARE, SQUARES) for part in (0, 1)
    ],
    "eigvalsh": [(lambda x: asc.linalg.eigvalsh(x + x.mT), (a,)) for a in (SQUARE, SQUARES)],
    "qr": [
        (lambda x, part=part: asc.linalg.qr(x)[part], (a,)) for a in (SQUARE, SQUARES, real(4, 2)) for part in (0, 1)
    ],
    "svd": [
        (lambda x, part=part: asc.linalg.svd(x, full_matrices=False)[part], (a,))
        for a in (SQUARE, SQUARES, real(4, 2), real(2, 3))
        for part in (0, 1, 2)
    ]
    + [(lambda x: asc.linalg.svd(x).S, (real(4, 2),)), (lambda x: asc.linalg.svd(x)[0], (SQUARE,))],
    "svdvals": [(asc.linalg.svdvals, (a,)) for a in (SQUARE, real(2, 4, 3))],
    "inv": [(asc.linalg.inv, (a,)) for a in (SQUARE, SQUARES)],
    "det": [(asc.linalg.det, (a,)) for a in (SQUARE, SQUARES)],
    "cofactors": [(lambda x: apply(TABLE["cofactors"], (x,)), (a,)) for a in (SQUARE, SQUARES)],
    "solve": [
        (asc.linalg.solve, arrays)
        for arrays in (
            (SQUARE, real(3)),
            (SQUARE, real(3, 2)),
            (SQUARES, real(3)),
            (SQUARE, real(2, 3, 2)),
            (SQUARES, real(3, 1)),
        )
    ],
    "diagonal": [
        (lambda x, name=name, k=k: getattr(asc.linalg, name)(x, offset=k), (a,))
        for name in ("diagonal", "trace")
        for a in (CUBE, real(4, 3))
        for k in (0, 1, -2)
    ],
    "outer": [(asc.linalg.outer, (real(3), real(4)))],
    "cross": [
        (asc.linalg.cross, (real(4, 3), real(3))),
        (lambda x, y: asc.linalg.cross(x, y, axis=0), (real(3, 2), real(3, 2, seed=1))),
    ],
    "vector_norm": [
        (lambda x, o=o: asc.linalg.vector_norm(x, **o), (CUBE,))
        for o in ({}, {"axis": 1}, {"axis": (0, -1), "keepdims": True})
    ],
    "matrix_norm": [(asc.linalg.matrix_norm, (CUBE,))],
    # Fourier transforms.
    **{
        name: transformed(name, real(2, 4), {}, {"axis": 1, "n": 5}, {"axis": 0, "n": 1})
        + transformed(name, real(3, 2), {"axis": 0, "n": 2}, to_complex=True)
        for name in ("fft", "ifft")
    },
    **{
        name: transformed(name, real(2, 3), {}, {"axes": (0,)}, {"s": (4, 2)}, {"s": (-1, 4), "axes": (1, 0)})
        for name in ("fftn", "ifftn")
    },
    "rfft": [
        case
        for name in ("rfft", "ihfft")
        for case in transformed(name, real(3, 4), {}, {"axis": 0}, {"n": 2}, {"n": 7})
    ],
    "rfftn": transformed("rfftn", real(2, 3, 2), {}, {"axes": (2, 1)}, {"s": (2, 3)}),
    "irfft": [
        case
        for name in ("irfft", "hfft")
        for case in transformed(
            name, real(2, 4), {}, {"n": 5}, {"n": 3}, {"n": 9}, {"n": 1}, {"axis": 0}, to_complex=True
        )
        + transformed(name, real(3), {})
    ],
    "irfftn": transformed("irfftn", real(2, 1, 4), {}, {"axes": (2, 0)}, {"s": (3, 5)}, to_complex=True),
    # Sequences and windows.
    "convolve": [
        (lambda x, y, mode=mode: asc.convolve(x, y, mode), arrays)
        for mode in ("full", "same", "valid")
        for arrays in ((real(6), real(3)), (real(2), real(5)), (real(4), real(4, seed=1)), (real(3), real()))
    ]
    + [(lambda x: asc.convolve(x, 0.7), (real(4),))],
    "pad": [
        (lambda x, o=o: asc.pad(x, **o), (MATRIX,))
        for o in (
            {"pad_width": ((1, 0), (2, 3))},
            {"pad_width": 1, "constant_values": 2},
            *({"pad_width": ((2, 1), (0, 3)), "mode": mode} for mode in ("edge", "wrap", "reflect", "symmetric")),
            *({"pad_width": {1: (9, 11)}, "mode": mode} for mode in ("edge", "wrap", "reflect", "symmetric")),
        )
    ]
    + [(lambda x: asc.pad(x, 3, "reflect"), (real(1, 2),))],
    "sliding_window_view": [
        (lambda x, o=o: asc.sliding_window_view(x, *o), (MATRIX,))
        for o in ((2, 1), (3, 0), ((2, 3),), ((2, 2), (1, 1)), (4, -1), (1, 0))
    ],
    "overlap_add": [
        (lambda x: apply(TABLE["overlap_add"], (x,), {"axis": 1}), (real(2, a, b),)) for a, b in ((4, 2), (2, 4))
    ],
    # Shapes.
    "broadcast_to": [
        (lambda x: asc.broadcast_to(x, (2, 3, 4)), (a,)) for a in (real(3, 4), real(3, 1), real(4), real())
    ],
    "concat": [
        (lambda x, y: asc.concat([x, y, x * 2], axis=1), (real(3, 4), real(3, 2))),
        (lambda x, y: asc.concat([x, y], axis=-2), (real(2, 3, 4), real(2, 1, 4))),
        (lambda x, y: asc.concat([x, y], axis=None), (real(3, 4), real(2))),
    ],
    "expand_dims": on_axis("expand_dims", MATRIX, {"axis": 1}, {"axis": (0, -1)}),
    "flip": on_axis("flip", MATRIX, {}, {"axis": 1}, {"axis": (0, 1)}),
    "matrix_transpose": [(lambda x: x.mT, (CUBE,))],
    "permute_dims": [
        (lambda x: asc.permute_dims(x, (2, 0, 1)), (CUBE,)),
        (lambda x: asc.permute_dims(x, (-1, 1, 0)), (CUBE,)),
    ],
    "repeat": [
        (lambda x: asc.repeat(x, 3), (MATRIX,)),
        (lambda x: asc.repeat(x, 2, axis=0), (MATRIX,)),
        (lambda x: asc.repeat(x, 2, axis=-1), (CUBE,)),
    ],
    "reshape": [(lambda x: x.reshape(2, -1), (MATRIX,)), (lambda x: x.mT.reshape(12), (MATRIX,))],
    "roll": [
        (lambda x: asc.roll(x, 2), (MATRIX,)),
        (lambda x: asc.roll(x, -1, axis=1), (MATRIX,)),
        (lambda x: asc.roll(x, (1, 2), axis=(0, 1)), (MATRIX,)),
        (lambda x: asc.roll(x, 1, axis=(0, 1)), (MATRIX,)),
    ],
    "squeeze": [(lambda x: asc.squeeze(x, 1), (real(3, 1, 4),)), (lambda x: asc.squeeze(x, (0, -1)), (real(1, 3, 1),))],
    "stack": [
        (lambda x, y: asc.stack([x, y, x]), (MATRIX, OTHER)),
        (lambda x, y: asc.stack([x, y], axis=-1), (MATRIX, OTHER)),
    ],
    "tile": [
        (lambda x: asc.tile(x, 2), (MATRIX,)),
        (lambda x: asc.tile(x, (2, 1, 3)), (MATRIX,)),
        (lambda x: asc.tile(x, (2,)), (CUBE,)),
    ],
    "tril": [(lambda x: asc.tril(x, k=1), (CUBE,)), (asc.tril, (real(3),))],
    "triu": [(lambda x: asc.triu(x, k=-1), (CUBE,)), (asc.triu, (real(3),))],
    # Indexing.
    "getitem": [
        (lambda x: x[1], (MATRIX,)),
        (lambda x: x[:, ::-2], (MATRIX,)),
        (lambda x: x[None, 1:, ..., 2], (MATRIX,)),
        (lambda x: x[0, 1], (MATRIX,)),
    ],
    "getitem_advanced": [
        (lambda x: x[whole(0, 2, 0)], (MATRIX,)),
        (lambda x: x[:, whole(1, -1, 1)], (MATRIX,)),
        (lambda x: x[whole(0, 2, 0), whole(1, 1, 1)], (MATRIX,)),
    ],
    "setitem": [
        (lambda x, v: assigned(x, v, (slice(None), 1)), (MATRIX, real(3))),
        (lambda x, v: assigned(x, v, (slice(1, None),)), (MATRIX, real(1, 4))),
        (lambda x, v: assigned(x, v, whole(2, 0)), (MATRIX, real(4))),
        (lambda x: assigned(x, 3.0, 0), (MATRIX,)),
        (lambda x, v: assigned(x, v, whole(1, 1, 2)), (MATRIX, real(3, 4))),
        (lambda x, v: assigned(x, v, whole(1, -2, 2)), (MATRIX, real())),
        (lambda x, v: assigned(x, v, (whole(0, 2, 0), slice(1, 3))), (MATRIX, real(3, 1))),
        (lambda x, v: assigned(x, v, (slice(None), whole(0, 2, 0))), (MATRIX, real(3, 3))),
        (lambda x, v: assigned(x, v, (whole(0, 1, 0), None, 2, whole(1, 1, 1))), (CUBE.swapaxes(1, 2), real(3, 1))),
    ],
    "take": [
        (lambda x: asc.take(x, whole(0, 2, 0, -1), axis=1), (CUBE,)),
        (lambda x: asc.take(x, whole(5, 0, 5)), (MATRIX,)),
        (lambda x: asc.take(x, 1, axis=0), (MATRIX,)),
        (lambda x: asc.take(x, whole(0, 1, 1, 0).reshape(2, 2), axis=0), (MATRIX,)),
    ],
    "take_along_axis": [
        (lambda x: asc.topk(x, 2).values, (distinct(3, 4),)),
        (lambda x: asc.topk(x, 2, 0, largest=False, sorted=False).values, (distinct(3, 4),)),
        (lambda x: asc.take_along_axis(x, asc.argsort(x, axis=1)[:, 1:], axis=1), (distinct(3, 4),)),
        (lambda x: asc.take_along_axis(x, ones(2, 4), axis=0), (distinct(3, 4),)),
        (lambda x: asc.take_along_axis(x, ones(1, 2), axis=1), (distinct(3, 4),)),
    ],
    "scatter": [
        (lambda x: apply(TABLE["scatter"], (x[0, :2], whole(1, 1)), {"shape": (3,), "key": ("tensor",)}), (MATRIX,))
    ],
    "scatter_along_axis": [
        (lambda x: apply(TABLE["scatter_along_axis"], (x, ones(3, 4)), {"shape": (3, 5), "axis": 1}), (MATRIX,))
    ],
}
SINGULAR = np.stack([SQUARE, np.outer(*real(2, 3)), np.zeros((3, 3)), np.diag([2.0, 0, 3])])
# What has no second derivative here: sums whose length depends on data, and determinants of singular matrices.
FIRST_ORDER: dict[str, list[Case]] = {
    "det": [(asc.linalg.det, (a,)) for a in (SINGULAR, SINGULAR[1], np.zeros((1, 1)), real(2, 3, 2, 2))],
    "getitem_advanced": [(lambda x: x[x > 0], (MATRIX,)), (lambda x: x[1:, x[0] > 0], (MATRIX,))],
    "setitem": [(lambda x, v: assigned(x, v, x > 0), (MATRIX, real()))],
}
