"""A run of a captured step as one loop, for numba to compile: see `fused`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .op import Bound
from .program import Program, Ref

# By NumPy's name. What is plain arithmetic has NumPy's bits; `tanh` and `exp` are those of `kernels.loops`.
_EXPRESSIONS = {
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "divide": "{0} / {1}",
    "negative": "-{0}",
    "square": "{0} * {0}",
    "absolute": "abs({0})",
    "sqrt": "sqrt({0})",
    "reciprocal": "one / {0}",
    "tanh": "tanh({0})",
    "exp": "exp({0})",
}

BOUNDS = {"tanh": Bound(6e-7, 0.0), "exp": Bound(6e-7, 1.2e-38)}  # of each of these functions alone


def loop_of(
    program: Program, steps: Iterable[int], reads: Iterable[tuple[int, str]], writes: Iterable[int]
) -> tuple[str, dict[str, Any], list[int]] | None:
    """The source of a function of a count and of flat arrays, its constants, and the dimensions of its arrays.

    None where something is not for a loop: another dtype than float32, a row or a column, an operation not listed.
    """
    single = np.dtype(np.float32)
    reads, writes, constants = list(reads), list(writes), dict[str, Any]()
    if any(way not in ("whole", "number") or program.form(slot).dtype != single for slot, way in reads):
        return None
    lines = [f"        v{slot} = x{slot}[i]" for slot, way in reads if way == "whole"]
    known = {slot for slot, _ in reads}
    for i in steps:
        step, slot = program.steps[i], program.inputs + i
        kernel = step.op.kernel
        if step.form.dtype != single or not isinstance(kernel, str) or kernel not in _EXPRESSIONS:
            return None
        words = []
        for place, arg in enumerate(step.args):
            if type(arg) is Ref:
                if arg.slot not in known:
                    return None
                words.append(f"v{arg.slot}")
            elif type(arg) in (int, float, np.float32):
                with np.errstate(all="ignore"):
                    constants[f"c{slot}_{place}"] = np.float32(arg)
                words.append(f"c{slot}_{place}")
            else:
                return None
        lines.append(f"        v{slot} = {_EXPRESSIONS[kernel].format(*words)}")
        known.add(slot)
    lines += [f"        o{slot}[i] = v{slot}" for slot in writes]
    names = [*[f"x{slot}" for slot, _ in reads], *[f"o{slot}" for slot in writes]]
    first = [f"    v{slot} = x{slot}[()]" for slot, way in reads if way == "number"]
    source = "\n".join([f"def run(count, {', '.join(names)}):", *first, "    for i in range(count):", *lines])
    return source, constants, [int(way == "whole") for _, way in reads]
