"""Short forms of what most operations state: for the declarations in `kernels`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .op import Op
from .traits import Blas, Bound, Cut

_PRODUCT_BOUND = Bound(3e-6, 3e-5)  # of sums of some thousand products; in double precision it is much less


def with_out(kernel: Any, rule: Any, doc: str, cost: float | None = None, *, name: str = "", **more: Any) -> Op:
    """An operation whose kernel takes `out=`. It has its kernel's name unless one is given."""
    name = name or (kernel if isinstance(kernel, str) else kernel.__name__)
    return Op(name, kernel, rule, doc=doc, element_seconds=cost, out=True, **more)


def elementwise(kernel: Any, rule: Any, doc: str, cost: float | None = None, **more: Any) -> Op:
    """The same where an element of the result depends on the elements at its place alone, and may replace them."""
    return with_out(kernel, rule, doc, cost, **{"inplace": True, "cut": Cut.BY_ELEMENTS, **more})


def bounded(op: Op, kernel: Any, relative: float, absolute: float) -> Op:
    """The operation with a faster kernel, off by no more than this from its own in float32, and equal in all else."""
    return replace(op, kernel=kernel, exact=op, bound=Bound(relative, absolute), plans={}, kernels={})


def product(op: Op, cut: Cut) -> Op:
    """A product that may be cut for several threads. Inside `exact()` it is not: in parts, sums may round otherwise."""
    op = replace(op, blas=Blas.PRODUCT)
    return replace(op, cut=cut, exact=op, bound=_PRODUCT_BOUND, plans={}, kernels={})
