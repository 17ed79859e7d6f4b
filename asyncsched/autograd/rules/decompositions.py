"""Derivatives of decompositions, of real matrices. Where values are equal, vectors have none: it is infinite or NaN.

Several results are recorded one by one, with all of them among the operands, after its own; `call.options`
has the number of the result as `part`. What is composed makes them anew, so that derivatives of every order follow.
The formulas are those of M. Giles, "An extended collection of matrix derivative results" (2008), of S. F. Walter and
L. Lehmann (arXiv:1009.6112) for `qr`, and of J. Townsend (2016) for `svd`.
"""

from __future__ import annotations

from typing import Any

from ...tensors import functions as f
from ...tensors.functions import linalg
from ...tensors.tensor import Tensor
from .common import Rules


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
    return vectors @ _apart(vectors.mT @ g, values) @ vectors.mT


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
        raise NotImplementedError("svd: vectors have a derivative with full_matrices=False only")
    if call.options["part"] == 2:  # as if of the transposed matrix
        return _svd_left(g.mT, vh.mT, s, u.mT).mT
    return _svd_left(g, u, s, vh)


def _svd_left(g: Tensor, u: Tensor, s: Tensor, vh: Tensor) -> Tensor:
    turned = u.mT @ g
    found = u @ (_apart(turned - turned.mT, s * s) * s[..., None, :])
    if u.shape[-2] != u.shape[-1]:
        found = found + (g - u @ turned) / s[..., None, :]
    return found @ vh


def _svdvals(g: Tensor, x: Tensor) -> Tensor:
    u, _, vh = linalg.svd(x, full_matrices=False)
    return (u * g[..., None, :]) @ vh


def _apart(x: Tensor, values: Tensor) -> Tensor:
    """Each element over the value of its column less that of its row; 0 on the diagonal."""
    apart = values[..., None, :] - values[..., None]
    unit = f.tril(f.triu(f.full_like(apart.detach(), 1)))
    return x * (1 - unit) / (apart + unit)


DECOMPOSITIONS: Rules = {
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
