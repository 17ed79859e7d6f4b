"""The table of derivatives: for each operation a function for each operand. The package says how to write one.

Rules that only multiply or sum are exact. Where the derivative is a choice (ties of `maximum`, `max` and `abs`, NaN,
infinities), the rule says so and follows PyTorch.

The gradient of a complex tensor is that with respect to its real part, plus i times that with respect to its imaginary
part, as in PyTorch: the direction of steepest ascent. For an operation that is complex-differentiable, and for the real
part of its result, the rule for real numbers holds between conjugations, which `tape.Node.pull` makes.
"""

from typing import Final

from ...tensors import functions as f
from .along_axes import ALONG_AXES, RUNNING
from .common import Partial, Rules, same
from .elementwise import ELEMENTWISE
from .linear_maps import FOURIER, SHAPES, SIGNAL
from .matrices import ANEW, MATRICES
from .networks import NETWORKS, NETWORKS_COMPOSED

__all__ = ["COMPLEX", "COMPOSED", "HOLOMORPHIC", "RULES", "Partial"]

RULES: Rules = {**ELEMENTWISE, **ALONG_AXES, **SHAPES, **MATRICES, **FOURIER, **SIGNAL, **NETWORKS}
COMPOSED: Rules = {**RUNNING, **ANEW, **NETWORKS_COMPOSED}

# For complex numbers: the rules that also hold for them, and rules of their own.
HOLOMORPHIC: Final = frozenset({
    *FOURIER,
    *SIGNAL,
    "accurate_sum", "add", "broadcast_to", "concat", "copy", "cofactors", "cos", "cosh", "cumulative_sum", "det",
    "diff", "divide", "einsum", "exp", "expand_dims", "flip", "getitem", "getitem_advanced", "inv", "log", "matmul",
    "matrix_transpose",
    "mean", "multiply", "nanmean", "nansum", "negative", "outer", "permute_dims", "positive", "real", "reciprocal",
    "repeat", "reshape", "roll", "scatter", "setitem", "sin", "sinh", "solve", "sqrt", "square", "squeeze", "stack",
    "subtract", "sum", "take", "tan", "tanh", "tensordot", "tile", "tril", "triu", "where",
})  # fmt: skip
COMPLEX: Rules = {
    "abs": (lambda g, x: g * f.sign(x),),  # 0 at 0
    "astype": (same,),
    "conj": (lambda g: f.conj(g),),
    "imag": (lambda g: g * 1j,),
}
