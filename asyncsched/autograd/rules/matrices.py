"""Derivatives of linear algebra; of norms, the root of the sum of squares alone. For more see `decompositions`."""

from __future__ import annotations

from typing import Any

from ...tensors import functions as f
from ...tensors.functions._common import op
from ...tensors.tensor import Tensor
from .common import Rules, along, scatter


def _matrices(g: Tensor) -> Tensor:
    """Numbers as matrices of one element, to broadcast."""
    return f.expand_dims(g, (-2, -1))


def _cofactors(g: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Of regular matrices alone: `inv` says so where one is not."""
    inverse = f.linalg.inv(x).mT
    return f.sum(g * out, axis=(-2, -1), keepdims=True) * inverse - out @ g.mT @ inverse


def _solve_first(g: Tensor, x: Tensor, out: Tensor, call: Any) -> Tensor:
    if _of_a_vector(call):
        g, out = g[..., None], out[..., None]
    return -(f.linalg.solve(x.mT, g) @ out.mT)


def _solve_second(g: Tensor, x: Tensor, call: Any) -> Tensor:
    return f.linalg.solve(x.mT, g[..., None])[..., 0] if _of_a_vector(call) else f.linalg.solve(x.mT, g)


def _of_a_vector(call: Any) -> bool:
    return len(call.metas[1].shape) == 1


def _diagonal(g: Tensor, call: Any) -> Tensor:
    """Spread along rows or columns, cut or filled up to the matrix, and all but the diagonal set to zero."""
    *batch, n, m = call.metas[0].shape
    offset, k = call.options["offset"], g.shape[-1]
    below = offset < 0
    length = m if below else n  # what counts along the diagonal from its first element: columns, or rows
    line = scatter(g, along(-1, g.ndim, slice(0, k)), (*batch, length))
    whole = f.broadcast_to(line[..., None, :] if below else line[..., None], (*batch, n, m))
    return f.tril(f.triu(whole, k=offset), k=offset)


def _trace(g: Tensor, call: Any) -> Tensor:
    offset = call.options["offset"]
    return f.tril(f.triu(f.broadcast_to(_matrices(g), call.metas[0].shape), k=offset), k=offset)


def _norm(g: Tensor, x: Tensor, out: Tensor, call: Any) -> Tensor:
    """The gradient of the root of the sum of squares; 0 where that root is 0."""
    if call.options["ord"] not in (2, "fro", None):
        raise NotImplementedError(f"no derivative of the norm of order {call.options['ord']!r} is known")
    axis = call.options.get("axis", (-2, -1))
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if not call.options["keepdims"]:
        kept = [1 if i in [a % x.ndim for a in axes] else n for i, n in enumerate(x.shape)]
        g, out = g.reshape(kept), out.reshape(kept)
    return g * x / f.where(out == 0, 1, out)


MATRICES: Rules = {
    "inv": (lambda g, out: -(out.mT @ g @ out.mT),),
    "det": (lambda g, x: _matrices(g) * op("cofactors", x),),
    "cofactors": (_cofactors,),
    "solve": (_solve_first, _solve_second),
    "diagonal": (_diagonal,),
    "trace": (_trace,),
    "outer": (lambda g, y: g @ y, lambda g, x: x @ g),
    "cross": (
        lambda g, y, call: f.linalg.cross(y, g, axis=call.options["axis"]),
        lambda g, x, call: f.linalg.cross(g, x, axis=call.options["axis"]),
    ),
    "vector_norm": (_norm,),
    "matrix_norm": (_norm,),
}
