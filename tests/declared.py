"""What tests can tell of an operation from its declaration, so that a new one needs no line in their lists."""

from __future__ import annotations

import inspect

import numpy as np

from asyncsched.ops import TABLE, Cut, Op
from asyncsched.ops.kernels.elementwise import comparison_rule, ufunc_rule

UFUNCS = [name for name, op in TABLE.items() if op.rule in (ufunc_rule, comparison_rule)]


def arity(op: Op) -> int | None:
    """How many tensors an elementwise operation takes; None if it is no such, or needs numbers or options besides."""
    if op.cut is not Cut.BY_ELEMENTS:
        return None
    if isinstance(op.kernel, str):
        function = getattr(np, op.kernel)
        return function.nin if isinstance(function, np.ufunc) else None
    _, *parameters = inspect.signature(op.kernel).parameters.values()
    if any(one.annotation not in ("Any", inspect.Parameter.empty) for one in parameters):
        return None  # a number, or an option of a type
    needed = [one for one in parameters if one.default is inspect.Parameter.empty]
    return None if any(one.kind is one.KEYWORD_ONLY for one in needed) else len(needed)


ARITIES = {name: count for name, op in TABLE.items() if (count := arity(op)) is not None}
