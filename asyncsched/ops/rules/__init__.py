"""Rules: what is known of a row's result before anything is computed. A file for each theme, named as in `kernels`."""

# ruff: noqa: F401  # the tables name them
from . import (
    attention,
    common,
    conv,
    create,
    elementwise,
    fourier,
    gradients,
    index,
    layers,
    linalg,
    losses,
    matrices,
    random,
    reduce,
    sets,
    shape,
)
