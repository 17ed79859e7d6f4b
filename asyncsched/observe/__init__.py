"""Observing a scheduler: the interface of instruments, the package's own instruments, explanations on a signal, and
graphs of tasks."""

from __future__ import annotations

from .._core.callsite import line_of
from .._core.instrument import Instrument, kind_of, priority_of, tenant_of
from .._core.model import STATE_NAMES
from ..pictures.graph import Node, TaskGraph
from .blocked import LoopGuard, explain_on_signal
from .live import Live
from .probe import Probe
from .recording import Recording
from .spans import Marks, Spans
from .summary import Snapshot, Summary
from .trace import Trace

__all__ = [
    "STATE_NAMES", "Instrument", "Live", "LoopGuard", "Marks", "Node", "Probe", "Recording", "Snapshot", "Spans",
    "Summary", "TaskGraph", "Trace", "explain_on_signal", "kind_of", "line_of", "priority_of", "tenant_of",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*__all__, "__doc__"]
