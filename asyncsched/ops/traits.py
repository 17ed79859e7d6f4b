"""The traits that an operation may state beside its kernel and its rule: see the fields of `op.Op`."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple


class Cut(Enum):
    """Where an operation may be cut into parts for several threads. Each part is the operation, applied to slices."""

    WHOLE = "nowhere"
    BY_ELEMENTS = "anywhere: an element of the result depends only on the elements at its own place"
    BY_ROWS = "between rows of the last axis"
    BY_WEIGHT_ROWS = "between rows; a row is as many last axes as the second operand, a weight, has"
    # Products, named as in BLAS: N is for an operand as it is, T for a transposed one.
    PRODUCT_NN = "x1 x2: along rows of x1 and columns of x2"
    PRODUCT_NT = "x1 x2^T and perhaps a bias: along rows of x1 and rows of x2"
    PRODUCT_TN = "x1^T x2: along columns of both"


PRODUCTS = (Cut.PRODUCT_NN, Cut.PRODUCT_NT, Cut.PRODUCT_TN)


class Blas(Enum):
    """Whether an operation uses BLAS. If so, the number of BLAS threads is set before the operation is launched."""

    NONE = "no product inside"
    INSIDE = "small products among other work, none of which is worth several threads"
    PRODUCT = "the operation is a product"


class Bound(NamedTuple):
    """How far results may be off: `relative` times the exact result, and `absolute` times the largest operand, or 1."""

    relative: float
    absolute: float


class UfuncCall(NamedTuple):
    """A universal function with the operation's bits, if it is given the operands and then these arguments."""

    ufunc: str  # its name in NumPy
    arguments: tuple[Any, ...] = ()


class ScalarCode(NamedTuple):
    """The operation's effect on one float32 element, in a loop that numba compiles for a captured step."""

    expression: str  # of the operands {0} and {1}
    bound: Bound | None = None  # of the difference to NumPy; None: the bits are NumPy's
