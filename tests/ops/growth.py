"""How much a process grows by an operation, beside what is charged for it: each case in a process of its own.

`python -m tests.ops.growth PART OF MOST` prints one of `OF` parts of the cases, at most `MOST` of them. A case is an
operation with operands of some 32 MiB, of one class of dtypes and in one layout. Its options are drawn, always the same
ones. Where the need depends on the data, the data are those that need the most. A list of operations may follow, of
which every case is printed, and a number of streams.

It runs on a scheduler, so what several threads take at the same time counts, and what NumPy takes beside its arrays. A
process for each case is forked from one that has imported everything: what was freed before would hide what is taken.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from threading import Barrier
from typing import Any, NamedTuple

import numpy as np

import asyncsched as asc
from asyncsched.ops import TABLE, meta, plan
from asyncsched.ops.index_keys import TENSOR, Slice
from asyncsched.ops.kernels import compiled
from asyncsched.ops.op import PRODUCTS, Cut
from asyncsched.tensors.tensor import apply
from tests.declared import ARITIES

KINDS = ("?", "i2", "i8", "f2", "f4", "f8", "c16")
LAYOUTS = ("whole", "turned", "spaced", "flipped", "mixed")
COLUMNS = 2048
# Operations whose kernels are given floating-point numbers alone, and decompositions, of which NumPy makes the same
# copies for integers as for double precision.
FLOATS_ALONE = {
    "adam_step", "axpby", "axpby_squared", "cholesky", "cofactors", "cumulative_prod_gradient", "det",
    "eig", "eigh", "eigvals", "eigvalsh", "gradient", "inv", "matrix_norm", "matrix_power", "matrix_rank", "pinv",
    "rms_scaled", "slogdet", "solve", "svd", "svdvals",
}  # fmt: skip
ALL = Slice(None, None, None)
Fill = Callable[[np.random.Generator, tuple[int, ...]], Any]


@dataclass(frozen=True)
class Array:
    """An operand to be made. `fixed` ones keep their dtype and layout."""

    shape: tuple[int, ...]
    kind: str
    fill: Fill
    layout: str = "whole"
    fixed: bool = False

    def made(self, put: Callable[[Any], asc.Tensor]) -> asc.Tensor:
        """The tensor: a view of another one, unless it is laid out as a whole."""
        array = self.fill(np.random.default_rng(0), self.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            array = array >= 1 if self.kind == "?" else array.astype(self.kind)
            if self.kind[0] in "fc":
                array[np.isinf(array)] = np.nan  # each counts as different
        if self.layout == "turned":
            return asc.permute_dims(put(np.ascontiguousarray(array.T)), tuple(range(array.ndim))[::-1])
        if self.layout == "spaced":
            return put(np.repeat(array, 2, axis=-1))[..., ::2]
        if self.layout == "flipped":
            return put(np.ascontiguousarray(array[..., ::-1]))[..., ::-1]
        return put(array)


@cache
def _drawn_numbers() -> np.ndarray[Any, Any]:
    """Made once, before processes are forked."""
    return np.random.default_rng(0).random(1 << 24, "f4") + np.float32(0.5)


def uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    known, count = _drawn_numbers(), prod(shape)
    return known[:count].reshape(shape) if count <= known.size else np.resize(known, shape)


def holes(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    found = uniform(rng, shape).copy()
    found[found < 0.6] = np.nan
    return found


def numbers(most: int) -> Fill:
    return lambda rng, shape: rng.integers(0, most, shape)


def distinct(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Numbers none of which is 0, as different as the dtype has them, and far apart where integers are wide."""
    count = prod(shape)
    return (np.arange(count) * 2_654_435_761 % count * 1_000_003 + 2).reshape(shape)  # by a prime


