"""The cancellation of a request's work, which a scope of anyio may hold off.

Theory of operation. asyncio cancels an asyncio task once, wherever it waits. anyio cancels all that is in a scope again
and again, but nothing that a shielded scope in it protects. A function in one of anyio's threads, such as a `def`
endpoint of FastAPI, is so protected: its wait goes on until the function has ended, and only then is the thread's token
given back. After asyncio's own `cancel()`, the token would be free while the thread still runs.

Here both are wanted: one cancellation, as handlers for asyncio expect (else no `await` in a `finally` would work), and
none under a shield. So the work runs in two scopes. The outer one is cancelled. The inner one is shielded from it, but
for a moment, in which anyio cancels what no other shield protects. If that was nothing, this is tried again later:
anyio tells nobody when a shield ends.
"""

from __future__ import annotations

import asyncio
from functools import cache
from types import TracebackType
from typing import Any, Final

import anyio

_SOONEST: Final = 0.001  # seconds until the next try, and twice as long each time
_LATEST: Final = 0.25


class Cancelling:
    """Cancels one asyncio task, once. It does not hold the task, which would be a cycle."""

    def __init__(self) -> None:
        kind = _kind_of_scope()
        self._outer, self._inner = kind(), kind(shield=True)
        self._task = 0  # its identity, once it has begun
        self._again: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        """Open around all that the task does."""
        self._outer.__enter__()
        self._inner.__enter__()
        self._task = id(asyncio.current_task())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The task ends. A cancellation goes on as such."""
        if self._again is not None:
            self._again.cancel()
        self._inner.__exit__(kind, error, trace)
        self._outer.__exit__(kind, error, trace)

    def cancel(self, task: asyncio.Task[Any], again: float = _SOONEST) -> None:
        """Cancel the task, as soon as no scope of anyio shields it."""
        if task.done():
            return
        if not self._task:
            task.cancel()
            return
        before = task.cancelling()
        self._outer.cancel()
        self._inner.shield = False
        self._inner.shield = True
        self._again = None
        if task.cancelling() == before:
            later = min(2 * again, _LATEST)
            self._again = asyncio.get_running_loop().call_later(again, self.cancel, task, later)

    def check(self) -> None:
        """Raise CancelledError if this is the task, and it is still to be cancelled."""
        if self._again is not None and id(asyncio.current_task()) == self._task:
            self._again.cancel()
            self._again = None
            raise asyncio.CancelledError


@cache
def _kind_of_scope() -> type[anyio.CancelScope]:
    """That for asyncio. anyio itself asks for each scope which library runs, which takes longer than all else."""
    return type(anyio.CancelScope())
