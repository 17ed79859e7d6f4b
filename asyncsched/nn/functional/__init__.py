"""The functions behind the modules. All issue tasks and return a Tensor at once; operands are of one float dtype.

An argument that may be given by position has the same position in PyTorch. Others are given by keyword.
"""

# ruff: noqa: F403 (the stars import each module's __all__)
from ... import _instead
from ...tensors.functions import tanh
from . import layers, losses
from .layers import *
from .losses import *

__all__ = ["tanh"]
__all__ += layers.__all__
__all__ += losses.__all__

_instead.explain_missing(globals(), "asyncsched.nn.functional", _instead.FUNCTIONAL, listed=True)
