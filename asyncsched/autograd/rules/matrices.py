"""Derivatives of linear algebra.

Decompositions have derivatives for real matrices. Vectors of equal values have none: the result is infinite or NaN.
Each of several results is recorded by itself, with all results among the operands, after its own; `call.options` has
the number of the result as `part`. The composed rules compute the results again, so derivatives of every order follow.
The formulas are those of M. Giles, "An extended collection of matrix derivative results" (2008), of S. F. Walter and L.
Lehmann (arXiv:1009.6112) for `qr`, and of J. Townsend (2016) for `svd`.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from ...tensors import functions as f
from ...tensors.functions import linalg
from ...tensors.functions._common import op
from ...tensors.tensor import Tensor
from .along_axes import divisor, over_rows, reduced_of, shared, spread
from .common import Rules, along, scatter, wide


def _cofactors(g: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """The gradient of `cofactors`, only for regular matrices: `inv` raises for others."""
    inverse = linalg.inv(x).mT
    return f.sum(g * out, axis=(-2, -1), keepdims=True) * inverse - out @ g.mT @ inverse


def _solve_first(g: Tensor, x: Tensor, out: Tensor, call: Any) -> Tensor:
    if _of_a_vector(call):
        g, out = g[..., None], out[..., None]
    return -(linalg.solve(x.mT, g) @ out.mT)


def _solve_second(g: Tensor, x: Tensor, call: Any) -> Tensor:
    return linalg.solve(x.mT, g[..., None])[..., 0] if _of_a_vector(call) else linalg.solve(x.mT, g)


def _of_a_vector(call: Any) -> bool:
    return len(call.metas[1].shape) == 1


def _diagonal(g: Tensor, call: Any) -> Tensor:
    """Spread along rows or columns, cut or padded to the matrix, with all but the diagonal set to zero."""
    *batch, n, m = call.metas[0].shape
    offset, k = call.options["offset"], g.shape[-1]
    below = offset < 0
    length = m if below else n  # columns or rows, counted along the diagonal from its first element
    line = scatter(g, along(-1, g.ndim, slice(0, k)), (*batch, length))
    whole = f.broadcast_to(line[..., None, :] if below else line[..., None], (*batch, n, m))
    return f.tril(f.triu(whole, k=offset), k=offset)


def _vector_norm(g: Tensor, x: Tensor, out: Tensor, call: Any) -> Tensor:
    """The gradient of each order; 0 for the order 0, which counts, and at elements that are 0.

    That of the largest or smallest magnitude goes to the elements that have it, in equal shares.
    """
    order = call.options["ord"]
    if order == 0:
        return f.zeros_like(x)
    if abs(order) == inf:
        mask = f.abs(x) == spread(out, call)
        return shared(g, mask, call) * mask * f.sign(x)
    if order == 1:
        return spread(g, call) * f.sign(x)
    if x.dtype == np.float16:  # the norm may be too large for it, and the gradient is not
        x = wide(x)
        out = op("vector_norm", x, **call.options)
    ratio = x / divisor(spread(out, call), x, reduced_of(call))
    if order != 2:
        ratio = f.sign(x) * f.abs(f.where(x == 0, 1, ratio)) ** (order - 1)
    if order < 0:  # the norm is 0 if one element is, whatever the others are
        ratio = f.where(f.all(x, axis=reduced_of(call), keepdims=True), ratio, 0)
    return spread(g, call) * ratio


def _matrix_norm(g: Tensor, x: Tensor, out: Tensor, call: Any) -> Tensor:
    """The gradient of each order. Where several singular values or sums are extreme, each gets an equal share."""
    order = call.options["ord"]
    call = call._replace(options={**call.options, "axis": (-2, -1)})
    if order in (None, "fro"):
        options = {"axis": (-2, -1), "keepdims": call.options["keepdims"], "ord": 2}
        return _vector_norm(g, x, out, call._replace(options=options))
    g = spread(g, call)
    if order in (2, -2, "nuc"):
        u, values, vh = linalg.svd(x, full_matrices=False)
        each = f.ones_like(values) if order == "nuc" else _extreme(values, -1, largest=order > 0)
        return (u * (g * each[..., None, :])) @ vh
    sums = f.sum(f.abs(wide(x)), axis=-2 if abs(order) == 1 else -1, keepdims=True)
    return g * _extreme(sums, (-2, -1), largest=order > 0) * f.sign(x)


def _extreme(x: Tensor, axis: Any, *, largest: bool) -> Tensor:
    """The share of each element in the largest or smallest: 0, or 1 over how many are equal to it."""
    x = x.detach()
    mask = x == (f.max if largest else f.min)(x, axis=axis, keepdims=True)
    return mask / f.sum(mask, axis=axis, keepdims=True, dtype=x.dtype)


def _cholesky(g: Tensor, out: Tensor, call: Any) -> Tensor:
    lower, g = (out.mT, g.mT) if call.options["upper"] else (out, g)
    inner = lower.mT @ f.tril(g)
    inner = (f.tril(inner) + f.tril(inner, k=-1)) * 0.5
    found = linalg.solve(lower.mT, linalg.solve(lower.mT, inner).mT)
    return (found + found.mT) * 0.5


def _slogdet(g: Tensor, operands: tuple[Tensor, ...], call: Any) -> Tensor:
    x = operands[0]
    return f.zeros_like(x) if call.options["part"] == 0 else f.expand_dims(g, axis=(-2, -1)) * linalg.inv(x).mT


def _eigh(g: Tensor, operands: tuple[Tensor, ...], call: Any) -> Tensor:
    _, values, vectors = operands
    if call.options["part"] == 0:
        return (vectors * g[..., None, :]) @ vectors.mT
    return vectors @ _over_differences(vectors.mT @ g, values) @ vectors.mT


def _eigvalsh(g: Tensor, x: Tensor) -> Tensor:
    vectors = linalg.eigh(x).eigenvectors
    return (vectors * g[..., None, :]) @ vectors.mT


def _qr(g: Tensor, operands: tuple[Tensor, ...], call: Any) -> Tensor:
    x, q, r = operands
    n, m = call.metas[0].shape[-2:]
    if n < m or (n > m and call.options["mode"] == "complete"):
        raise NotImplementedError(f"qr: no derivative is known for {x.shape} with mode={call.options['mode']!r}")
    inner = -(g.mT @ q) if call.options["part"] == 0 else r @ g.mT
    found = q @ (f.tril(inner) + f.tril(inner, k=-1).mT)
    found = found + g if call.options["part"] == 0 else found
    return linalg.solve(r, found.mT).mT


def _svd(g: Tensor, operands: tuple[Tensor, ...], call: Any) -> Tensor:
    _, u, s, vh = operands
    n, m = call.metas[0].shape[-2:]
    k = min(n, m)
    if call.options["part"] == 1:
        return (u[..., :k] * g[..., None, :]) @ vh[..., :k, :]
    if call.options["full_matrices"] and n != m:
        raise NotImplementedError("svd: no derivative is known of vectors with full_matrices=True: use False")
    if call.options["part"] == 2:  # as for the transposed matrix
        return _svd_left(g.mT, vh.mT, s, u.mT).mT
    return _svd_left(g, u, s, vh)


def _svd_left(g: Tensor, u: Tensor, s: Tensor, vh: Tensor) -> Tensor:
    turned = u.mT @ g
    found = u @ (_over_differences(turned - turned.mT, s * s) * s[..., None, :])
    if u.shape[-2] != u.shape[-1]:
        found = found + (g - u @ turned) / s[..., None, :]
    return found @ vh


def _svdvals(g: Tensor, x: Tensor) -> Tensor:
    u, _, vh = linalg.svd(x, full_matrices=False)
    return (u * g[..., None, :]) @ vh


def _over_differences(x: Tensor, values: Tensor) -> Tensor:
    """Each element divided by the value of its column minus that of its row; 0 on the diagonal."""
    apart = values[..., None, :] - values[..., None]
    unit = f.tril(f.triu(f.full_like(apart.detach(), 1)))
    return x * (1 - unit) / (apart + unit)


MATRICES: Rules = {
    "inv": (lambda g, out: -(out.mT @ g @ out.mT),),
    "det": (lambda g, x: f.expand_dims(g, (-2, -1)) * op("cofactors", x),),
    "cofactors": (_cofactors,),
    "solve": (_solve_first, _solve_second),
    "diagonal": (_diagonal,),
    "outer": (lambda g, y: over_rows(g.mT, y[:, None])[:, 0], lambda g, x: over_rows(x[:, None], g)[0]),
    "cross": (
        lambda g, y, call: linalg.cross(y, g, axis=call.options["axis"]),
        lambda g, x, call: linalg.cross(g, x, axis=call.options["axis"]),
    ),
    "vector_norm": (_vector_norm,),
    "matrix_norm": (_matrix_norm,),
    "cholesky": (_cholesky,),
    "eigh": (_eigh,),
    "eigvalsh": (_eigvalsh,),
    "qr": (_qr,),
    "slogdet": (_slogdet,),
    "svd": (_svd,),
    "svdvals": (_svdvals,),
}
ANEW: Rules = {
    "eigh": (lambda g, operands, call: _eigh(g, (operands[0], *linalg.eigh(operands[0])), call),),
    "qr": (lambda g, operands, call: _qr(g, (operands[0], *linalg.qr(operands[0], mode=call.options["mode"])), call),),
    "svd": (lambda g, operands, call: _svd(g, (operands[0], *linalg.svd(operands[0], full_matrices=False)), call),),
}
