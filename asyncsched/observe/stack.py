"""What the thread of an event loop does at this moment."""

from __future__ import annotations

import asyncio
import sys
import traceback
from os.path import dirname, join

_CALLBACK, _TURN, _RUNNER = [  # of asyncio: who calls a callback, who calls that, and who calls uvloop
    (join(dirname(asyncio.__file__), file), name)
    for file, name in (("events.py", "_run"), ("base_events.py", "_run_once"), ("runners.py", "run"))
]


def stack_of(thread: int) -> list[traceback.FrameSummary] | None:
    """What the callback does that a loop's thread is in, the outermost first; None where it is in none.

    As text: a frame that was kept would keep its tensors.
    """
    frame = sys._current_frames().get(thread)
    found = list(traceback.extract_stack(frame)) if frame is not None else []
    del frame
    places = [(summary.filename, summary.name) for summary in found]
    for below in (_CALLBACK, _TURN, _RUNNER):
        if below in places:
            return None if below is _TURN else found[len(places) - places[::-1].index(below) :]
    return found
