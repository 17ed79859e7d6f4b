"""Linear algebra, as `asyncsched.linalg`, for arrays."""

from ..tensors.functions import linalg as _linalg
from .functions import namespace as _namespace

globals().update(_namespace(_linalg))
__all__ = list(_linalg.__all__)


def __dir__() -> list[str]:
    return [*__all__, "__doc__"]
