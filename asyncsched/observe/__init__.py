"""Seeing what a scheduler does: why tasks wait, told on a signal."""

from __future__ import annotations

from .on_signal import explain_on_signal

__all__ = ["explain_on_signal"]
