"""Seeing what a scheduler does: why tasks wait, told on a signal; graphs of tasks."""

from __future__ import annotations

from ..pictures.graph import Node, TaskGraph
from .on_signal import explain_on_signal

__all__ = ["Node", "TaskGraph", "explain_on_signal"]
