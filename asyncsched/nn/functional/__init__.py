"""The functions behind the modules. All issue tasks and return a Tensor at once; operands are of one float dtype.

What may be given by position means what it means in PyTorch; what has another place there is given by keyword.
"""

# ruff: noqa: F403  (what the stars bring is what each module's __all__ says)
from . import activations, layers, losses, normalization, pooling
from .activations import *
from .layers import *
from .losses import *
from .normalization import *
from .pooling import *

__all__: list[str] = []
__all__ += activations.__all__
__all__ += layers.__all__
__all__ += losses.__all__
__all__ += normalization.__all__
__all__ += pooling.__all__
