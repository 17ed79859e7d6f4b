"""Products that sum over axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cost_model import Cost
from ..declare import product, with_out
from ..op import Op
from ..rules import linalg as rules
from ..traits import Blas, Cut
from . import releasing_gil


def vecdot(xp: Any, x: Any, y: Any, *, axis: int = -1, out: Any = None) -> Any:
    """The product of vectors along an axis. CuPy has none of that name, so there it is one of matrices."""
    if xp is np:
        return releasing_gil.vecdot(xp, x, y, axis=axis, out=out)
    x, y = xp.moveaxis(x, axis, -1).conj(), xp.moveaxis(y, axis, -1)
    return xp.matmul(x[..., None, :], y[..., None])[..., 0, 0]


def einsum(xp: Any, *arrays: Any, subscripts: str) -> Any:
    """Products summed over axes. What would be a view of one operand is copied: the result is an array of its own."""
    found = xp.einsum(subscripts, *arrays)
    return found.copy(order="K") if len(arrays) == 1 else found


_MATMUL = with_out(
    "matmul", rules.matmul, "The matrix product.", Cost.MULTIPLICATION, releasing_gil=releasing_gil.matmul
)
OPS = (
    product(_MATMUL, Cut.PRODUCT_NN),
    with_out(vecdot, rules.vecdot, "The product of vectors along an axis.", Cost.MULTIPLICATION, blas=Blas.INSIDE),
    Op(
        "tensordot",
        "tensordot",
        rules.tensordot,
        doc="The sum of products over several axes.",
        element_seconds=Cost.MULTIPLICATION,
    ),
    Op("dot", "dot", rules.dot, doc="NumPy's `dot`."),
    Op("einsum", einsum, rules.einsum, doc="Products summed over the axes that a text names."),
)
