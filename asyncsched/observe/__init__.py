"""Seeing what a scheduler does: instruments, and those that the package brings."""

from .._core.callsite import line_of
from .._core.instrument import Instrument
from .._core.model import STATE_NAMES
from .live import Live
from .loop_guard import LoopGuard
from .snapshot import Snapshot
from .summary import Summary

__all__ = ["STATE_NAMES", "Instrument", "Live", "LoopGuard", "Snapshot", "Summary", "line_of"]
