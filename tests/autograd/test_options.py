"""Every option of every function that lets a derivative through: its gradient is right, or it is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn
from asyncsched.autograd import gradcheck

from .cases import CUBE, GAPS, MATRIX, OTHER, SQUARE, SQUARES, distinct, positive, real, whole

pytestmark = pytest.mark.one_loop
F = nn.functional
INF = float("inf")
REDUCED = {"axis": [None, 0, -1, (0, 2), ()], "keepdims": [False, True]}
COMPLEX = [None, "f8", "c16"]
NORMS = ["backward", "ortho", "forward"]
METHODS = [
    "inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull",
    "linear", "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest",
]  # fmt: skip
REDUCTION = {"reduction": ["mean", "sum", "none"]}
Grid = tuple[tuple[np.ndarray, ...], dict[str, list[Any]]]  # operands, and the values of each option


def targets() -> asc.Tensor:
    """Of seven rows of five classes; one row does not count."""
    return asc.where(asc.equal(asc.arange(7), 2), -100, asc.arange(7) % 5)


def attend(*parts: asc.Tensor, mask: bool = False, **options: Any) -> asc.Tensor:
    masks = {"attn_mask": asc.tril(asc.ones((3, 5), dtype=bool), k=1)} if mask else {}
    return F.scaled_dot_product_attention(*parts, **masks, **options)


# Functions that are called otherwise than by operands and options.
CALLS: dict[str, Callable[..., Any]] = {
    "astype": lambda x, dtype, **o: asc.astype(x, dtype, **o),
    "concat": lambda x, y, **o: asc.concat([x, y], **o),
    "stack": lambda x, y, **o: asc.stack([x, y], **o),
    "unstack": lambda x, **o: asc.unstack(x, **o)[1],
    "meshgrid": lambda x, y, **o: asc.concat(list(asc.meshgrid(x, y, **o))),
    "gradient": lambda x, **o: asc.gradient(x, **o),
    "topk": lambda x, **o: asc.topk(x, **o).values,
    "take_along_axis": lambda x, **o: asc.take_along_axis(x, asc.argsort(x, **o), **o),
    "cholesky": lambda x, **o: asc.linalg.cholesky(x @ x.mT + asc.eye(3), **o),
    "eigvalsh": lambda x: asc.linalg.eigvalsh(x + x.mT),
    "qr": lambda x, part, **o: asc.linalg.qr(x, **o)[part],
    "svd": lambda x, part, **o: asc.linalg.svd(x, **o)[part],
    "nll_loss": lambda x, w, **o: F.nll_loss(x, targets(), w, **o),
    "cross_entropy": lambda x, w, **o: F.cross_entropy(x, targets(), w, **o),
    "cov": lambda x, w=None, repeated=False, **o: asc.cov(
        x, aweights=w, fweights=whole(1, 2, 0, 3, 1) if repeated else None, **o
    ),
    "histogram": lambda x, **o: asc.histogram(asc.arange(4.0), 2, weights=x, **o).hist,
    "bincount": lambda x, **o: asc.bincount(whole(0, 1, 1, 2), x, **o),
    "interp": lambda x, **o: asc.interp(x, asc.arange(4.0), asc.arange(4.0) ** 2, **o),
    "conv1d": lambda x, w, b, **o: F.conv1d(x, w, b, **o),
    "scaled_dot_product_attention": attend,
    "matrix_power": lambda x, n: asc.linalg.matrix_power(x, n),
    "repeat": lambda x, repeats, **o: asc.repeat(x, repeats, **o),
    "roll": lambda x, shift, **o: asc.roll(x, shift, **o),
    "embedding": lambda w: F.embedding(whole(0, 2, 0), w),
    "batch_norm": lambda x, w, b, **o: F.batch_norm(
        x, *[asc.arange(3.0) + n if not o["training"] else None for n in (0, 1)], w, b, **o
    ),
    "group_norm": lambda x, w, b, num_groups, **o: F.group_norm(x, num_groups, w, b, **o),
    "layer_norm": lambda x, w, b, **o: F.layer_norm(x, 4, w, b, **o),
    "rms_norm": lambda x, w, **o: F.rms_norm(x, 4, w, **o),
}
IMAGES = (real(2, 2, 5, 6), real(3, 2, 2, 3, seed=4), real(3, seed=5))
WINDOWS = {"kernel_size": [2, (3, 2)], "stride": [None, 1, (2, 3)], "padding": [0, 1]}
QUERY = (real(2, 3, 4), real(2, 5, 4, seed=1), real(2, 5, 3, seed=2))

GRIDS: dict[str, list[Grid]] = {
    **{
        name: [((distinct(2, 3, 4) * 3 + 0.013,), REDUCED | more)]
        for names, more in (
            (("mean", "max", "min", "nanmean", "nanmax", "nanmin"), {}),
            (("sum", "prod", "nansum", "nanprod"), {"dtype": COMPLEX}),
            (("median",), {"axis": [None, 0, -1, (0, 2)]}),
        )
        for name in names
    },
    **{
        name: [
            ((distinct(2, 3, 4),),
             {"axis": [None, 0, -1, (0, 2)], "correction": [0, 1, 0.5], "keepdims": [False, True]}),
        ]
        for name in ("var", "std", "nanvar", "nanstd")
    },
    **{
        f"cumulative_{name}": [((CUBE,), {"axis": [0, -1], "include_initial": [False, True], "dtype": COMPLEX})]
        for name in ("sum", "prod")
    },
    "diff": [((real(4, 5),), {"axis": [0, -1], "n": [0, 1, 2, 3, 4]})],
    "sort": [((distinct(3, 4),), {"axis": [0, -1], "descending": [False, True], "stable": [False, True]})],
    "topk": [
        ((distinct(3, 4),), {"k": [2], "axis": [0, -1], "largest": [False, True], "sorted": [False, True]}),
    ],
    "take_along_axis": [((distinct(3, 4),), {"axis": [0, 1, -1]})],
    **{
        name: [
            (
                (distinct(2, 3, 5),),
                {"q": [0.3 * n, [0, 0.55 * n, 1.0 * n]], "method": METHODS, "axis": [None, -1, (0, 2)],
                 "keepdims": [False, True], "weights": [None]},
            )
        ]
        for name, n in (("quantile", 1), ("percentile", 100))
    },
    "cov": [
        ((real(3, 5),), {"rowvar": [True, False], "bias": [False, True], "ddof": [None, 0, 2], "dtype": [None, "f8"]}),
        ((real(3, 5), positive(5)), {"bias": [False, True], "ddof": [None, 0, 2], "repeated": [False, True]}),
        ((real(3, 5),), {"ddof": [None, 0, 2], "repeated": [True]}),
    ],
    "corrcoef": [((distinct(3, 5) * real(3, 5),), {"rowvar": [True], "dtype": [None]})],
    "histogram": [((real(4),), {"density": [False, True]})],
    "bincount": [((real(4),), {"minlength": [0, 9], "maxlength": [None, 9]})],
    "interp": [((positive(4),), {"left": [None, 1.0], "right": [None, 1.0], "period": [None, 3.0]})],
    "gradient": [((real(4, 5),), {"axis": [0, -1], "edge_order": [1, 2]})],
    "trapezoid": [
        ((MATRIX, real(3)), {"axis": [0]}), ((MATRIX, OTHER), {"axis": [-1, 0]}), ((MATRIX,), {"dx": [1, 0.3]}),
    ],
    "pad": [
        ((distinct(3, 4),), {"pad_width": [0, ((2, 1), (0, 3)), ((0, 5), (9, 0))], "mode": modes, **more})
        for modes, more in (
            (["constant", "edge", "wrap", "linear_ramp"], {}),
            (["reflect", "symmetric"], {"reflect_type": ["even", "odd"]}),
            (["maximum", "mean", "median", "minimum"], {"stat_length": [None, 2]}),
        )
    ],
    "convolve": [
        ((real(n), real(m, seed=5)), {"mode": ["full", "same", "valid"]}) for n, m in ((6, 3), (3, 6), (5, 4), (4, 4))
    ],
    "sliding_window_view": [((MATRIX,), {"window_shape": [2], "axis": [0, 1, -1]})],
    "concat": [((MATRIX, OTHER), {"axis": [0, 1, None, -1]})],
    "stack": [((MATRIX, OTHER), {"axis": [0, 1, -1]})],
    "unstack": [((MATRIX,), {"axis": [0, 1, -1]})],
    "meshgrid": [((real(2), real(3)), {"indexing": ["xy", "ij"]})],
    "repeat": [((MATRIX,), {"repeats": [1, 3], "axis": [None, 0, -1], "maxlength": [None]})],
    "roll": [((MATRIX,), {"shift": [2, -1], "axis": [None, 0, -1, (0, 1)]})],
    "flip": [((CUBE,), {"axis": [None, 0, -1, (0, 2)]})],
    "reshape": [((MATRIX,), {"shape": [(2, -1)], "copy": [None, True, False]})],
    "astype": [((MATRIX,), {"dtype": ["f8"], "copy": [False, True]})],
    "tril": [((real(2, 4, 3),), {"k": [-3, -1, 0, 1, 5]})],
    "triu": [((real(2, 4, 3),), {"k": [-3, -1, 0, 1, 5]})],
    "vecdot": [((real(2, 3, 4), real(2, 3, 4, seed=1)), {"axis": [-1, -2, -3]})],
    "tensordot": [
        ((real(2, 3, 4), real(4, 3, 2, seed=3)),
         {"axes": [0, 1, ((1,), (1,)), ((2, 1), (0, 1)), ((-1, -2, 0), (0, 1, 2)), (2, 0)]}),
    ],
    # Linear algebra.
    "cholesky": [((SQUARES,), {"upper": [False, True]})],
    "cross": [((real(3, 2, 3), real(3, 2, 3, seed=2)), {"axis": [0, -1, -3]})],
    "diagonal": [((real(2, 3, 5),), {"offset": [0, 1, -1, 4]}), ((real(2, 5, 3),), {"offset": [0, 2, -2, -4]})],
    "trace": [((real(2, 5, 3),), {"offset": [0, 1, -4], "dtype": COMPLEX})],
    "eigvalsh": [((SQUARE,), {})],
    "matrix_norm": [
        ((a,), {"ord": ["fro", "nuc", 1, -1, 2, -2, INF, -INF, None, 2.0], "keepdims": [False, True]})
        for a in (SQUARE, CUBE, real(4, 3))
    ],
    "vector_norm": [
        ((distinct(2, 3, 4),),
         {"ord": [2, 1, 0, INF, -INF, 3, 2.5, -1, -2, 0.5], "axis": [None, 0, (0, 2)], "keepdims": [False, True]}),
        ((GAPS,), {"ord": [2, 3], "axis": [None, 0]}),
    ],
    "matrix_power": [((SQUARE,), {"n": [-1, 0, 1, 3]})],
    "pinv": [((SQUARE,), {"rtol": [None, 0.1]})],
    "qr": [((a,), {"part": [0, 1], "mode": ["reduced", "complete"]}) for a in (real(4, 3), SQUARE, real(2, 4))],
    "svd": [((a,), {"part": [0, 1, 2], "full_matrices": [True, False]}) for a in (real(4, 3), SQUARE, real(2, 4))],
    # Fourier transforms.
    **{
        name: [((real(3, 4),), {"n": [None, 1, 3, 4, 7], "axis": [-1, 0], "norm": NORMS})]
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    },
    **{
        name: [
            ((real(2, 3, 4),), {"s": [None, (3, 5)], "axes": [(0, 1), (-1, 0), (1, 1)], "norm": NORMS}),
            ((real(2, 3, 4),), {"s": [None, (3, 2, 5)], "axes": [(0, 1, 2), (0, 2, 1)], "norm": NORMS}),
        ]
        for name in ("fftn", "ifftn", "rfftn", "irfftn")
    },
    **{name: [((MATRIX,), {"axes": [None, 0, (0, 1)]})] for name in ("fftshift", "ifftshift")},
    # Networks.
    "mse_loss": [((MATRIX, OTHER), REDUCTION)],
    "l1_loss": [((MATRIX, OTHER), REDUCTION)],
    "smooth_l1_loss": [((MATRIX, OTHER), {**REDUCTION, "beta": [0.3, 1.0, 0.0]})],
    "huber_loss": [((MATRIX, OTHER), {**REDUCTION, "delta": [0.3, 2.0]})],
    "kl_div": [
        ((MATRIX, positive(3, 4)),
         {"reduction": [*REDUCTION["reduction"], "batchmean"], "log_target": [False, True]}),
    ],
    "binary_cross_entropy_with_logits": [
        ((MATRIX, positive(3, 4), positive(3, 4, seed=1)), {**REDUCTION, "pos_weight": [None]}),
    ],
    "nll_loss": [((real(7, 5), positive(5)), {**REDUCTION, "ignore_index": [-100]})],
    "cross_entropy": [
        ((real(7, 5), positive(5)), {**REDUCTION, "ignore_index": [-100], "label_smoothing": [0.0, 0.3, 1.0]}),
    ],
    "layer_norm": [((real(2, 3, 4), real(4), real(4, seed=1)), {"eps": [1e-5, 0.1]})],
    "rms_norm": [((real(2, 3, 4), real(4)), {"eps": [None, 0.1]})],
    "group_norm": [((real(2, 4, 3), real(4), real(4, seed=1)), {"num_groups": [1, 2, 4], "eps": [1e-5, 0.1]})],
    "batch_norm": [
        ((real(5, 3), real(3), real(3, seed=1)),
         {"training": [False, True], "momentum": [0.3], "eps": [1e-5, 0.1]}),
    ],
    "conv1d": [
        ((real(2, 2, 7), real(3, 2, 3, seed=4), IMAGES[2]), {"stride": [1, 3], "padding": [0, 2], "dilation": [1, 2]}),
    ],
    "conv2d": [(IMAGES, {"stride": [1, (1, 3)], "padding": [0, (2, 0)], "dilation": [1, (2, 1)]})],
    "max_pool2d": [((distinct(2, 2, 5, 6),), WINDOWS)],
    "avg_pool2d": [
        ((distinct(2, 2, 5, 6),), {**WINDOWS, "count_include_pad": [True, False], "divisor_override": [None, 5]}),
    ],
    "adaptive_avg_pool2d": [((distinct(2, 2, 5, 6),), {"output_size": [1, 3, (None, 4), (5, 2), (7, 8)]})],
    "gelu": [((2 * MATRIX,), {"approximate": ["none", "tanh"]})],
    "leaky_relu": [((MATRIX,), {"negative_slope": [0.01, 0.0, 1.0, -0.5]})],
    "softplus": [((3 * MATRIX,), {"beta": [0.5, 1.0, 2.0], "threshold": [20.0, 0.4]})],
    "softmax": [((CUBE,), {"axis": [0, 1, -1]})],
    "log_softmax": [((CUBE,), {"axis": [0, 1, -1]})],
    "dropout": [((MATRIX,), {"p": [0.0, 0.4, 1.0], "seed": [1]})],
    "embedding": [((MATRIX,), {})],
    "scaled_dot_product_attention": [
        (QUERY, {"is_causal": [False, True], "scale": [None, 0.3, -1.0], "mask": [False, True]}),
    ],
}  # fmt: skip
MODULES: tuple[ModuleType, ...] = (asc, asc.linalg, asc.fft, F)


def function(name: str) -> Callable[..., Any]:
    return CALLS.get(name) or public(name)


def public(name: str) -> Callable[..., Any]:
    return next(getattr(module, name) for module in MODULES if inspect.isfunction(getattr(module, name, None)))


def numbers(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., asc.Tensor]:
    """The function with these options, as one of real numbers."""

    def real_parts(*tensors: asc.Tensor) -> asc.Tensor:
        found = fn(*tensors, **options)
        return asc.real(found) - asc.imag(found) * 0.7 if found.dtype.kind == "c" else found

    return real_parts


def choices(options: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in product(*options.values()):
        yield dict(zip(options, values, strict=True))


@pytest.mark.parametrize("name", GRIDS)
async def test_each_option_has_the_right_gradient_or_none(s, name):
    for arrays, options in GRIDS[name]:
        for chosen in choices(options):
            try:
                await gradcheck(numbers(function(name), chosen), *arrays)
            except NotImplementedError as refused:
                assert "no derivative is known" in str(refused)
            except BaseException as error:
                error.add_note(f"{name} with {chosen}")
                raise


# Options that change no number that a gradient depends on, and functions that have integers or no operand.
PLAIN = {"dtype", "device", "scheduler", "copy", "sorter", "side", "invert"}
WITHOUT = {
    "arange", "argmax", "argmin", "argpartition", "argsort", "count_nonzero", "all", "any", "isin", "nanargmax",
    "nanargmin", "searchsorted", "digitize", "linspace", "eye", "full", "full_like", "asarray", "from_dlpack",
    "fftfreq", "rfftfreq", "matrix_rank", "load", "measure", "run", "take", "clip", "expand_dims",
}  # fmt: skip


def test_every_option_is_tried():
    """That of every function with operands: a new one needs values in the grid above."""
    for module in MODULES:
        for name in getattr(module, "__all__", dir(module)):
            thing = getattr(module, name)
            if not inspect.isfunction(thing) or name in WITHOUT or name.startswith("_"):
                continue
            options = {p.name for p in inspect.signature(thing).parameters.values() if p.kind is p.KEYWORD_ONLY} - PLAIN
            tried = {option for _, given in GRIDS.get(name, ()) for option in given}
            assert options <= tried | {"prepend", "append", "weights", "scale"}, (name, options - tried)
