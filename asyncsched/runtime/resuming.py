"""Resuming the awaiting coroutine in the same turn of the loop in which its tasks ended.

Theory of operation. Setting a future schedules its callbacks: so a completion takes two turns of the loop, one to take
it in and one to resume the coroutine, which is a tenth of a hop to a stream and back. But in a callback of the loop no
asyncio task is in the middle of a step, so an awaiting task may be stepped right there. So the runtime gathers the
futures whose tasks ended, and when all else is done it calls the first one's callback in its own context, as the loop
would. The others are set before that, and resume in the next turn: so they do not depend on what the first does, even
if it runs the loop from within.

That starves nobody: all that was ready before runs in this turn, too, and a coroutine that awaits again passes through
the loop. A future that was cancelled meanwhile is left alone; one with no callback or several is set in the common way,
and so are all while the loop is in debug mode, which names the owners of slow callbacks.
"""

from __future__ import annotations

import asyncio
from typing import Any


def resume(futures: list[asyncio.Future[None]], debug: bool) -> None:
    """Set each, and resume what awaits the first before this returns. Call it only from a callback of the loop.

    An exception, as a signal's, may come out before each is set.
    """
    for other in futures[1:]:
        if not other.done():
            other.set_result(None)
    _resume(futures[0], debug)


def _resume(first: Any, debug: bool) -> None:
    if first.done():
        return
    callbacks = None if debug else getattr(first, "_callbacks", None)  # asyncio's own, in C and in Python
    if not callbacks or len(callbacks) > 1:
        first.set_result(None)
        return
    [(go_on, context)] = callbacks
    begun = False
    try:
        first.remove_done_callback(go_on)
        first.set_result(None)
        begun = True
        context.run(go_on, first)
    except BaseException:
        if not begun:
            first.get_loop().call_soon(go_on, first, context=context)
        raise
    finally:  # no cycle: an exception holds this frame, which would hold the task, which holds the exception
        del first, callbacks, go_on, context
