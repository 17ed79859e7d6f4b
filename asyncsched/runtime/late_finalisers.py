"""Finalisers that a signal's exception keeps from beginning.

Python handles signals where it enters a function. What a handler raises as a finaliser is entered no line of that can
catch: Python drops it, and tells `sys.unraisablehook`. So there the finaliser is called again; else the bytes that it
was to give back would stay charged for ever. The hook that was there before is told all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from traceback import clear_frames
from typing import Final

from .._core.model import Value
from ..devices.memory import gone

_FINALISERS: Final = {finaliser.__code__: finaliser for finaliser in (Value.__del__, gone)}


@cache
def watch_for_signals() -> None:
    """Watch from now on. Once: a hook that was set since may call this one."""
    sys.unraisablehook = partial(_call_again, sys.unraisablehook)


def _call_again(before: Callable[[sys.UnraisableHookArgs], object], lost: sys.UnraisableHookArgs) -> None:
    trace = lost.exc_traceback
    # Known by its code: from Python 3.14 on `lost.object` is None for finalisers.
    finaliser = _FINALISERS.get(trace.tb_frame.f_code) if trace is not None else None
    if trace is not None and finaliser is not None:
        if trace.tb_lineno == trace.tb_frame.f_code.co_firstlineno:  # no line of it has run
            kept = trace.tb_frame.f_locals
            args = list(kept.values())
            if type(kept) is dict:  # before Python 3.13 a copy, which the frame keeps
                kept.clear()
            finaliser(*args)
            del args
        clear_frames(trace)  # hooks may keep the exception, and so what was to be dropped
    before(lost)
