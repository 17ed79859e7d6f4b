"""A fake CuPy, badly behaved on purpose, so that code for CUDA is tested where there is no GPU."""

from .fake import Fake
from .modules import fake_cupy, install, uninstall

__all__ = ["Fake", "fake_cupy", "install", "uninstall"]