def ordered(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return np.linspace(0, 2, prod(shape)).reshape(shape)


def definite(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return uniform(rng, shape) + shape[-1] * np.eye(shape[-1])


Case = tuple[tuple[Any, ...], dict[str, Any]]


def cases(kind: str) -> dict[str, list[Case]]:
    """The cases of each operation, for operands of one dtype, each whole."""
    rows = min(8192, 2048 * 8 // np.dtype(kind).itemsize)
    size = rows * COLUMNS

    def some(*shape: int, fill: Fill = uniform) -> Array:
        return Array(shape, kind, fill)

    def fixed(*shape: int, fill: Fill = uniform, dtype: str = "") -> Array:
        return Array(shape, dtype or kind, fill, fixed=True)

    def index(*shape: int, most: int, dtype: str = "i8") -> Array:
        return Array(shape, dtype, numbers(most), fixed=True)

    def along(*options: dict[str, Any], operands: Any = None) -> list[Case]:
        return [((x,), o) for x in operands or (X,) for o in options]

    X, WIDE, LINE = some(rows, COLUMNS), some(8, size >> 3), some(size)
    HOLES = some(rows, COLUMNS, fill=holes)
    DISTINCT, LONE = some(rows, COLUMNS, fill=distinct), some(size, fill=distinct)
    TRUE, ONES = fixed(rows, COLUMNS, fill=distinct, dtype="?"), fixed(rows, fill=distinct, dtype="?")
    CUBE, ROWS = some(16, rows >> 4, COLUMNS), index(rows, most=rows)
    wide = 512 if kind in ("f4", "f8", "c8", "c16") else 16  # of products: without a BLAS they take long
    STACK, SMALL = some(64, 256, 256, fill=definite), some(4096, 32, 32, fill=definite)
    TALL = some(3000, 8)  # a factor of it is far larger
    PAIRS = STACK if wide > 99 else some(rows * 8, 16, 16)
    SQUARE = some(1024, 1024, fill=definite)
    axes = ({"axis": None}, {"axis": 0}, {"axis": -1})
    LONG = some(2 * rows, COLUMNS)  # beside it, what is charged for blocks is little
    found: dict[str, list[Case]] = {
        name: [((LONG if callable(TABLE[name].kernel) else X,) * n, {})] for name, n in ARITIES.items()
    }
    found |= {name: along(*axes) for name in ("all", "any", "max", "min", "prod", "sum", "mean", "std", "var")}
    found |= {name: along(*axes) + along(axes[1], operands=(WIDE,)) for name in ("count_nonzero", "argmax", "argmin")}
    found |= {
        name: along({"axis": 0}, {"axis": -1}, {"axis": 1, "include_initial": True})
        + along({"axis": 1}, operands=(WIDE,))
        for name in ("cumulative_sum", "cumulative_prod")
    }
    found["diff"] = along({"axis": 0}, {"axis": -1}, {"axis": -1, "n": 3})
    for name in ("sort", "argsort"):
        found[name] = along({"axis": -1}, {"axis": 0}, {"axis": 1, "descending": True}, {"axis": 1, "stable": False})
        found[name] += along({"axis": -1}, {"axis": -1, "descending": True}, operands=(LINE,))
    found |= {name: along(*axes, operands=(HOLES,)) for name in ("nansum", "nanprod", "nanmin", "nanmax", "nanmean")}
    found |= {name: along(*axes, operands=(HOLES,)) for name in ("nanvar", "nanstd")}
    found |= {name: along({"axis": None}, operands=(HOLES,)) for name in ("nanargmin", "nanargmax")}
    several = tuple({"axis": axis} for axis in (None, 0, -1, (0, 1)))
    parts = {"q": (0.1, 0.5), "form": ((2,), "<f8"), "percent": False, "keepdims": False}
    found["median"] = along(*several, {"axis": (0, 2)}, {"axis": (1, 2)}, operands=(CUBE,)) + along(*several)
    found["quantile"] = [((X,), {**o, **parts, "method": method}) for o in several for method in ("linear", "lower")]
    found["quantile"] += [((X, fixed(rows, COLUMNS, dtype="f8")), {**o, **parts, "method": "inverted_cdf"})
                          for o in several]  # fmt: skip
    found["argpartition"] = along(*({"axis": axis, "kth": (3, 6)} for axis in (None, 0, -1)))
    found["topk"] = [((x,), {"axis": axis, "k": k, "largest": k < 8, "sorted": True})
                     for x in (X, WIDE) for axis in (0, -1) for k in (5, 8)]  # fmt: skip
    for name in ("cholesky", "inv", "det", "cofactors", "pinv", "matrix_rank", "eigvals", "eigvalsh", "svdvals", "eigh",
                 "eig", "slogdet"):  # fmt: skip
        found[name] = [((SMALL if name in ("eigvals", "eig") else STACK,), {}), ((SQUARE,), {})]
    if kind == "f8":
        found["eigh"][1] = ((some(1400, 1400, fill=definite),), {})  # beside it, BLAS's buffers are little
    found |= {
        "solve": [((STACK, STACK), {}), ((SQUARE, SQUARE), {}), ((STACK, some(256)), {}), ((SQUARE, some(1024)), {})],
        "matrix_power": [((STACK,), {"n": -2}), ((PAIRS,), {"n": 3})],
        "matrix_norm": [((STACK,), {"ord": o, "keepdims": False}) for o in ("fro", "nuc", 2, 1)],
        "vector_norm": along(*[{"ord": o, "axis": axis, "keepdims": False} for o in (1, 2, 3) for axis in (None, 0)]),
        "qr": [*along({"mode": "reduced"}, operands=(STACK, some(rows, 64))), ((TALL,), {"mode": "complete"})],
        "svd": along({"full_matrices": True}, operands=(STACK, TALL, some(8, 3000))),
        "cross": [((some(size // 3, 3),) * 2, {"axis": -1})],
        "outer": [((some(rows), some(COLUMNS)), {})],
        "matmul": [((X, some(COLUMNS, wide)), {}), ((some(wide, rows), X), {}), ((X, some(COLUMNS)), {}),
                   ((PAIRS, PAIRS), {}), ((PAIRS, some(*PAIRS.shape[1:])), {}),
                   ((some(COLUMNS), some(rows >> 8, COLUMNS, 256)), {})],
        "vecdot": [((X, X), {"axis": axis}) for axis in (0, -1)],
        "tensordot": [((X, some(COLUMNS, wide)), {"axes": 1}), ((X, X), {"axes": 2}),
                      ((PAIRS, PAIRS), {"axes": ((0, 1), (0, 1))})],
        "dot": [((X, some(COLUMNS, wide)), {}), ((X, some(COLUMNS)), {}), ((X, 2.0), {})],
        "einsum": [((X, some(COLUMNS, wide)), {"subscripts": "ij,jk->ik"}), ((X, X), {"subscripts": "ij,ij->ij"}),
                   ((X, X), {"subscripts": "ij,ij->"})],
        "tril": along({"k": 0}), "triu": along({"k": 0}),
        "axpby": [((X, X, 0.5, 0.5), {})],
        "axpby_squared": [((X, X, 0.5, 0.5), {})],
        "rms_scaled": [((X, X, 1e-8), {})],
        "adam_step": [((X, X, X, fixed(fill=lambda *_: np.asarray(3), dtype="i8"), 0.1, 0.1, 0.9, 0.99, 1e-8), {})],
        "choice_backward": [((X, X, 0.7), {}), ((X, X, X), {})],
        "class_numbers": [((index(rows, COLUMNS, most=900, dtype=kind if kind in ("i2", "i8") else "i4"),),
                           {"classes": 1000, "ignore_index": -100})],
        "round": along({"decimals": 2}),
        "clip": [((X, X, X), {})],
        "astype": along({"dtype": np.dtype("f4")}, {"dtype": np.dtype("c16")}),
        "copy": along({}),
        "concat": [((X, X), {"axis": axis}) for axis in (0, 1, None)]
                  + [((X, fixed(8, COLUMNS, dtype="f8")), {"axis": 0})],
        "stack": [((X, X), {"axis": axis}) for axis in (0, -1)],
        "repeat": along({"repeats": 3, "axis": None}, {"repeats": 3, "axis": 0}, {"repeats": 3, "axis": -1}),
        "repeat_each": [((X, index(n, most=3)), {"axis": axis, "maxlength": n + n // 8})
                        for axis, n in enumerate((rows, COLUMNS))],
        "tile": [((X,), {"repetitions": (2,)}), ((X,), {"repetitions": (2, 2)}),
                 ((some(size >> 3, 8),), {"repetitions": (3, 2)})],
        "roll": along({"shift": 5, "axis": None}, {"shift": 5, "axis": 1}, {"shift": (1, 2), "axis": (0, 1)}),
        "reshape": along({"shape": (size,)}),
        "flip": along({"axis": None}),
        "getitem_advanced": [((X, ROWS), {"key": (TENSOR,)}),
                             ((X, index(COLUMNS, most=COLUMNS)), {"key": (ALL, TENSOR)}),
                             ((X, TRUE), {"key": (TENSOR,)}), ((X, ONES), {"key": (TENSOR,)}),
                             ((X, index(size, most=rows, dtype="i4"), index(size, most=2000)), {"key": (TENSOR,) * 2})],
        "setitem": [((X, 1.0), {"key": (ALL, 1)}), ((X, X, ROWS), {"key": (TENSOR,)}),
                    ((X, 1.0, TRUE), {"key": (TENSOR,)}), ((X, 1.0, ONES), {"key": (TENSOR,)}),
                    ((some(size), LINE, index(size, most=size)), {"key": (TENSOR,)})],
        "take": [((X, ROWS), {"axis": 0}), ((X, index(COLUMNS, most=COLUMNS, dtype="i4")), {"axis": 1}),
                 ((X, index(size, most=size)), {"axis": None})],
        "take_along_axis": [((X, index(rows, COLUMNS, most=n)), {"axis": axis})
                            for axis, n in enumerate((rows, COLUMNS))],
        "argwhere": along({}, operands=(some(rows, COLUMNS, fill=distinct),)),
        "searchsorted": [((fixed(size, fill=ordered), some(rows, COLUMNS, fill=ordered)), {"side": "left"})],
        "unique_values": along({}, operands=(DISTINCT,)),
        "unique_packed": along(*[{"index": i, "inverse": v, "counts": c} for i, v, c in
                                 ((True, True, True), (False, True, False), (False, False, True))],
                               operands=(DISTINCT,)),
        "isin": [((DISTINCT, LONE), {"invert": False}), ((DISTINCT, some(1000, fill=distinct)), {"invert": False})],
        "bincount": [((index(size, most=size),), {"minlength": 0})],
        "observation_weights": [((fixed(size, dtype="f8"), index(size, most=9)), {"names": ("aweights",) * 2})],
        "clip_parts": along({}),
        "digitize": [((X, fixed(9, fill=ordered, dtype="f8")), {"right": False})],
        "histogram": [((x, *edges, *w), {"low": None, "high": None, **o, "density": False, "weighted": bool(w)})
                      for x in (X,) for w in ((), (fixed(rows, COLUMNS, dtype="f8"),))
                      for edges, o in (((), {"bins": 500}), ((), {"bins": 500, "low": 0, "high": 1}),
                                       ((fixed(5000, fill=ordered, dtype="f8"),), {"bins": None}))],
        "zeros": [((), {"shape": (size,), "dtype": np.dtype(kind)})],
        "ones": [((), {"shape": (size,), "dtype": np.dtype(kind)})],
        "full": [((2.5,), {"shape": (size,)})],
        "full_like": [((X, 2), {})],
        "arange": [((), {"start": 0, "stop": size, "step": 1, "dtype": dtype}) for dtype in (None, np.dtype("f4"))],
        "linspace": [((0, 1), {"num": size, "dtype": dtype}) for dtype in (None, np.dtype("f4"))],
        "eye": [((), {"n_rows": rows, "n_cols": COLUMNS, "k": 0, "dtype": np.dtype(kind)})],
        "scatter": [((X, ROWS), {"shape": X.shape, "key": (TENSOR,)}),
                    ((X, index(rows, COLUMNS, most=size)), {"shape": (size,), "key": (TENSOR,)})],
        "scatter_along_axis": [((X, index(rows, COLUMNS, most=n)), {"shape": X.shape, "axis": axis})
                               for axis, n in enumerate((rows, COLUMNS))],
        "last_written": [((index(rows, COLUMNS, most=size),), {"shape": (size,), "key": (TENSOR,)})],
        "cumulative_prod_gradient": [((X, X), {"axis": axis}) for axis in (0, 1)],
    }  # fmt: skip
    for name in ("fft", "ifft", "rfft", "irfft"):
        found[name] = [((LINE,), {"n": n, "axis": -1, "norm": "backward"}) for n in (None, size // 8 * 5)]
        found[name] += [((X,), {"n": n, "axis": axis, "norm": "ortho"}) for n in (None, 1021) for axis in (0, -1)]
    of_all = ({"s": None, "axes": None}, {"s": (rows, 1024), "axes": (0, 1)})
    found |= {
        name: along(*[{**o, "norm": "backward"} for o in of_all]) for name in ("fftn", "ifftn", "rfftn", "irfftn")
    }
    return found | signals(some, fixed, rows) | networks(some, fixed, rows, wide)


def signals(some: Any, fixed: Any, rows: int) -> dict[str, list[Case]]:
    """Of sequences, padding and windows."""
    X, LINE = some(rows, COLUMNS), some(rows * COLUMNS)
    wide, one = ((3, 100), (50, 7)), {"pad_width": ((0, 0), (2000, 3))}
    modes: list[dict[str, Any]] = [
        {"mode": mode} for mode in ("edge", "wrap", "linear_ramp", "maximum", "median", "mean")
    ]
    modes += [{"mode": mode, "reflect_type": kind} for mode in ("reflect", "symmetric") for kind in ("even", "odd")]
    modes += [{"mode": "constant", "constant_values": 2}]
    known = fixed(512, fill=ordered, dtype="f8")
    line = some(rows * COLUMNS, fill=ordered)
    return {
        "interp": [((X, known, known), {"left": None, "right": None, "period": period}) for period in (None, 0.3)]
                  + [((some(rows, COLUMNS, fill=ordered), line, LINE), {"left": None, "right": None, "period": None})],
        "gradient": [((X, h), {"axis": axis, "edge_order": order})
                     for h in (1.0, fixed(COLUMNS, fill=ordered, dtype="f8")) for axis in (0, 1) for order in (1, 2)],
        "convolve": [((LINE, some(n)), {"mode": mode}) for n, mode in ((30, "full"), (500, "same"))],
        "pad": [((X,), {**width, **mode}) for width in ({"pad_width": wide}, one) for mode in modes],
        "overlap_add": [((x,), {"axis": axis}) for x in (some(rows, 512, 3), some(9, 9, rows << 4)) for axis in (0, 1)],
    }  # fmt: skip


def networks(some: Any, fixed: Any, rows: int, wide: int) -> dict[str, list[Case]]:
    """Of networks. Images are many and small, few and large, and lines."""
    n, x, target = rows * 32, some(rows * 32, 128), fixed(rows * 32, fill=numbers(100), dtype="i8")
    inner = min(wide, 128)
    how, one = {"ignore_index": -100, "label_smoothing": 0.1}, fixed(fill=lambda *_: np.asarray(1))
    shapes = ((rows, 32, 32), (rows, 32, 32), (rows, 32, 32))
    seen = fixed(64, 64, fill=lambda rng, shape: np.tri(*shape), dtype="?")
    heads, packed = some(rows, 64, 32), some(sum(map(prod, shapes)))
    drawn = {"shape": (n, 128), "dtype": np.dtype("f4")}
    given = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
    images, pooled = some(rows >> 4, 16, 32, 32), some(rows >> 4, 16, 16, 16)
    found = {
        "softmax": [((x,), {"log": log}) for log in (False, True)],
        "softmax_backward": [((x, x), {"log": log}) for log in (True, False)],
        "leaky_relu": [((x,), {"negative_slope": 0.1})],
        "softplus": [((x,), {"beta": 2.0, "threshold": 0.5})],
        "gelu": [((x,), {"approximate": a}) for a in ("none", "tanh")],
        "gelu_backward": [((x, x), {"approximate": a}) for a in ("none", "tanh")],
        "layer_norm": [((x, some(128), some(128)), {"eps": 1e-5})],
        "layer_norm_input_grad": [((x, some(128), x), {"eps": 1e-5})],
        "layer_norm_weight_grad": [((x, x), {"eps": 1e-5, "shape": (128,)})],
        "linear": [((some(n, inner), some(100, inner), some(100)), {}), ((some(rows, wide), some(COLUMNS, wide)), {})],
        "linear_weight_grad": [((some(n, 100), some(n, inner)), {}), ((some(wide, rows), some(wide, COLUMNS)), {})],
        "accurate_sum": [((x,), {"axis": axis}) for axis in ((0,), (1,), (0, 1))],
        "embedding": [((some(1000, 128), target), {})],
        "dropout": [((x, 5), {"p": 0.25})],
        "uniform": [((5,), {**drawn, "low": -2.0, "high": 3.0})],
        "normal": [((5,), drawn)],
        "cross_entropy": [((x, target), {"reduction": r, **how}) for r in ("mean", "none")],
        "cross_entropy_backward": [((x, target, one), {"reduction": "mean", **how})],
        "attention": [((packed, 0), {"shapes": shapes, "causal": c, "scale": None}) for c in (False, True)],
        "attention_unpacked": [((heads, heads, heads, seen), {"causal": c, "scale": None}) for c in (False, True)],
        "attention_backward": [((packed, 0, some(*shapes[0])), {"shapes": shapes, "causal": True, "scale": 0.5})],
        "max_pool2d": [((images,), given)],
        "max_pool2d_backward": [((images, pooled, pooled), given)],
        "max_pool2d_gather": [((images, pooled, images), given)],
    }
    found |= {name: [] for name in ("conv2d", "conv2d_input_grad", "conv2d_weight_grad")}
    if x.kind == "f2":  # without a BLAS it takes minutes
        return found
    for form, kernel, padding, stride in (
        ((rows >> 4, 16, 32, 32), (16, 16, 3, 3), (1, 1), (1, 1)),
        ((2, 16, 512, rows >> 1), (16, 16, 3, 3), (1, 1), (1, 1)),
        ((8, 16, 1, rows << 4), (16, 16, 1, 65), (0, 0), (1, 1)),
        ((8, 16, 1, rows << 4), (16, 16, 1, 65), (0, 32), (1, 2)),
        ((rows >> 1, 16, 1, 512), (32, 16, 1, 9), (0, 4), (1, 1)),
        ((2, 1, 1, rows << 7), (8, 1, 1, 300), (0, 0), (1, 100)),
        ((16, 128, 1, rows), (128, 128, 1, 3), (0, 1), (1, 1)),
    ):
        count = [(n + 2 * p - k) // s + 1 for n, k, p, s in zip(form[2:], kernel[2:], padding, stride, strict=True)]
        o = {"stride": stride, "padding": padding, "dilation": (1, 1)}
        grad = some(form[0], kernel[0], *count)
        found["conv2d"].append(((some(*form), some(*kernel), some(kernel[0])), o))
        found["conv2d_input_grad"].append(((grad, some(*kernel)), {"shape": form, **o}))
        found["conv2d_weight_grad"].append(((grad, some(*form)), {"shape": kernel, **o}))
    return found


def laid(operands: tuple[Any, ...], layout: str) -> tuple[Any, ...]:
    """The operands in a layout; `mixed`: the first one turned."""
    places = [i for i, one in enumerate(operands) if isinstance(one, Array) and one.shape and not one.fixed]
    if layout == "mixed":
        places, layout = places[:1], "turned"
    return tuple([replace(one, layout=layout) if i in places else one for i, one in enumerate(operands)])


class Trial(NamedTuple):
    """An operation with its operands and options."""

    name: str
    operands: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def text(self) -> str:
        """What is tried, in words."""
        words = [f"{one.kind}{one.shape} {one.layout}" if isinstance(one, Array) else str(one) for one in self.operands]
        return " ".join([*words, str(self.options)])

    @property
    def number(self) -> int:
        """By which trials are drawn."""
        return zlib.crc32(f"{self.name} {self.text}".encode())

    @property
    def facts(self) -> set[tuple[str, ...]]:
        """What it tells about: its name with a class of dtypes, and with a layout; elementwise ones have any layout."""
        varied = [one for one in self.operands if isinstance(one, Array) and not one.fixed]
        layouts = () if self.name in ARITIES else tuple([one.layout for one in varied if one.shape])
        return {(self.name, *layouts), *[(self.name, one.kind) for one in varied]}

    @property
    def streams(self) -> int:
        """One, where several would share the work and large temporary memory: how many do is left to chance."""
        op, operands = TABLE[self.name], tuple(map(_form, self.operands))
        found = plan(op, operands, self.options)
        shares = op.cut not in (Cut.WHOLE, *PRODUCTS)  # what BLAS needs, all parts of a product share
        helped = found.shared.each and found.shared.most > 1
        return 1 if helped or (shares and found.workspace * 2 >= found.nbytes) else 2


def drawn() -> list[Trial]:
    """Trials of each operation with each class of dtypes, and in each layout: first one of each, then the next."""
    known: set[tuple[str, ...]] = set()
    before: Counter[str] = Counter()
    turns = []
    for one in sorted(every_trial(), key=lambda one: one.number):
        if not one.facts <= known:
            known |= one.facts
            turns.append((before[one.name], one.number, one))
            before[one.name] += 1
    return [one for *_, one in sorted(turns, key=lambda turn: turn[:2])]


def every_trial() -> Iterator[Trial]:
    """All that the operations take."""
    for kind in KINDS:
        for name, given in cases(kind).items():
            if (kind[0] in "?iu" and name in FLOATS_ALONE) or (name == "clip_parts" and kind[0] != "c"):
                continue
            for operands, options in given:
                varied = sum(isinstance(one, Array) and not one.fixed for one in operands)
                if not varied and kind != "f8":
                    continue
                for layout in LAYOUTS[: 1 if not varied else 4 if varied == 1 else 5]:
                    there = laid(operands, layout)
                    if _taken(name, there, options):
                        yield Trial(name, there, options)


def _taken(name: str, operands: tuple[Any, ...], options: dict[str, Any]) -> bool:
    try:
        plan(TABLE[name], tuple([_form(one) for one in operands]), options)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _form(operand: Any) -> Any:
    return (
        meta(operand.shape, np.dtype(operand.kind), operand.layout == "whole")
        if isinstance(operand, Array)
        else operand
    )


def status(field: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def start_peak() -> None:
    """The peak is what there is now."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


async def growth(name: str, operands: tuple[Any, ...], options: dict[str, Any], streams: int) -> tuple[int, int]:
    """By how much the process grows at most, and what is charged."""
    async with asc.Scheduler("cpu", streams=streams, max_bytes=None) as s:
        made: dict[Array, asc.Tensor] = {}
        for one in operands:
            if isinstance(one, Array) and one not in made:
                made[one] = one.made(s.put_nowait)
        await s.barrier()
        gc.collect()
        held = s.statistics().bytes_retained
        assert s.statistics().peak_bytes == held
        start_peak()
        before = status("VmRSS")
        tensors = tuple([made[one] if isinstance(one, Array) else one for one in operands])
        with np.errstate(all="ignore"):
            await apply(TABLE[name], tensors, options, scheduler=s)
        return status("VmHWM") - before, s.statistics().peak_bytes - held


def measured(name: str, operands: tuple[Any, ...], options: dict[str, Any], streams: int) -> tuple[int, int]:
    """The same in a process of its own."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            found = asyncio.run(growth(name, operands, options, streams))
            os.write(writes, json.dumps(found).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as told:
        text = told.read()
    os.waitpid(child, 0)
    grown, charged = json.loads(text or "[-1, -1]")
    return grown, charged


def warm_up() -> None:
    """Let BLAS take its buffers, which it keeps: one for each of two threads that compute at the same time."""
    together = Barrier(2)

    def multiply(dtype: str) -> None:
        matrix = np.ones((COLUMNS, COLUMNS), dtype)
        together.wait()
        matrix @ matrix[:, :512]

    for dtype in ("f4", "f8", "c16"):
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(multiply, [dtype] * 2))


def main(part: int, of: int, most: int, only: str = "", streams: int = 0) -> None:
    """Print a part of the trials: what is tried, by how much the process grew, and what was charged."""
    compiled.finish()  # what is compiled in the background takes memory, too
    warm_up()
    _drawn_numbers()
    gc.freeze()
    names = only.split(",")
    trials = [one for one in every_trial() if one.name in names] if only else drawn()
    for one in trials[part::of][:most]:
        print(json.dumps([one.name, *measured(*one, streams or one.streams), one.text]), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:5], *map(int, sys.argv[5:]))
