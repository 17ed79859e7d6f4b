"""Arguments for each operation of the table: what it takes by default, or what a row here says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from ..ops.index_keys import TENSOR
from ..ops.op import resolve
from ..ops.table import TABLE

Given = tuple[Sequence[Any], Mapping[str, Any]]  # operands, and options
_MOST: Final = 3  # operands that are tried where no row says more

_X, _Y, _Z = np.random.default_rng(0).uniform(0.3, 0.9, (_MOST, 8, 8)).astype("f4")
_AT = np.arange(8) * 3 % 8  # whole numbers, for places
_ROW, _MASK, _DEFINITE = _X[0], _X > 0.6, _X @ _X.T + np.eye(8, dtype="f4")
_IMAGES, _POOLED, _KERNEL = _X.reshape(1, 1, 8, 8), _Y[:2].reshape(1, 1, 4, 4), _Y.ravel()[:9].reshape(1, 1, 3, 3)
_HEADS, _PACKED = [x.reshape(4, 4, 4) for x in (_X, _Y, _Z)], np.concatenate([_X.ravel(), _Y.ravel(), _Z.ravel()])
_SHAPES: Final = ((4, 4, 4),) * 3  # of queries, keys and values, packed one behind the other
_WINDOWS: Final = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
_POOL: Final = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
_SMOOTH: Final = {"ignore_index": 3, "label_smoothing": 0.1}
_DRAWN: Final = {"shape": (8, 8), "dtype": np.dtype("f4")}
_PLACES: Final = {"shape": (8, 8), "key": (TENSOR,)}
_NORMAL: Final = {"method": "normal", "named": (("loc", 1.0), ("scale", 2.0), ("size", (8, 8))), "tensors": ()}

# By names of operations. They have no tensor among their operands where none is needed.
ROWS: Final[Mapping[str, Given]] = {
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift": ((_AT, _AT), {}),
    "bitwise_invert": ((_AT,), {}),
    "acosh": ((_X + 1,), {}),
    "clip": ((_X, 0.4, 0.6), {}),
    "astype": ((_X,), {"dtype": np.dtype("f8")}),
    "cumulative_sum cumulative_prod overlap_add": ((_X,), {"axis": 0}),
    "cumulative_prod_gradient": ((_X, _Y), {"axis": 0}),
    "accurate_sum": ((_X,), {"axis": (0,)}),
    "tensordot": ((_X, _Y), {"axes": 1}),
    "einsum": ((_X, _Y), {"subscripts": "ij,kj->ik"}),
    "outer": ((_ROW, _ROW), {}),
    "cholesky": ((_DEFINITE,), {}),
    "matrix_power": ((_X,), {"n": 3}),
    "diagonal": ((_X,), {"offset": 0}),
    "cross": ((_X[:, :3], _Y[:, :3]), {"axis": -1}),
    "qr": ((_X,), {"mode": "reduced"}),
    "svd": ((_X,), {"full_matrices": False}),
    "fft ifft rfft irfft": ((_X,), {"n": None, "axis": -1, "norm": "backward"}),
    "fftn ifftn rfftn irfftn": ((_X,), {"s": None, "axes": None, "norm": "backward"}),
    "broadcast_to": ((_X,), {"shape": (2, 8, 8)}),
    "expand_dims": ((_X,), {"axis": 0}),
    "reshape": ((_X,), {"shape": (4, 16)}),
    "repeat": ((_X,), {"repeats": 3, "axis": 0}),
    "repeat_each": ((_X, _AT), {"axis": 0}),
    "tile": ((_X,), {"repetitions": (2, 1)}),
    "roll": ((_X,), {"shift": 2, "axis": 0}),
    "getitem": ((_X,), {"key": (1,)}),
    "getitem_advanced": ((_X, _AT), {"key": (TENSOR,)}),
    "setitem": ((_X, _Y, _AT), {"key": (TENSOR,)}),
    "last_written": ((_AT,), _PLACES),
    "scatter": ((_X, _AT), _PLACES),
    "scatter_along_axis": ((_X, np.argsort(_Y, axis=1)), {"shape": (8, 8), "axis": 1}),
    "take": ((_X, _AT), {"axis": 0}),
    "take_along_axis": ((_X, np.argsort(_Y, axis=1)), {"axis": 1}),
    "searchsorted": ((np.sort(_ROW), _Y), {"side": "left"}),
    "embedding": ((_X, _AT), {}),
    "unique_packed": ((_X,), {"index": True, "inverse": True, "counts": True}),
    "isin": ((_AT, _AT[:3]), {"invert": False}),
    "zeros ones": ((), _DRAWN),
    "full": ((2.5,), _DRAWN),
    "listed": ((1.0, 2.0), {"shape": (2,), "dtype": np.dtype("f4")}),
    "arange": ((), {"start": 0, "stop": 5, "step": 1, "dtype": None}),
    "linspace": ((0, 1), {"num": 7, "dtype": None, "endpoint": True}),
    "eye": ((), {"n_rows": 3, "n_cols": 3, "k": 0, "dtype": np.dtype("f4")}),
    "draw": ((), {"start": (1, 2, 3, 4, 0, 0), **_NORMAL, "shape": (8, 8), "dtype": np.dtype("f8")}),
    "draw_seeded": ((7,), {**_NORMAL, "shape": (8, 8), "dtype": np.dtype("f8")}),
    "dropout": ((_X, 5), {"p": 0.25}),
    "uniform": ((5,), {**_DRAWN, "low": -2.0, "high": 3.0}),
    "normal": ((5,), _DRAWN),
    "interp": ((_X, np.sort(_ROW), _ROW), {"left": None, "right": None, "period": None}),
    "gradient": ((_X, 1.0), {"axis": 1, "edge_order": 1}),
    "convolve": ((_ROW, _ROW), {"mode": "full"}),
    "pad": ((_X,), {"pad_width": ((2, 1), (0, 2)), "mode": "edge"}),
    "sliding_window_view": ((_X,), {"window_shape": (2,), "axis": (0,)}),
    "quantile": ((_X,), {"q": 0.3, "form": None, "percent": False, "axis": -1, "keepdims": False, "method": "linear"}),
    "argpartition": ((_X,), {"kth": 1}),
    "topk": ((_X,), {"k": 2, "axis": -1, "largest": True, "sorted": True}),
    "bincount": ((_AT,), {"minlength": 9}),
    "digitize": ((_X, np.sort(_ROW)), {"right": False}),
    "histogram": ((_X,), {"bins": 7, "low": 0.1, "high": 1, "density": False, "weighted": False}),
    "observation_weights": ((_AT, _ROW), {"names": ("fweights", "aweights")}),
    "clip_parts": ((_X.astype("c8"),), {}),
    "axpby axpby_squared": ((_X, _Y, 0.5, -2.0), {}),
    "adam_step": ((_X, _Y, _Z, np.array(3), 0.1, 0.01, 0.9, 0.99, 1e-8), {}),
    "leaky_relu": ((_X,), {"negative_slope": 0.1}),
    "softplus": ((_X,), {"beta": 2.0, "threshold": 0.5}),
    "gelu": ((_X,), {"approximate": "tanh"}),
    "gelu_backward": ((_X, _Y), {"approximate": "tanh"}),
    "layer_norm": ((_X, _ROW, _Y[0]), {"eps": 1e-5}),
    "layer_norm_input_grad": ((_X, _ROW, _Y), {"eps": 1e-5}),
    "layer_norm_weight_grad": ((_X, _Y), {"eps": 1e-5, "shape": (8,)}),
    "cross_entropy": ((_X, _AT), {"reduction": "mean", **_SMOOTH}),
    "cross_entropy_backward": ((_X, _AT, _X[0, 0]), {"reduction": "mean", **_SMOOTH}),
    "class_numbers": ((_AT,), {"classes": 8, "ignore_index": -100}),
    "attention": ((_PACKED, 0), {"shapes": _SHAPES, "causal": False, "scale": None}),
    "attention_unpacked": ((*_HEADS, _MASK[:4, :4]), {"causal": True, "scale": None}),
    "attention_backward": ((_PACKED, 0, _HEADS[0]), {"shapes": _SHAPES, "causal": True, "scale": 0.5}),
    "conv2d": ((_IMAGES, _KERNEL), _WINDOWS),
    "conv2d_input_grad": ((_IMAGES, _KERNEL), {"shape": _IMAGES.shape, **_WINDOWS}),
    "conv2d_weight_grad": ((_IMAGES, _IMAGES), {"shape": _KERNEL.shape, **_WINDOWS}),
    "max_pool2d": ((_IMAGES,), _POOL),
    "max_pool2d_backward": ((_IMAGES, _POOLED, _POOLED), _POOL),
    "max_pool2d_gather": ((_IMAGES, _POOLED, _IMAGES), _POOL),
}
_BY_NAME: Final[Mapping[str, Given]] = {name: row for names, row in ROWS.items() for name in names.split()}


def arguments(name: str) -> Given:
    """Operands and options of an operation. Without a row: as many arrays as it takes, and no options."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    arrays = (_X, _Y, _Z)
    for count in range(1, _MOST):
        with suppress(Exception):
            resolve(TABLE[name], np)(*arrays[:count])
            return arrays[:count], {}
    return arrays, {}
