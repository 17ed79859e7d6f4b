"""Observing a scheduler: the interface of instruments and those that the package brings, explanations on a signal, and
graphs of tasks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._core.callsite import line_of
from .._core.instrument import Instrument
from .._core.model import STATE_NAMES

if TYPE_CHECKING:
    from ..pictures.graph import Node as Node
    from ..pictures.graph import TaskGraph as TaskGraph
    from .live import Live as Live
    from .loop_guard import LoopGuard as LoopGuard
    from .marks import Marks as Marks
    from .on_signal import explain_on_signal as explain_on_signal
    from .recording import Recording as Recording
    from .summary import Snapshot as Snapshot
    from .summary import Summary as Summary
    from .trace import Trace as Trace

# What is imported when its name is first used, and from where: a server imports the summary, and few programs all.
_WHEN_USED = {
    "Live": ".live",
    "LoopGuard": ".loop_guard",
    "Marks": ".marks",
    "Node": "..pictures.graph",
    "Recording": ".recording",
    "Snapshot": ".summary",
    "Summary": ".summary",
    "TaskGraph": "..pictures.graph",
    "Trace": ".trace",
    "explain_on_signal": ".on_signal",
}

__all__ = ["STATE_NAMES", "Instrument", "line_of", *_WHEN_USED]


if not TYPE_CHECKING:  # for which any name would be there then, also a misspelt one

    def __getattr__(name: str) -> Any:
        if name not in _WHEN_USED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_WHEN_USED[name], __name__), name)
        return found


def __dir__() -> list[str]:
    return [*__all__, "__doc__"]
