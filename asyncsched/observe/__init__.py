"""Seeing what a scheduler does: instruments, and those that the package brings."""

from .._core.callsite import line_of
from .._core.instrument import Instrument
from .._core.model import STATE_NAMES
from .loop_guard import LoopGuard

__all__ = ["STATE_NAMES", "Instrument", "LoopGuard", "line_of"]
