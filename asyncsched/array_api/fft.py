"""Fourier transforms, as `asyncsched.fft`, for arrays."""

from ..tensors.functions import fft as _fft
from .functions import namespace as _namespace

globals().update(_namespace(_fft))
__all__ = list(_fft.__all__)


def __dir__() -> list[str]:
    return [*__all__, "__doc__"]
