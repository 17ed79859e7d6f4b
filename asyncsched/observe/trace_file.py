"""The file of a trace, and the thread that writes it.

Theory of operation. The scheduler's threads only append to deques. A few times a second the file's thread takes some
thousand notes at a time, makes text of them and writes it. It writes whole events, so the file is valid wherever it
ends. Making the text takes the interpreter for a third of the time of issuing. So the thread keeps up with a loop that
never rests, and leaves it half of the time; then some ten thousand notes wait. If the disk falls behind for long, notes
beyond the bound are dropped (`bound`), and the file says so.
"""

from __future__ import annotations

import atexit
import gzip
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import IO, Any, Final

from .._files import at_once
from .._log import log
from .._threads import start_thread
from ..runtime.loops import comes
from .probe import Probe
from .trace_events import Events

_PAUSE: Final = 0.1  # seconds between two looks
_NOTES: Final = 1024  # most notes of one chunk: some milliseconds, in steps of less than one
_MOST: Final = 200_000  # notes that wait: some 100 MB
_LEVEL: Final = 3  # of compression: 6 takes twice as long, for a tenth less


class TraceFile:
    """Takes the notes of a trace, and writes them.

    Args:
        path: of the file.
        details: so many tasks are recorded in full.

    Attributes:
        notes: each a method of `Events` and its arguments.
        released: times, numbers of tasks, bytes. Many are one event.
        ended: whether nothing more is noted.
    """

    def __init__(self, path: str | os.PathLike[str], details: int) -> None:
        self._zipped = os.fspath(path).endswith(".gz")
        self._raw: IO[bytes] = open(path, "wb", opener=at_once)  # noqa: SIM115
        self.notes: deque[tuple[Callable[..., str], tuple[Any, ...]]] = deque()
        self.released: deque[tuple[float, int, int]] = deque()
        self._details = details
        self._lost = 0
        self.ended: bool = False
        self._end: SimpleQueue[None] = SimpleQueue()  # gets an item then. Not an event: see `runtime.loops`
        self._thread: threading.Thread | None = None

    # -- its life -------------------------------------------------------------------------------------------------

    def begin(self, probe: Probe) -> None:
        """Start writing. On the loop's thread, before anything is noted."""
        self._events = Events(probe, self._details)
        self._thread = start_thread(self._write_all, "trace")
        atexit.register(self._at_exit)

    def end(self) -> None:
        """Nothing more is noted. The thread writes the rest, and ends."""
        self.ended = True
        self._end.put(None)
        if self._thread is None:  # it was never opened
            self._raw.close()

    def join(self) -> None:
        """Wait until all is written."""
        if self._thread is not None:
            self._thread.join()

    def _at_exit(self) -> None:
        """The scheduler was never closed: write the notes so far."""
        self.end()
        self.join()

    # -- the thread -----------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        try:
            zipped: Any = self._raw
            if self._zipped:  # the head of such a file is written at once: not on the loop's thread
                zipped = gzip.GzipFile(fileobj=self._raw, mode="wb", compresslevel=_LEVEL)
            with self._raw, zipped as file:
                file.write(self._events.head.encode())
                while not self._ends_within(_PAUSE):
                    self._write(file)
                self._write(file)
                file.write(self._events.end(self._lost).encode())
        except OSError:
            log.exception(f"the trace {self._raw.name} ends here, since it cannot be written")
            ended = False
            while not ended:
                ended = self._ends_within(_PAUSE)
                self.notes.clear()
                self.released.clear()
        atexit.unregister(self._at_exit)

    def _ends_within(self, seconds: float) -> bool:
        return comes(self._end, seconds) or self.ended

    def _write(self, file: IO[bytes]) -> None:
        while self.notes or self.released:
            texts = [make(self._events, *told) for make, told in _taken(self.notes)]
            if released := list(_taken(self.released)):
                texts.append(self._events.released(*zip(*released, strict=True)))
            file.write("".join(texts).encode())
            file.flush()

    def bound(self) -> None:
        """Drop the last notes, if too many wait."""
        while len(self.notes) > _MOST:
            make, _ = self.notes.pop()
            self._lost += make in (Events.task, Events.inline)
        while len(self.released) > _MOST:
            self.released.pop()


def _taken(items: deque[Any]) -> Iterator[Any]:
    for _ in range(_NOTES):
        if not items:
            break
        yield items.popleft()
