"""A fake CuPy, badly behaved on purpose, so that code for CUDA is tested where there is no GPU."""

from .fake import Fake
from .modules import at_rest, fake_cupy, install, uninstall

__all__ = ["Fake", "at_rest", "fake_cupy", "install", "uninstall"]
