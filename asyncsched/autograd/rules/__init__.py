"""The table of derivatives: for each row of operations a function for each operand. How to write one: see the package.

A rule that only multiplies or sums is exact; ties of `maximum`, `max` and `abs` are settled where they are written, and
so is what comes of NaN and of infinities: as PyTorch settles it.
"""

from .along_axes import ALONG_AXES, RUNNING
from .common import Partial, Rules
from .decompositions import ANEW, DECOMPOSITIONS
from .einsum import EINSUM
from .elementwise import ELEMENTWISE
from .matrices import MATRICES
from .shapes import SHAPES

__all__ = ["COMPOSED", "RULES", "Partial"]

RULES: Rules = {**ELEMENTWISE, **ALONG_AXES, **SHAPES, **MATRICES, **DECOMPOSITIONS, **EINSUM}
COMPOSED: Rules = {**RUNNING, **ANEW}
