"""Kernels: what computes a row, by theme."""

from . import activation, attention, basic, conv, gradients, index, layers, losses, optim

__all__ = ["activation", "attention", "basic", "conv", "gradients", "index", "layers", "losses", "optim"]
