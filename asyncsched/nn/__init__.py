"""Neural networks: modules, their functions, and losses, with the names and formulas of PyTorch.

    model = nn.Sequential(nn.Linear(784, 128, rng=0), nn.ReLU(), nn.Linear(128, 10, rng=1))
    loss = nn.cross_entropy(model(x), labels)      # issues tasks and returns at once
    loss.backward()

A constructor issues the tasks that draw its parameters, so it needs no `await` and waits for nothing. A scheduler must
be open. All constructors that make parameters take `dtype` (float32 by default), `rng` (a NumPy Generator or a seed; by
default the numbers cannot be repeated), `device` and `scheduler`.
"""

# ruff: noqa: F403 (the stars import each module's __all__, and nothing here uses the names)
from .. import _instead
from . import functional, layers, parameterless, utils
from .functional import tanh  # noqa: F401
from .functional.layers import *
from .functional.losses import *
from .layers import *
from .module import Module
from .parameterless import *
from .utils import *

__all__ = ["Module"]
__all__ += functional.__all__
__all__ += layers.__all__
__all__ += parameterless.__all__
__all__ += utils.__all__

_instead.explain_missing(globals(), "asyncsched.nn", _instead.NN)
