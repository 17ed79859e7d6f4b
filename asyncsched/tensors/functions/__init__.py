"""The functions of the Python array API standard (2024.12), for tensors."""

# ruff: noqa: F403  (what the stars bring is what each module's __all__ says, and nothing here uses it)
from typing import TYPE_CHECKING

from . import creation, dtypes, elementwise, linalg, manipulation, searching, statistical
from .creation import *
from .dtypes import *
from .elementwise import *
from .linalg import *
from .manipulation import *
from .searching import *
from .statistical import *

# Type checkers follow the stars, but not every one of them a computed __all__.
if not TYPE_CHECKING:
    _modules = (creation, dtypes, elementwise, linalg, manipulation, searching, statistical)
    __all__ = [name for module in _modules for name in module.__all__]
