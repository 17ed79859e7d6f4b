"""Seeing what a scheduler does: instruments, and those that the package brings."""

from .._core.callsite import line_of
from .._core.instrument import Instrument
from .._core.model import STATE_NAMES
from .recording import Recording
from .trace import Trace

__all__ = ["STATE_NAMES", "Instrument", "Recording", "Trace", "line_of"]
