"""Letting who waited go on in the turn of the loop that brought the answer.

Theory of operation. A future that is set schedules whoever awaits it: so a completion takes two turns of the loop, one
to take it in and one to go on (4 us on asyncio's loop, 2 on uvloop's: a tenth of a hop to a stream and back). But a
callback of the loop's is itself a place where an awaiting asyncio task may be stepped: no other one is in the middle of
a step there. So the runtime gathers the futures that are answered in such a callback, and when all else is done calls
what awaits the first, in its own context, as the loop would. The others are set before, and go on in their turn: so
nobody depends on what the first one does, be it to run the loop from within.

Nobody is passed over by that: all that was ready before runs in this turn, too, and whoever goes on and awaits again
passes through the loop. What stays as it was: a future that was cancelled meanwhile is left alone, one that nobody or
more than one thing awaits is set in the common way, and so are all where the loop is in debug mode, which tells of slow
callbacks by whose they are.
"""

from __future__ import annotations

import asyncio
from typing import Any


def resume(futures: list[asyncio.Future[None]], debug: bool) -> None:
    """Set each, and have what awaits the first go on before this returns. In a callback of the loop's alone."""
    for other in futures[1:]:
        if not other.done():
            other.set_result(None)
    first: Any = futures[0]
    if first.done():
        return
    callbacks = None if debug else getattr(first, "_callbacks", None)  # asyncio's own, in C and in Python
    if not callbacks or len(callbacks) > 1:
        first.set_result(None)
        return
    [(go_on, context)] = callbacks
    first.remove_done_callback(go_on)
    first.set_result(None)
    try:
        context.run(go_on, first)
    finally:  # what an exception there keeps of this frame would hold the task, which holds the exception
        del first, callbacks, go_on, context
