"""Rules: what is known of a row's result before anything is computed, by theme."""

from . import common, create, elementwise, gradients, index, layers, linalg, reduce, shape, windows

__all__ = ["common", "create", "elementwise", "gradients", "index", "layers", "linalg", "reduce", "shape", "windows"]
