"""Kernels: what computes a row, where that is not one function of NumPy and CuPy. A file for each theme.

`basic` has what rearranges, makes, casts or sums arrays by a few calls of the namespace.
"""

# ruff: noqa: F401  # the tables name them
from . import (
    activation,
    attention,
    basic,
    compiled,
    conv,
    fourier,
    gradients,
    index,
    layers,
    losses,
    matrices,
    optim,
    pool,
    random,
    sets,
    softmax,
    turns,
    winograd,
)
