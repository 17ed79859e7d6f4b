"""The rows that only derivatives and optimisers need."""

from __future__ import annotations

from collections.abc import Iterator

from . import kernels, rules
from .row import Row


def gradient_rows() -> Iterator[Row]:
    """All of them."""
    k, r = kernels.gradients, rules.gradients
    yield Row("scatter", k.scatter, r.scatter, out=True, doc="Zeros, with elements added where an index says.")
    doc = "Zeros, with each element added at its index on an axis."
    yield Row("scatter_along_axis", k.scatter_along_axis, r.scatter_along_axis, out=True, doc=doc)
    rule, doc = r.cumulative_prod_gradient, "The gradient of running products."
    yield Row("cumulative_prod_gradient", k.cumulative_prod_gradient, rule, out=True, doc=doc)
    yield from _updates()


def _updates() -> Iterator[Row]:
    k, update = kernels.optim, rules.gradients.update
    yield Row("axpby", k.axpby, update, out=True, inplace=True, doc="a x + b y, where a and b are numbers.")
    yield Row("axpby_squared", k.axpby_squared, update, out=True, inplace=True, doc="The same with the square of y.")
    yield Row("adam_step", k.adam_step, update, out=True, inplace=True, doc="A step of Adam.")
