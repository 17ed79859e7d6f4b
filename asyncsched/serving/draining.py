"""SIGTERM and Ctrl-C: the requests in progress are answered before the server gets the signal.

A server that gets it closes its socket at once, and gives those in progress a time of its own. It also waits for the
responses that have begun before it tells the application to stop, so a stream of events would never end.

Other processes may share the socket, as the workers of gunicorn and uvicorn do. The system goes on giving this process
some of the new connections until it closes the socket. So what comes until then is answered as ever.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple

from .._blocks import contextmanager

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LOOKS: Final = 20  # most, at connections that have sent nothing yet
_PAUSE: Final = 0.05  # seconds before each look
_CLOSING: Final = 5.0  # seconds, in which a server closes its socket: a worker of gunicorn looks once a second


class Drain(NamedTuple):
    """How a server drains."""

    answer_all: Callable[[], Awaitable[None]]  # that are in progress, and go on taking requests
    refuse: Callable[[], Awaitable[None]]  # new ones, and wait for the last


_drains: list[Drain] = []  # those that await a signal, which is meant for the whole process


@contextmanager
def drain_on_signals(drain: Drain) -> Iterator[None]:
    """While open, the first SIGTERM or Ctrl-C awaits `drain` before the handler that was there before gets it. A server
    that closes its socket only afterwards gets it before requests are refused.

    A second one does not. If several are open, all drain at the same time.

    Outside the main thread, where Python allows no signal handlers, nothing changes. Nor does it for a signal whose
    handler is not Python's: a program that embeds Python awaits `Serving.drain` itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []

    async def drain_and_pass_on(number: int) -> None:
        await asyncio.gather(*[drain.answer_all() for drain in _drains])
        last = await _stop_accepting(previous[number]) or previous[number] is signal.SIG_DFL  # which ends the process
        if not last:
            pass_on(number)
            await asyncio.sleep(_CLOSING)  # the end of the lifespan ends it
        await asyncio.gather(*[drain.refuse() for drain in _drains])
        if last:
            pass_on(number)

    def pass_on(number: int) -> None:
        signal.signal(number, previous[number])
        signal.raise_signal(number)

    def begin(number: int) -> None:
        if tasks:
            pass_on(number)
        else:
            tasks.append(loop.create_task(drain_and_pass_on(number)))

    def handler(number: int, frame: object) -> None:
        loop.call_soon_threadsafe(begin, number)  # which wakes the loop

    # A handler that is not Python's, as in a program that embeds Python, cannot be called from here, nor set again.
    previous = {int(number): found for number in SIGNALS if (found := signal.getsignal(number)) is not None}
    for number in previous:
        signal.signal(number, handler)
    _drains.append(drain)
    try:
        yield
    finally:
        _drains.remove(drain)
        for number in previous:
            if signal.getsignal(number) is handler:
                signal.signal(number, previous[number])
        for task in tasks:
            task.cancel()


async def _stop_accepting(handler: Any) -> bool:
    """Have uvicorn take no more connections, if `handler` is its own for a signal, and let those that it has taken send
    their requests. uvicorn itself would close such connections unanswered. Of other servers nothing is known here.
    Returns whether it is uvicorn."""
    server = getattr(handler, "__self__", None)
    listening, state = getattr(server, "servers", None), getattr(server, "server_state", None)
    if not listening or state is None:
        return False
    for one in listening:
        one.close()
    for _ in range(_LOOKS):
        await asyncio.sleep(_PAUSE)
        if all(getattr(connection, "cycle", state) is not None for connection in state.connections):
            break
    return True
