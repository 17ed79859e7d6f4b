"""The parts of the declarations in `kernels`, with short forms for what most operations state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .cost_model import Cost
from .meta import Meta, meta
from .op import Blas, Bound, Cut, Inferred, Kernel, Op, Operand, Options, ScalarCode, Shared, UfuncCall, resolve

__all__ = [
    "PRODUCT_BOUND", "Blas", "Bound", "Cost", "Cut", "Inferred", "Kernel", "Meta", "Op", "Operand", "Options",
    "ScalarCode", "Shared", "UfuncCall", "bounded", "elementwise", "meta", "product", "resolve", "with_out",
    "with_products",
]  # fmt: skip

PRODUCT_BOUND = Bound(3e-6, 3e-5)  # for sums of some thousand products; in double precision much smaller


def with_out(kernel: Any, rule: Any, doc: str, cost: float | None = None, *, name: str = "", **more: Any) -> Op:
    """An operation whose kernel takes `out=`. Its default name is the kernel's."""
    name = name or (kernel if isinstance(kernel, str) else kernel.__name__)
    return Op(name, kernel, rule, doc=doc, element_seconds=cost, out=True, **more)


def with_products(kernel: Any, rule: Any, doc: str, cost: float | None = None, **more: Any) -> Op:
    """An operation as by `with_out`, with BLAS at work on small products inside."""
    return with_out(kernel, rule, doc, cost, blas=Blas.INSIDE, **more)


def elementwise(kernel: Any, rule: Any, doc: str, cost: float | None = None, **more: Any) -> Op:
    """An elementwise operation: each result depends only on the elements at its place, and may be written over one."""
    return with_out(kernel, rule, doc, cost, **{"inplace": True, "cut": Cut.BY_ELEMENTS, "launches": 1, **more})


def bounded(op: Op, exact: str | Kernel, relative: float, absolute: float) -> Op:
    """The operation, with `exact` as its kernel inside `exact()`. The bounds say how far float32 results may differ."""
    return replace(op, exact=replace(op, kernel=exact), bound=Bound(relative, absolute))


def product(op: Op, cut: Cut) -> Op:
    """A product that may be cut for several threads; not inside `exact()`: sums in parts may round differently."""
    whole = replace(op, blas=Blas.PRODUCT)
    return replace(whole, cut=cut, exact=whole, bound=PRODUCT_BOUND)
