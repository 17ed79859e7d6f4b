"""The table of derivatives: for each operation a function for each operand. How to write one: see the package.

A rule that only multiplies or sums is exact; ties of `maximum`, `max` and `abs` are settled where they are written, and
so is what comes of NaN and of infinities: as PyTorch settles it.
"""

from .along_axes import ALONG_AXES, RUNNING
from .common import Partial, Rules
from .complex import COMPLEX, HOLOMORPHIC
from .decompositions import ANEW, DECOMPOSITIONS
from .einsum import EINSUM
from .elementwise import ELEMENTWISE
from .fourier import FOURIER
from .matrices import MATRICES
from .shapes import SHAPES

__all__ = ["COMPLEX", "COMPOSED", "HOLOMORPHIC", "RULES", "Partial"]

RULES: Rules = {**ELEMENTWISE, **ALONG_AXES, **SHAPES, **MATRICES, **DECOMPOSITIONS, **EINSUM, **FOURIER}
COMPOSED: Rules = {**RUNNING, **ANEW}
