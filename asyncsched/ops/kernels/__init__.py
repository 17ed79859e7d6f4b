"""Kernels: what computes a row, where that is not one function of NumPy and CuPy. A file for each theme.

`basic` has what rearranges, makes, casts or sums arrays by a few calls of the namespace.
"""

from . import activation, attention, basic, conv, gradients, index, layers, losses, optim

__all__ = ["activation", "attention", "basic", "conv", "gradients", "index", "layers", "losses", "optim"]
