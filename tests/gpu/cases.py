"""Operands and options for every operation of the table: those of `gpu-check`, or several in place of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from asyncsched.gpu_check.arguments import ROWS, arguments
from asyncsched.ops.index_keys import TENSOR, Slice
from asyncsched.ops.table import TABLE
from tests.cuda_host.runtime import loaded
from tests.declared import ARITIES, UFUNCS
from tests.network_rows import network_rows_given

DTYPES = ("?", "i4", "u1", "i8", "f2", "f4", "f8", "c8", "c16")
SOME = ("?", "i4", "f2", "f4", "c8")
# What comes from a generator: the same distribution, other numbers.
RANDOM = ("dropout", "uniform", "normal", "draw_seeded")
PACKED = ("draw", "eig", "eigh", "histogram", "qr", "slogdet", "svd")  # rows with several results


class Case(NamedTuple):
    """Operands, NumPy's arrays and numbers, and options of a row."""

    operands: tuple[Any, ...]
    options: dict[str, Any]


def cases_of(name: str, most: int) -> list[Case]:
    """So many of a row's cases at most, drawn once for all."""
    return random.Random(name).sample(CASES[name], min(most, len(CASES[name])))


def absent(error: str) -> bool:
    """Whether it is one of what the runtime in host memory lacks: eigenvalues of matrices that are not symmetric, and a
    function."""
    return loaded() is not None and any(sign in error for sign in ("CUSOLVER", "erfinv(in0)"))


def groups(names: Iterable[str]) -> list[Any]:
    """Eight rows a test: to begin and end on the fake takes as long as the cases of a row."""
    rows = sorted(names)
    return [pytest.param(rows[i : i + 8], id=", ".join(rows[i : i + 8])) for i in range(0, len(rows), 8)]


