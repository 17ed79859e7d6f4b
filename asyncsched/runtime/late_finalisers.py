"""Finalisers that a signal's exception keeps from beginning.

Python handles signals where it enters a function. If a handler raises when a finaliser is entered, no line of the
finaliser can catch that: Python drops the exception and calls `sys.unraisablehook`. So this hook calls the finaliser
again; otherwise its bytes would stay charged for ever. The hook that was set before is called, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from traceback import clear_frames
from typing import Final

from .._core.model import Value
from .._core.ownership import Entry
from ..devices.memory import gone

_FINALISERS: Final = {finaliser.__code__: finaliser for finaliser in (Value.__del__, Entry.__del__, gone)}


@cache
def watch_for_signals() -> None:
    """Set the hook. Only once, since a hook that was set later may call this one."""
    sys.unraisablehook = partial(_call_again, sys.unraisablehook)


def _call_again(before: Callable[[sys.UnraisableHookArgs], object], lost: sys.UnraisableHookArgs) -> None:
    trace = lost.exc_traceback
    # The code identifies it: from Python 3.14 on `lost.object` is None for finalisers.
    finaliser = _FINALISERS.get(trace.tb_frame.f_code) if trace is not None else None
    if trace is not None and finaliser is not None:
        if trace.tb_lineno == trace.tb_frame.f_code.co_firstlineno:  # no line of it has run
            kept = trace.tb_frame.f_locals
            args = list(kept.values())
            if type(kept) is dict:  # before Python 3.13 a copy, which the frame keeps
                kept.clear()
            finaliser(*args)
            del args
        clear_frames(trace)  # hooks may keep the exception, and so the dropped object
    before(lost)
