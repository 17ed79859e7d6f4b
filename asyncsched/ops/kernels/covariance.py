"""The operations that only `cov` and `corrcoef` need."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..declare import Cost, Inferred, Op, Operand, Options, meta, with_out
from ..rules import lengths
from .checks import require_true
from .elementwise import copy_rule


def observation_weights(xp: Any, *weights: Any, names: tuple[str, ...]) -> Any:
    """One weight for each observation: the product of the given weights, which are checked."""
    found = weights[0].astype(np.float64)
    if names[0] == "fweights":
        require_true(xp, xp.all(found == xp.rint(found)), TypeError, "fweights must be integer")
    for given, name in zip(weights, names, strict=True):
        require_true(xp, ~xp.any(given < 0), ValueError, f"{name} cannot be negative")
    for more in weights[1:]:
        found *= more
    require_true(xp, xp.sum(found) != 0, ZeroDivisionError, "Weights sum to zero, can't be normalized")
    return found


def clip_parts(xp: Any, x: Any, *, out: Any = None) -> Any:
    """Complex numbers with both parts limited to the range from -1 to 1."""
    out = xp.empty_like(x) if out is None else out
    xp.clip(x.real, -1, 1, out=out.real)
    xp.clip(x.imag, -1, 1, out=out.imag)
    return out


# -- rules -------------------------------------------------------------------------------------------------------------


def observation_weights_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A float64 number for each observation. Workspace: masks, and rounded frequencies."""
    result = meta(lengths(operands[0]), np.dtype(np.float64))
    rounded = result.nbytes if "fweights" in options["names"] else 0
    return Inferred(result, rounded + result.bound[0])


OPS = (
    Op("observation_weights", observation_weights, observation_weights_rule, checks=True, doc="The weights of `cov`."),
    with_out(clip_parts, copy_rule, "Complex numbers with both parts between -1 and 1.", Cost.LONG_FUNCTION),
)