def values(*shape: int, dtype: str = "f4", seed: int = 0) -> np.ndarray:
    """Numbers from 0.3 to 0.9, from 1 to 5, or both truths."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "biu":
        return np.asarray(rng.integers(0 if dtype == "?" else 1, 2 if dtype == "?" else 6, shape)).astype(dtype)
    numbers = rng.uniform(0.3, 0.9, shape)
    return np.asarray(numbers + (1j * rng.uniform(0.3, 0.9, shape) if np.dtype(dtype).kind == "c" else 0)).astype(dtype)


def elementwise(name: str) -> Iterator[Case]:
    """Each dtype, in several layouts, with another dtype, with numbers; some of these NumPy refuses."""
    shift = 1 if name == "acosh" else 0
    for dtype in DTYPES:
        x = values(3, 4, dtype=dtype)
        x = x + np.asarray(shift, dtype) if shift and dtype != "?" else x
        if getattr(np, str(TABLE[name].kernel)).nin == 1:
            yield from (Case((a,), {}) for a in (x, np.asfortranarray(x), x[::-1, ::2], x[:0], np.asarray(x[0, 0])))
            continue
        y = values(3, 4, dtype=dtype, seed=1)
        others = (y, np.asfortranarray(y), y[0], y[:, :1], values(4, dtype="f4"), 2, 2.5, np.float64(2), np.int8(3))
        yield from (Case((x, other), {}) for other in others)
        yield from (Case((other, x), {}) for other in (2, 2.5, True))


def of_floats(count: int) -> Iterator[Case]:
    """Tensors of one floating-point dtype, in two layouts: what an elementwise operation takes that is no ufunc."""
    for dtype in ("f2", "f4", "f8"):
        tensors = [values(3, 4, dtype=dtype, seed=seed) for seed in range(count)]
        yield from (Case(given, {}) for given in (tuple(tensors), tuple([x.T for x in tensors])))


def along(*more: dict[str, Any], dtypes: tuple[str, ...] = SOME) -> Iterator[Case]:
    """A reduction over all, one and several axes, in several layouts."""
    for dtype in dtypes:
        x = values(2, 3, 4, dtype=dtype)
        for array in (x, np.asfortranarray(x), x[:, ::-1, ::2]):
            for axis in (None, 1, (0, -1)):
                for keepdims in (False, True):
                    yield from (Case((array,), {"axis": axis, "keepdims": keepdims, **options}) for options in more)


def each(name: str, *options: dict[str, Any], dtypes: tuple[str, ...] = SOME) -> Iterator[Case]:
    """One operand, three axes, with some options."""
    for dtype in dtypes:
        x = values(2, 3, 4, dtype=dtype)
        yield from (Case((array,), found) for array in (x, x.transpose(2, 0, 1)) for found in options)


X, Y, CUBE, INDEX = values(3, 4), values(3, 4, seed=1), values(2, 3, 4), np.asarray([2, 0, 2, -1])
ALL = Slice(None, None, None)
F4 = np.dtype("f4")


def _cases() -> dict[str, list[Case]]:
    found = {name: list(elementwise(name)) for name in UFUNCS}
    parts = (_choices(), _axes(), _products(), _matrices(), _transforms(), _shapes(), _indexing(), _sets(), _creation())
    for part in (*parts, _signals(), _statistics(), _updates(), _networks()):
        found |= {name: list(cases) for name, cases in part.items()}
    for name, count in ARITIES.items():
        found.setdefault(name, list(of_floats(count)))
    for name in " ".join(ROWS).split():
        found.setdefault(name, [Case(*arguments(name))])
    return found


def _choices() -> dict[str, Any]:
    mask = X > 0.6
    return {
        "round": [Case((a,), {}) for a in (X * 10, values(3, 4, dtype="i4"), values(3, 4, dtype="c8") * 10)],
        "clip": [Case((a, 0.4, 0.6), {}) for a in (X, X.T)] + [Case((X, Y / 2, Y), {}), Case((INDEX, 0, 1), {})],
        "where": [
            Case(operands, {})
            for operands in ((mask, X, Y), (mask, X, 2.5), (mask, 1, X), (mask[0], X, Y), (INDEX, X, Y), (mask, 1, 2.0))
        ],
        "astype": [
            Case((values(3, 4, dtype=a),), {"dtype": np.dtype(b)})
            for a in DTYPES
            for b in DTYPES
            if np.dtype(b).kind == "c" or np.dtype(a).kind != "c"
        ],
        "copy": [Case((a,), {}) for a in (X, X.T, X[::-1, ::2], CUBE.transpose(1, 2, 0))],
        "real": [Case((values(3, 4, dtype=d),), {}) for d in SOME],
        "imag": [Case((values(3, 4, dtype=d),), {}) for d in SOME],
        "tril": [Case((a,), {"k": k}) for a in (X, X.T, CUBE) for k in (-1, 0, 2)],
        "triu": [Case((a,), {"k": k}) for a in (X, X.T, CUBE) for k in (-1, 0, 2)],
    }


def _axes() -> dict[str, Any]:
    at = tuple({"axis": axis, "keepdims": keepdims} for axis in (None, 0, -1) for keepdims in (False, True))
    corrected = ({"correction": 0}, {"correction": 1}, {"correction": 0.5})
    running = ({"axis": 1}, {"axis": -1, "include_initial": True}, {"axis": 0, "dtype": np.dtype("f8")})
    ordered = ({"axis": -1}, {"axis": 0, "descending": True}, {"axis": 1, "stable": False})
    reductions = {name: along({}) for name in ("all", "any", "max", "min")}
    return reductions | {
        "sum": [*along({}), *along({"dtype": np.dtype("f8")}, dtypes=("i4", "f4"))],
        "prod": [*along({}), *along({"dtype": np.dtype("f8")}, dtypes=("i4", "f4"))],
        "mean": along({}),
        "std": along(*corrected, dtypes=("f4", "f8")),
        "var": along(*corrected, dtypes=("f4", "f8")),
        "count_nonzero": along({}),
        "argmax": each("argmax", *at),
        "argmin": each("argmin", *at),
        "cumulative_sum": each("cumulative_sum", *running, dtypes=("i4", "f4", "f8")),
        "cumulative_prod": each("cumulative_prod", *running, dtypes=("i4", "f4", "f8")),
        "diff": each("diff", {"axis": 1, "n": 1}, {"axis": -1, "n": 2}, {"axis": 0, "n": 1}),
        "sort": each("sort", *ordered),
        "argsort": each("argsort", *ordered[:2]),
    }


def _statistics() -> dict[str, Any]:
    """Without elements at the edges of bins, which are rounded otherwise."""
    at = tuple({"axis": axis, "keepdims": keepdims} for axis in (None, 1, (0, -1)) for keepdims in (False, True))
    holes = [np.where(values(2, 3, 4, dtype=d, seed=2).real > 0.6, np.nan, values(2, 3, 4, dtype=d)).astype(d)
             for d in ("f2", "f4", "f8", "c8")]  # fmt: skip
    holes += [np.asfortranarray(holes[1]), holes[2][:, ::-1, ::2], np.full((2, 3), np.nan), CUBE.astype("i4")]
    found = {
        name: [Case((x,), o) for x in holes for o in at]
        for name in ("nansum", "nanprod", "nanmax", "nanmin", "nanmean", "median")
    }
    found |= {
        name: [Case((x,), {**o, "correction": c}) for x in holes for o in at for c in (0, 0.5)]
        for name in ("nanvar", "nanstd")
    }
    found |= {
        name: [Case((holes[1],), {"axis": None}), Case((CUBE,), {"axis": 1})] for name in ("nanargmax", "nanargmin")
    }
    quantiles = [
        {"q": q, "form": form, "percent": False, "method": method}
        for q, form in ((0.3, None), ((0.0, 0.25, 1.0), ((3,), "<f8")))
        for method in ("linear", "lower", "midpoint", "hazen", "averaged_inverted_cdf", "closest_observation")
    ]
    found["quantile"] = [
        Case((x,), {**o, **q}) for x in holes if x.dtype.kind != "c" for o in at[:4] for q in quantiles
    ]
    few = [values(4, 5, dtype=d).ravel() for d in ("u1", "i4", "i8")]
    weights = [values(20, dtype=d, seed=1) for d in ("f4", "f8", "i4", "c8")]
    found["bincount"] = [Case((x, *w), {"minlength": n}) for x in few for w in ((), *zip(weights[:3])) for n in (0, 9)]
    edges = np.asarray([0.35, 0.51, 0.77], "f4")
    found["digitize"] = [Case((x, b), {"right": r}) for x in (X, X.T, few[1]) for b in (edges, edges[::-1].copy())
                         for r in (False, True)]  # fmt: skip
    ranges = ((None, None), (0.1, 1), (np.float64(0.25), np.float64(0.75)))
    one = [{"bins": 7, "low": a, "high": b, "density": d} for a, b in ranges for d in (False, True)]
    found["histogram"] = [Case((values(3, 4, dtype="f8"),), {**o, "weighted": False}) for o in one]
    found["histogram"] += [Case((values(20), w), {**o, "weighted": True}) for w in weights for o in one[::2]]
    found["histogram"] += [Case((x, edges), {**one[0], "bins": None, "weighted": False}) for x in (X, X.T, few[1])]
    found["argpartition"] = [Case((CUBE[0, 0],), {"kth": 1, "axis": axis}) for axis in (-1, None)]
    found["topk"] = [
        Case((x,), {"k": 2, "axis": axis, "largest": largest, "sorted": True})
        for x in (CUBE, CUBE.T, CUBE.astype("f8"))
        for axis in (0, -1)
        for largest in (False, True)
    ]
    return found


def _products() -> dict[str, Any]:
    shapes = (
        ((3, 4), (4, 2)), ((4,), (4,)), ((4,), (4, 2)), ((3, 4), (4,)), ((2, 3, 4), (4, 2)), ((2, 1, 3, 4), (3, 4, 2)),
        ((0, 4), (4, 2)), ((3, 0), (0, 2)),
    )  # fmt: skip
    return {
        "matmul": [
            *(Case((values(*a, dtype=d), values(*b, dtype=d, seed=1)), {}) for a, b in shapes for d in SOME),
            Case((X, Y.T), {}),
            Case((X[:, ::2], Y[::-1, ::2].T), {}),
        ],
        "vecdot": [
            Case((values(*a, dtype=d), values(*b, dtype=d, seed=1)), {"axis": axis})
            for d in ("i4", "f4", "c8")
            for a, b, axis in (((2, 3, 4), (3, 4), -1), ((4,), (3, 4), -1), ((3, 2), (3, 2), 0))
        ],
        "tensordot": [
            Case((values(*a), values(*b, seed=1)), {"axes": axes})
            for a, b, axes in (
                ((2, 3, 4), (3, 4, 2), 2),
                ((2,), (3,), 0),
                ((2, 3, 4), (4, 2, 5), ((2, 0), (0, 1))),
            )
        ],
    }


def _matrices() -> dict[str, Any]:
    """Well away from singular ones; what has no unique result (vectors up to a sign) is compared all the same."""
    definite = [_definite(shape, dtype) for dtype in ("f4", "f8", "c8") for shape in ((4, 4), (2, 3, 3))]
    wide = [values(*shape, dtype=dtype) for dtype in ("f4", "c8") for shape in ((3, 4), (2, 5, 3))]
    one = ({},)
    rows: dict[str, Any] = {
        name: [Case((a,), options) for a in arrays for options in more]
        for name, arrays, more in (
            ("cholesky", definite, ({}, {"upper": True})),
            *((name, definite, one) for name in ("inv", "det", "cofactors", "eigvalsh", "eigh", "slogdet")),
            *((name, definite[:1], one) for name in ("eigvals", "eig")),
            *((name, wide, one) for name in ("svdvals", "matrix_rank", "pinv")),
            ("svd", wide, ({"full_matrices": False}, {"full_matrices": True})),
            ("qr", wide, ({"mode": "reduced"}, {"mode": "complete"})),
            ("matrix_power", definite, tuple({"n": n} for n in (-2, 0, 1, 3))),
            ("matrix_norm", wide, tuple({"ord": o, "keepdims": k} for o in ("fro", 1, np.inf) for k in (False, True))),
            ("vector_norm", wide, tuple({"ord": o, "axis": a, "keepdims": False} for o in (1, 2) for a in (None, 0))),
            ("diagonal", wide, ({"offset": 0}, {"offset": -1})),
        )
    }
    rows["solve"] = [Case((a, values(a.shape[-1], dtype="f4")), {}) for a in definite]
    rows["solve"] += [Case((a, values(a.shape[-1], 2, dtype="f4")), {}) for a in definite]
    rows["cross"] = [Case((values(4, 3), values(3, seed=1)), {"axis": -1}), Case((X, Y), {"axis": 0})]
    rows["outer"] = [Case((X[0], Y[:, 1]), {}), Case((INDEX, Y[0]), {})]
    rows["dot"] = [Case(pair, {}) for pair in ((X, Y.T), (X[0], Y[0]), (CUBE, Y[0]), (X, CUBE.transpose(0, 2, 1)))]
    rows["einsum"] = [
        Case((X, Y), {"subscripts": "ij,kj->ik"}),
        Case((CUBE,), {"subscripts": "ijk->kj"}),
        Case((X, Y), {"subscripts": "ij,ij"}),
    ]
    return rows


def _definite(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    x = values(*shape, dtype=dtype)
    return (x @ np.swapaxes(x, -1, -2).conj() + np.diag(np.arange(1, 1 + shape[-1]))).astype(dtype)


def _transforms() -> dict[str, Any]:
    along = tuple(
        {"n": n, "axis": axis, "norm": norm} for n in (None, 5) for axis, norm in ((-1, "backward"), (0, "ortho"))
    )
    several = tuple({"s": s, "axes": axes, "norm": "backward"} for s, axes in ((None, None), ((4, 6), (0, 2))))
    found = {
        name: [Case((a,), o) for a in (CUBE, CUBE.astype("c8")) for o in along] for name in ("fft", "ifft", "irfft")
    }
    found["rfft"] = [Case((a,), o) for a in (CUBE, CUBE.astype("f8")) for o in along]
    found |= {name: [Case((CUBE,), o) for o in several] for name in ("fftn", "ifftn", "rfftn")}
    found["irfftn"] = [Case((CUBE.astype("c8"),), o) for o in several]
    return found


def _sets() -> dict[str, Any]:
    few = [np.round(values(3, 4, dtype=d).real * 3).astype(d) for d in ("i4", "f4", "c8", "c16")]
    kinds = ({"index": a, "inverse": b, "counts": c} for a, b, c in ((True, True, True), (False, False, True)))
    start = (1, 2, 3, 4, 0, 0)
    drawn = {"shape": (300, 400), "dtype": np.dtype("f8"), "tensors": ()}
    normal = {"method": "normal", "named": (("loc", 1.0), ("scale", 2.0), ("size", (300, 400))), **drawn}
    uniform = {"method": "uniform", "named": (("low", 1.0), ("high", 2.0), ("size", (300, 400))), **drawn}
    return {
        "draw": [Case((), {"start": start, **normal})],
        "draw_seeded": [Case((7,), normal), Case((7,), uniform)],
        "unique_values": [Case((a,), {}) for a in few[:2]],
        "unique_packed": [Case((a,), options) for options in kinds for a in few],
        "isin": [Case((few[0], INDEX), {"invert": invert}) for invert in (False, True)],
    }


def _shapes() -> dict[str, Any]:
    column = values(3, 1)
    return {
        "broadcast_to": [Case((a,), {"shape": (2, 3, 4)}) for a in (X, X[0], column, values())],
        "expand_dims": [Case((X,), {"axis": axis}) for axis in (0, -1, (0, 2))],
        "flip": [Case((a,), {"axis": axis}) for a in (X, X.T) for axis in (None, 0, (0, 1))] + [Case((values(),), {})],
        "matrix_transpose": [Case((X,), {}), Case((CUBE,), {})],
        "permute_dims": [Case((CUBE,), {"axes": axes}) for axes in ((2, 0, 1), (-1, 1, 0))],
        "squeeze": [Case((column,), {"axis": 1}), Case((values(1, 3, 1),), {"axis": (0, 2)})],
        "reshape": [Case((a,), {"shape": (2, -1)}) for a in (X, X.T, X[::-1])]
        + [Case((X,), {"shape": (12,), "copy": copy}) for copy in (True, False)],
        "concat": [
            Case((X, Y[:, :2], X), {"axis": 1}),
            Case((X, INDEX), {"axis": None}),
            Case((X.T, Y.T), {"axis": 0}),
        ],
        "stack": [Case((X, Y, X), {"axis": axis}) for axis in (0, -1)],
        "repeat": [Case((CUBE,), {"repeats": 3, "axis": axis}) for axis in (None, 0, -1)],
        "tile": [Case((X,), {"repetitions": n}) for n in ((2,), (2, 1, 3))],
        "roll": [Case((X,), {"shift": a, "axis": b}) for a, b in ((2, None), (-1, 1), ((1, 2), (0, 1)))],
    }


def _indexing() -> dict[str, Any]:
    mask, at, row = X > 0.6, (ALL, TENSOR), np.asarray([1, 1, 0, 2])
    wide = np.asarray([[2], [0]])
    return {
        "getitem": [
            Case((X,), {"key": key})
            for key in ((1,), (ALL, Slice(None, None, -2)), (None, Slice(1, None, None), ..., 2), (0, 1), (...,))
        ],
        "getitem_advanced": [
            *(Case((X, i), {"key": (TENSOR,)}) for i in (INDEX, wide, mask)),
            Case((X, INDEX), {"key": at}),
            Case((X, row, INDEX), {"key": (TENSOR, TENSOR)}),
            Case((CUBE, mask[0]), {"key": (..., TENSOR)}),
        ],
        "setitem": [
            *(Case((X, new), {"key": (ALL, 1)}) for new in (values(3), 2.5, 1, np.float64(3))),
            Case((X, values(4, dtype="f8"), INDEX[:2]), {"key": (TENSOR,)}),
            Case((X, 1.5, mask), {"key": (TENSOR,)}),
            Case((X.T, values(1, 3)), {"key": (Slice(1, None, None),)}),
            *(Case((X, values(*shape), row), {"key": (TENSOR,)}) for shape in ((4, 1), (1, 4, 4))),
            Case((X, values(4, 3).T, row), {"key": at}),
            Case((X, values(4), row, INDEX), {"key": (TENSOR, TENSOR)}),
        ],
        "last_written": [
            Case((row,), {"shape": (3, 4), "key": (TENSOR,)}),
            Case((row, INDEX), {"shape": (3, 2, 4), "key": (TENSOR, ALL, TENSOR)}),
            Case((wide, mask[0]), {"shape": (3, 4), "key": (TENSOR, TENSOR)}),
        ],
        "take": [Case((X, INDEX), {"axis": axis}) for axis in (0, 1, None)] + [Case((X, 1), {"axis": 0})],
        "take_along_axis": [Case((X, np.argsort(X, axis=1)[:, 1:]), {"axis": 1})],
        "argwhere": [Case((a,), {}) for a in (mask, np.asfortranarray(mask), values(5, dtype="i4") - 3)],
        "class_numbers": [Case((np.asarray([0, 3, -100, 1]),), {"classes": 4, "ignore_index": -100})],
        "searchsorted": [
            *(Case((np.sort(X[0]), Y), {"side": side}) for side in ("left", "right")),
            Case((X[0], Y[1], np.argsort(X[0])), {"side": "left"}),
        ],
    }


def _creation() -> dict[str, Any]:
    steps = ((0, 5, 1), (5, 0, -2), (0.0, 1, 0.1), (3, 3, 1))
    ends = ((0, 1), (2.5, -3), (np.float32(0), np.float32(1)))
    return {
        "zeros": [Case((), {"shape": s, "dtype": np.dtype(d)}) for s in ((), (0,), (3, 4)) for d in SOME],
        "ones": [Case((), {"shape": s, "dtype": np.dtype(d)}) for s in ((), (0,), (3, 4)) for d in SOME],
        "full": [Case((v,), {"shape": (3, 4)}) for v in (0, 2.5, True, 1j, np.float32(2), np.asarray(3, "f4"), X[0])]
        + [Case((7,), {"shape": (2,), "dtype": np.dtype(d)}) for d in SOME],
        "full_like": [Case((a, 1), {"dtype": d}) for a in (X, X.T) for d in (None, np.dtype("f8"))],
        "listed": [
            Case(n, {"shape": (2, len(n) // 2), "dtype": np.dtype(type(n[0]))}) for n in ((1, 2, -3, 4), (True, False))
        ],
        "arange": [Case((), {"start": a, "stop": b, "step": c, "dtype": d}) for a, b, c in steps for d in (None, F4)],
        "linspace": [
            Case(e, {"num": n, "dtype": d, "endpoint": p})
            for e in ends
            for n in (0, 1, 7)
            for d in (None, F4)
            for p in (True, False)
        ],
        "eye": [
            Case((), {"n_rows": n, "n_cols": m, "k": k, "dtype": F4}) for n, m, k in ((3, 3, 0), (3, 5, 1), (4, 2, -1))
        ],
    }


def _signals() -> dict[str, Any]:
    none = {"left": None, "right": None, "period": None}
    points, at, whole = np.sort(values(5)), values(3, 4, seed=3) * 2 - 0.5, values(5, dtype="i4")
    wide, narrow = ((2, 1), (0, 2)), ((9, 4), (1, 7))
    even = [{"mode": mode} for mode in ("edge", "wrap", "reflect", "symmetric", "constant")]
    others = [
        {"mode": "constant", "constant_values": ((1, 2), (3, 4))}, {"mode": "linear_ramp", "end_values": 2.5},
        {"mode": "maximum"}, {"mode": "minimum", "stat_length": 2}, {"mode": "mean"},
        {"mode": "reflect", "reflect_type": "odd"}, {"mode": "symmetric", "reflect_type": "odd"},
    ]  # fmt: skip
    return {
        "interp": [
            Case((x, points, y), {**none, **ends})
            for x in (at, at.T, np.asarray(0.6), INDEX, 0.7)
            for y in (values(5, seed=1), values(5, dtype="c16"), whole)
            for ends in ({}, {"left": -0.5, "right": 2}, {"period": 0.4})
        ],
        "gradient": [
            Case((x, h), {"axis": 1, "edge_order": order})
            for x in (X, X[::-1], X.astype("f8"), X.astype("c8"), (X * 9).astype("i4"))
            for h in (1.0, np.float64(0.3), np.arange(4.0), np.asarray([0, 1, 3, 4]))
            for order in (1, 2)
        ],
        "convolve": [
            Case((values(n, dtype=d), values(m, dtype=d, seed=1)), {"mode": mode})
            for n, m in ((9, 4), (4, 9), (5, 5), (1, 3))
            for d in ("?", "i4", "u1", "f4", "f8", "c8")
            for mode in ("full", "same", "valid")
        ],
        "pad": [
            Case((x,), {"pad_width": w, **o}) for x in (X, X.T, X.astype("i4")) for w in (wide, narrow) for o in even
        ]
        + [Case((x,), {"pad_width": wide, **o}) for x in (X, X.T, X.astype("f8")) for o in others]
        + [
            Case((values(),), {"pad_width": (), "mode": "edge"}),
            Case((X[:0],), {"pad_width": ((0, 0), (1, 1)), "mode": "wrap"}),
        ],
        "sliding_window_view": [
            Case((x,), {"window_shape": shape, "axis": axis})
            for x in (X, X.T, X[::-1, ::2])
            for shape, axis in (((2,), (0,)), ((2, 2), (0, 1)), ((2, 1), (1, 1)), ((), ()))
        ],
        "overlap_add": [Case((x,), {"axis": axis}) for x in (CUBE, CUBE.T, values(2, 5, 3)) for axis in (0, 1)],
    }


def _updates() -> dict[str, Any]:
    key = {"shape": (5, 4), "key": (TENSOR,)}
    return {
        "scatter": [
            *[Case((x, np.asarray([1, 4, 1])), key) for x in (X, X * (1 + 2j))],  # CuPy adds up no complex numbers
            Case((X[0],), {"shape": (3, 4), "key": (1,)}),
        ],
        "choice_backward": [Case((X, X, y), {}) for y in (Y, Y.T.copy().T, Y[:1], 0.5, np.where(X > 0.5, X, Y))],
        "cumulative_prod_gradient": [Case((X, Y), {"axis": axis}) for axis in (0, 1)],
        "axpby": [Case((X, Y, 0.5, -2.0), {}), Case((0.0, Y, 0.5, -2.0), {})],
        "rms_scaled": [Case((X, Y, 1e-8), {})],
    }


def _networks() -> dict[str, Any]:
    single, double = [network_rows_given(_around_zero, dtype, 2) for dtype in ("f4", "f8")]
    return {name: [Case(*given) for given in single[name] + double[name]] for name in single}


def _around_zero(*shape: int, dtype: str) -> np.ndarray:
    return values(*shape, dtype=dtype) - np.asarray(0.6, dtype)


CASES = _cases()
