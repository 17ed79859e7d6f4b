"""A run of a captured step as one loop, for numba to compile: see `fused`.

What an operation does to an element is its `scalar_code`. What is plain arithmetic there has NumPy's bits; `tanh` and
`exp` are those of `kernels.elementary`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .program import Program, Ref


def loop_of(
    program: Program, steps: Iterable[int], reads: Iterable[tuple[int, str]], writes: Iterable[int]
) -> tuple[str, dict[str, Any], list[int]] | None:
    """The source of a function of a count and of flat arrays, its constants, and the dimensions of its arrays.

    None where something is not for a loop: another dtype than float32, a row, a column, an operation without code.
    """
    single = np.dtype(np.float32)
    reads, writes, constants = list(reads), list(writes), dict[str, Any]()
    if any(way not in ("whole", "number") or program.form(slot).dtype != single for slot, way in reads):
        return None
    lines = [f"        v{slot} = x{slot}[i]" for slot, way in reads if way == "whole"]
    known = {slot for slot, _ in reads}
    for i in steps:
        step, slot = program.steps[i], program.inputs + i
        code = step.op.scalar_code
        if step.form.dtype != single or code is None:
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
        lines.append(f"        v{slot} = {code.expression.format(*words)}")
        known.add(slot)
    lines += [f"        o{slot}[i] = v{slot}" for slot in writes]
    names = [*[f"x{slot}" for slot, _ in reads], *[f"o{slot}" for slot in writes]]
    first = [f"    v{slot} = x{slot}[()]" for slot, way in reads if way == "number"]
    source = "\n".join([f"def run(count, {', '.join(names)}):", *first, "    for i in range(count):", *lines])
    return source, constants, [int(way == "whole") for _, way in reads]
