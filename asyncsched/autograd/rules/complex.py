"""Of complex numbers: which rules hold for them, and those that they have of their own.

The gradient of a complex tensor is that with respect to its real part, plus i times that with respect to its imaginary
part, as in PyTorch: the direction of steepest ascent. Of what is differentiable in the complex sense the rule for real
numbers holds between conjugations, as it does of the real part of that: `tape.Node.pull` conjugates.
"""

from __future__ import annotations

from typing import Final

from ...tensors import functions as f
from .common import Rules, same
from .fourier import FOURIER

HOLOMORPHIC: Final = frozenset({
    *FOURIER,
    "add", "broadcast_to", "concat", "copy", "cofactors", "cos", "cosh", "cumulative_sum", "det", "diff", "divide",
    "einsum", "exp", "expand_dims", "flip", "getitem", "getitem_advanced", "inv", "log", "matmul", "matrix_transpose",
    "mean", "multiply", "negative", "outer", "permute_dims", "positive", "real", "reciprocal", "repeat",
    "reshape", "roll", "scatter", "setitem", "sin", "sinh", "solve", "sqrt", "square", "squeeze", "stack",
    "subtract", "sum", "take", "tan", "tanh", "tensordot", "tile", "tril", "triu", "where",
}) - {"hfft"}  # fmt: skip
COMPLEX: Rules = {
    "hfft": FOURIER["hfft"],
    "abs": (lambda g, x: g * f.sign(x),),  # 0 at 0
    "astype": (same,),
    "conj": (lambda g: f.conj(g),),
    "imag": (lambda g: g * 1j,),
}
