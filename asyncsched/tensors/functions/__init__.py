"""The functions of the array API standard (2025.12) for tensors, and more of NumPy's.

`linalg`, `fft` and `random` are namespaces.
"""

# ruff: noqa: F403  (each module's __all__ says what the stars import; nothing here uses it)
from typing import TYPE_CHECKING

from . import creation, dtypes, elementwise, manipulation, reductions, signal, statistics
from .creation import *
from .dtypes import *
from .elementwise import *
from .manipulation import *
from .reductions import *
from .signal import *
from .statistics import *

if TYPE_CHECKING:
    from . import fft as fft
    from . import linalg as linalg
    from . import random as random

# Type checkers follow the stars, but not every one of them follows a computed __all__.
if not TYPE_CHECKING:
    _modules = (creation, dtypes, elementwise, manipulation, reductions, signal, statistics)
    __all__ = [name for module in _modules for name in module.__all__]
