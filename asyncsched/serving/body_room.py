"""Room in memory for the bodies of requests.

Theory of operation. The room for a whole body is claimed before its first byte is read. If it were claimed piece by
piece, bodies that have been read in part could wait for each other. It is also claimed before a reserve of the
scheduler's, and the body is read after that: whoever has bytes of the scheduler's waits for no other's body. Claims are
granted in their order. The room is given back when all work of the request has ended, since handlers keep the bodies.
"""

from __future__ import annotations

import asyncio
from collections import deque


class BodyRoom:
    """Bytes that are claimed for bodies.

    Attributes:
        limit: most of them; None for no limit.
        claimed: those that are.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self.claimed: int = 0
        self._waiting = deque[tuple[int, asyncio.Future[None]]]()

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    async def claim(self, nbytes: int) -> None:
        """Claim room, and wait for it. It is at most the limit."""
        claim = nbytes, asyncio.get_running_loop().create_future()
        self._waiting.append(claim)
        self._grant()
        try:
            await claim[1]
        except asyncio.CancelledError:
            if claim in self._waiting:
                self._waiting.remove(claim)
                self._grant()
            else:
                self.release(nbytes)
            raise

    def release(self, nbytes: int) -> None:
        """Give room back."""
        self.claimed -= nbytes
        self._grant()

    def _grant(self) -> None:
        while self._waiting and (self.limit is None or self.claimed + self._waiting[0][0] <= self.limit):
            nbytes, granted = self._waiting.popleft()
            self.claimed += nbytes
            if not granted.done():  # one that was cancelled gives it back
                granted.set_result(None)
