"""Operations, a file for each theme: kernels, rules, and declarations in `OPS` at the end of the file.

A kernel computes an operation that is not a single function of NumPy and CuPy: `kernel(xp, *arrays, out=None,
**options)`, with the array namespace first. It gives exactly the same bytes with `out=` as without. `xp` is numpy or
cupy, so kernels avoid features that only one of them has. A rule, `NAME_rule(op, operands, options)`, infers the
result's form before anything is computed, or raises NumPy's errors. Files without `OPS` have parts of kernels.
"""
