"""The parts of the declarations in `kernels`, with short forms for what most operations state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from .cost_model import Cost
from .meta import Meta, meta
from .op import Blas, Bound, Cut, Inferred, Kernel, Op, Operand, Options, ScalarCode, Shared, UfuncCall, resolve

__all__ = [
    "PRODUCT_BOUND", "Blas", "Bound", "Cost", "Cut", "Inferred", "Kernel", "Meta", "Op", "Operand", "Options",
    "ScalarCode", "Shared", "UfuncCall", "bounded", "elementwise", "in_place", "meta", "operation", "product",
    "resolve", "with_out", "with_products",
]  # fmt: skip

PRODUCT_BOUND = Bound(3e-6, 3e-5)  # for sums of some thousand products; in double precision much smaller


def operation(kernel: Any, rule: Any, doc: str, cost: float | None = None, *, name: str = "", **more: Any) -> Op:
    """An operation. Its default name is the kernel's."""
    name = name or (kernel if isinstance(kernel, str) else kernel.__name__)
    return Op(name, kernel, rule, doc=doc, element_seconds=cost, **more)


# An operation whose kernel takes `out=`.
with_out: Callable[..., Op] = partial(operation, out=True)
# The same, with BLAS at work on small products inside.
with_products: Callable[..., Op] = partial(with_out, blas=Blas.INSIDE)
# An elementwise operation: each result depends only on the elements at its place. One launch on a card.
elementwise: Callable[..., Op] = partial(with_out, cut=Cut.BY_ELEMENTS, launches=1)
# The same, whose result may be written over an operand: no element of that is read once its result is written.
in_place: Callable[..., Op] = partial(elementwise, inplace=True)


def bounded(op: Op, exact: str | Kernel, relative: float, absolute: float) -> Op:
    """The operation, with `exact` as its kernel inside `exact()`. The bounds say how far float32 results may differ."""
    return replace(op, exact=replace(op, kernel=exact), bound=Bound(relative, absolute))


def product(op: Op, cut: Cut) -> Op:
    """A product that may be cut for several threads; not inside `exact()`: sums in parts may round differently."""
    whole = replace(op, blas=Blas.PRODUCT)
    return replace(whole, cut=cut, exact=whole, bound=PRODUCT_BOUND)
