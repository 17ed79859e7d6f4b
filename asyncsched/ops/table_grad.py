"""The rows that only derivatives need."""

from __future__ import annotations

from collections.abc import Iterator

from . import kernels_grad as k
from . import rules_grad as rules
from .row import Row


def gradient_rows() -> Iterator[Row]:
    """All of them, each after the operation it is the transpose or the gradient of."""
    for name, kernel, rule, doc in (
        ("scatter", k.scatter, rules.scatter, "Zeros, with elements added where an index says."),
        ("scatter_along_axis", k.scatter_along_axis, rules.scatter_along_axis, "The same, at indices on an axis."),
        ("cumulative_prod_gradient", k.cumulative_prod_gradient, rules.cumulative_prod_gradient, "As it says."),
    ):
        yield Row(name, kernel, rule, out=True, doc=doc)
