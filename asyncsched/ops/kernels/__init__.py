"""Operations, a file for each theme: kernels, rules, and declarations in `OPS` at the end of the file.

A kernel is what computes an operation, where that is not one function of NumPy and CuPy: `kernel(xp, *arrays, out=None,
**options)`, with the array namespace first. With `out=` it gives the very same bytes as without. `xp` is numpy or cupy,
so what only one of them has is avoided. A rule, `NAME_rule(op, operands, options)`, says what is known of the result
before anything is computed, or raises what NumPy would. Files without `OPS` are parts of kernels.
"""
