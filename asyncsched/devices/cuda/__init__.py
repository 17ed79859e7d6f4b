"""CUDA through CuPy, which is imported when a device is opened."""

from .device import CUDADevice, usable

__all__ = ["CUDADevice", "usable"]
