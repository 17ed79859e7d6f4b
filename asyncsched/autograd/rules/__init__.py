"""The table of derivatives: for each row of operations a function for each operand. How to write one: see the package.

A rule that only multiplies or sums is exact; ties of `maximum`, `max` and `abs` are settled where they are written.
"""

from __future__ import annotations

from collections.abc import Callable

from ...tensor import Tensor
from .along_axes import ALONG_AXES
from .elementwise import ELEMENTWISE
from .indexing import INDEXING
from .products import PRODUCTS
from .shapes import SHAPES

Partial = Callable[..., Tensor]

RULES: dict[str, tuple[Partial | None, ...]] = {**ELEMENTWISE, **ALONG_AXES, **PRODUCTS, **SHAPES, **INDEXING}
