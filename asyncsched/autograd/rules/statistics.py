"""Derivatives of statistics. Those of `cov`, `corrcoef` and `topk` follow from the operations that they consist of."""

from __future__ import annotations

from math import nan, prod
from typing import Any

import numpy as np

from ...ops.kernels.order_statistics import parts_of, place_of
from ...tensors import functions as f
from ...tensors.functions._common import op
from ...tensors.tensor import Tensor, listed
from .along_axes import full, prod_gradient, reduced_of, root_of_variance, shared, spread
from .common import Rules, reordered, wide


def _not_nan(x: Tensor) -> Tensor:
    return f.logical_not(f.isnan(x))


def _filled(x: Tensor, fill: float) -> Tensor:
    return f.where(f.isnan(x), fill, x)


def _mean(g: Tensor, x: Tensor, call: Any) -> Tensor:
    """NaN elements get 0; or NaN, if there are no others."""
    there = _not_nan(x)
    return shared(g, there, call) * there


def _deviation(g: Tensor, x: Tensor, out: Tensor, call: Any) -> Tensor:
    return root_of_variance("nanstd", wide(g) / _free(x, call), x, out, _deviations(x, call), call)


def _deviations(x: Tensor, call: Any) -> Tensor:
    """From the mean; 0 for NaN elements."""
    x = wide(x)
    return f.where(f.isnan(x), 0, x - f.nanmean(x, reduced_of(call), keepdims=True))


def _free(x: Tensor, call: Any) -> Tensor:
    """The number by which the sum of squared deviations is divided; NaN if none is free."""
    count = f.sum(_not_nan(x), axis=reduced_of(call), dtype=wide(x).dtype, keepdims=call.options.get("keepdims", False))
    free = count - call.options.get("correction", 0)
    return f.where(free <= 0, nan, free)


def _extreme(g: Tensor, x: Tensor, out: Tensor, call: Any) -> Tensor:
    """In equal shares to the extreme elements. NaN elements get 0, even if there are no others."""
    mask = x == spread(out, call)
    return f.where(mask, shared(g, mask, call), 0)


def _quantile(g: Tensor, x: Tensor, call: Any) -> Tensor:
    """To the two elements around each result, by their weights; for a line with NaN, to the last NaN."""
    parts = parts_of(*[call.options[name] for name in ("q", "form", "percent")])
    return _to_places(g, x, call, parts, call.options["method"])


def _to_places(g: Tensor, x: Tensor, call: Any, parts: list[float], method: str) -> Tensor:
    axes, shape = reduced_of(call), call.metas[0].shape
    kept = tuple([i for i in range(len(shape)) if i not in axes])
    lead, n = [shape[i] for i in kept], prod([shape[i] for i in axes])
    lines = f.permute_dims(x, kept + axes).reshape(*lead, n)
    if not n or not parts:
        return f.zeros_like(x)
    order = f.argsort(lines.detach())
    places = [place_of(n, part, method) for part in parts]
    nearer, found_at = [near for _, _, near in places], [[at for at, _, _ in places], [at for _, at, _ in places]]
    weights = listed(np.array([[1 - near for near in nearer], nearer], g.dtype).ravel(), g)
    chosen = f.take(order, listed(np.array(found_at, np.intp).ravel(), g), axis=-1)
    chosen = f.where(f.isnan(f.max(lines.detach(), axis=-1, keepdims=True)), order[..., -1:], chosen)
    each = f.moveaxis(g.reshape(len(parts), *lead), 0, -1)
    each = f.concat([each, each], axis=-1) * weights
    found = op("scatter_along_axis", each, chosen, shape=(*lead, n), axis=-1)
    return reordered(found.reshape(*[shape[i] for i in kept + axes]), kept + axes)


def _weights(g: Tensor, operands: tuple[Any, ...], call: Any) -> Tensor:
    return g * operands[1 - call.place] if len(operands) > 1 else g


STATISTICS: Rules = {
    "nansum": (lambda g, x, call: full(g, call) * _not_nan(x),),
    "nanprod": (lambda g, x, call: prod_gradient(g, _filled(x, 1), call) * _not_nan(x),),
    "nanmax": (_extreme,),
    "nanmin": (_extreme,),
    "nanmean": (_mean,),
    "nanvar": (lambda g, x, call: _deviations(x, call) * spread(wide(g) * 2 / _free(x, call), call),),
    "nanstd": (_deviation,),
    "median": (lambda g, x, call: _to_places(g, x, call, [0.5], "linear"),),
    "quantile": (_quantile,),
    "observation_weights": (_weights,),
}
