"""Operands and options for every row of networks."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

Given = tuple[tuple[Any, ...], dict[str, Any]]
WINDOWS = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
POOL = {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 0)}
MEAN, EACH = {"reduction": "mean"}, {"reduction": "none"}


def network_rows_given(draw: Callable[..., np.ndarray], dtype: str, n: int) -> dict[str, list[Given]]:
    """By row; `draw(*shape, dtype=...)` makes the arrays, and `n` makes them large."""

    def r(*shape: int) -> np.ndarray:
        return draw(*shape, dtype=dtype)

    x, target, one = r(20 * n, 30), np.arange(20 * n) % 30, np.asarray(2, dtype)
    g, noise, drawn = x[::-1].copy(), r(50 * n, 100), {"shape": (50 * n, 100), "dtype": np.dtype(dtype)}
    images, kernel, grads, pooled = r(n, 3, 12, 14), r(4, 3, 3, 2), r(n, 4, 6, 12), r(n, 3, 6, 7)
    mask = np.tril(np.ones((8, 8), bool))
    shapes = ((3 * n, 8, 4), (3 * n, 6, 4), (3 * n, 6, 5))
    packed = r(sum(map(prod, shapes)))
    smooth = {"ignore_index": 3, "label_smoothing": 0.1}
    return {
        "relu": [((x,), {})],
        "relu_backward": [((x, g), {})],
        "sigmoid": [((x,), {})],
        "leaky_relu": [((x,), {"negative_slope": 0.1})],
        "softplus": [((x,), {"beta": 2.0, "threshold": 0.5})],
        "gelu": [((x,), {"approximate": a}) for a in ("none", "tanh")],
        "gelu_backward": [((x, g), {"approximate": a}) for a in ("none", "tanh")],
        "softmax": [((x,), {"log": log}) for log in (False, True)],
        "softmax_backward": [((x, g), {"log": log}) for log in (True, False)],
        "layer_norm": [((x, r(30), r(30)), {"eps": 1e-5})],
        "layer_norm_input_grad": [((x, r(30), g), {"eps": 1e-5})],
        "layer_norm_weight_grad": [((x, g), {"eps": 1e-5, "shape": (30,)})],
        "linear": [((x, r(7, 30), r(7)), {}), ((x, r(7, 30)), {})],
        "linear_weight_grad": [((r(20 * n, 7), x), {})],
        "accurate_sum": [((x,), {"axis": axis}) for axis in ((0,), (1,), (0, 1))]
        + [((images,), {"axis": (0, 2, 3)}), ((np.broadcast_to(x, (3, *x.shape)),), {"axis": (0, 1)})],
        "embedding": [((x, target[::2].copy()), {}), ((x, target.reshape(4, -1)), {})],
        "dropout": [((noise, 5), {"p": 0.25})],
        "uniform": [((5,), {**drawn, "low": -2.0, "high": 3.0})],
        "normal": [((5,), drawn)],
        "cross_entropy": [((x, target), {**how, **smooth}) for how in (MEAN, EACH)],
        "cross_entropy_backward": [((x, target, one), {**MEAN, **smooth})],
        "attention": [((packed, 0), {"shapes": shapes, "causal": False, "scale": None})],
        "attention_unpacked": [
            ((r(3 * n, 8, 4), r(3 * n, 6, 4), r(3 * n, 6, 5), mask[:, :6]), {"causal": True, "scale": None})
        ],
        "attention_backward": [((packed, 0, r(3 * n, 8, 5)), {"shapes": shapes, "causal": True, "scale": 0.5})],
        "conv2d": [((images, kernel, r(4)), WINDOWS)],
        "conv2d_input_grad": [((grads, kernel), {"shape": images.shape, **WINDOWS})],
        "conv2d_weight_grad": [((grads, images), {"shape": kernel.shape, **WINDOWS})],
        "max_pool2d": [((images,), POOL)],
        "max_pool2d_backward": [((images, pooled, pooled[::-1].copy()), POOL)],
        "max_pool2d_gather": [((images, pooled, images[::-1].copy()), POOL)],
    }
