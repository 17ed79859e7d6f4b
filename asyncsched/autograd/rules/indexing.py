"""Derivatives of indexing: what was taken from a place goes back there, and what was taken twice is summed."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from numpy.lib.array_utils import normalize_axis_index

from ...ops.keys import TENSOR, Slice
from ...ops.table import TABLE
from ...tensor import Tensor, apply


def _getitem(g: Tensor, indices: tuple[Tensor, ...], call: Any) -> Tensor:
    """Of an index without tensors too."""
    return _scatter(g, indices, call.metas[0].shape, call.options["key"])


def _take(g: Tensor, y: Any, call: Any) -> Tensor:
    axis, shape = call.options.get("axis"), call.metas[0].shape or (1,)
    part, indices = (TENSOR, (y,)) if isinstance(y, Tensor) else (int(y), ())
    if axis is None:
        return _scatter(g, indices, (prod(shape),), (part,)).reshape(shape)
    return _scatter(g, indices, shape, (Slice(None, None, None),) * normalize_axis_index(axis, len(shape)) + (part,))


def _scatter(g: Tensor, indices: tuple[Any, ...], shape: tuple[int, ...], key: Any) -> Tensor:
    return apply(TABLE["scatter"], (g, *indices), {"shape": shape, "key": key})


def _gather(g: Tensor, indices: tuple[Tensor, ...], call: Any) -> Tensor:
    return apply(TABLE["getitem_advanced" if indices else "getitem"], (g, *indices), {"key": call.options["key"]})


def _take_along_axis(g: Tensor, y: Tensor, call: Any) -> Tensor:
    options = {"shape": call.metas[0].shape, "axis": call.options.get("axis", -1)}
    return apply(TABLE["scatter_along_axis"], (g, y), options)


def _setitem(g: Tensor, indices: tuple[Tensor, ...], call: Any) -> Tensor:
    """What was written over has no part in the result."""
    return apply(TABLE["setitem"], (g, 0, *indices), {"key": call.options["key"]})


INDEXING: dict[str, tuple[Callable[..., Tensor] | None, ...]] = {
    "getitem": (_getitem,),
    "getitem_advanced": (_getitem, None),
    "setitem": (_setitem, _gather, None),
    "take": (_take, None),
    "take_along_axis": (_take_along_axis, None),
    "scatter": (_gather, None),
    "scatter_along_axis": (
        lambda g, y, call: apply(TABLE["take_along_axis"], (g, y), {"axis": call.options["axis"]}),
        None,
    ),
}
