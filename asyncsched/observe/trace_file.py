"""The file of a trace, and the thread that writes it.

Theory of operation. The scheduler's threads append to deques and nothing more. A few times a second the thread takes
what is there, some thousand notes at a time, makes text of it and writes that: whole events, so that the file is valid
wherever it ends. Making the text takes the interpreter for as long as issuing does; if the thread falls behind, since a
loop that never rests leaves it half of the time at most, the loop's thread makes some of the text itself (`help`), and
what waits stays bounded. If the disk falls behind for long, what is not written is dropped, and the file says so.
"""

from __future__ import annotations

import atexit
import gzip
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

from .._log import Log
from ..runtime.runtime import Runtime
from .trace_events import Events

log = Log("asyncsched")

_PAUSE: Final = 0.1  # seconds between two looks
_NOTES: Final = 1024  # of one chunk, at most: some milliseconds, in steps of less than one
_HELPED: Final = 256  # of one that the loop's thread makes: about a millisecond
_MOST_TEXT: Final = 64 << 20  # bytes made and not written
_LEVEL: Final = 3  # of compression: 6 takes twice as long, for a tenth less


class TraceFile:
    """Takes what a trace notes, and writes it.

    Args:
        path: of the file.
        details: of so many tasks the picture shows all.

    Attributes:
        notes: each a method of `Events` and its arguments.
        released: times, numbers of tasks, bytes. Many are one event.
    """

    def __init__(self, path: str | os.PathLike[str], details: int) -> None:
        self._zipped = os.fspath(path).endswith(".gz")
        self._raw: IO[bytes] = open(path, "wb")  # noqa: SIM115
        self.notes: deque[tuple[Callable[..., str], tuple[Any, ...]]] = deque()
        self.released: deque[tuple[float, int, int]] = deque()
        self.ending = False
        self._events = Events(details)
        self._text_lock = threading.Lock()  # held by whoever makes text
        self._texts: deque[bytes] = deque()
        self._lost = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    # -- its life -------------------------------------------------------------------------------------------------

    def begin(self, runtime: Runtime) -> None:
        """Start writing. On the loop's thread, before anything is noted."""
        self._texts.append(self._events.head(runtime).encode())
        self._thread = threading.Thread(target=self._write_all, name="asyncsched trace", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    def end(self) -> None:
        """Nothing more is noted: the thread writes what is left, and ends."""
        self.ending = True
        self._ended.set()
        if self._thread is None:  # it was never opened
            self._raw.close()

    def join(self) -> None:
        """Wait until all is written."""
        if self._thread is not None:
            self._thread.join()

    def _at_exit(self) -> None:
        """The scheduler was never closed: write what it did so far."""
        self.end()
        self.join()

    # -- the thread -----------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        try:
            zipped: Any = self._raw
            if self._zipped:  # the head of such a file is written at once: not on the loop's thread
                zipped = gzip.GzipFile(fileobj=self._raw, mode="wb", compresslevel=_LEVEL)
            with self._raw, zipped as file:
                while not self._ended.wait(_PAUSE):
                    self._write(file)
                self._write(file)
                file.write(self._events.end(self._lost).encode())
        except OSError:
            log.exception(f"the trace {self._raw.name} ends here, since it cannot be written")
            while not self._ended.wait(_PAUSE):
                self._drop()
            self._drop()
        atexit.unregister(self._at_exit)

    def _drop(self) -> None:
        self.notes.clear()
        self.released.clear()
        self._texts.clear()

    def _write(self, file: IO[bytes]) -> None:
        while True:
            with self._text_lock:
                more = self._make(_NOTES)
            while self._texts:
                file.write(self._texts.popleft())
                file.flush()
            if not more:
                break

    def help(self) -> None:
        """Make some of the text, unless the thread is doing so."""
        if self._text_lock.acquire(blocking=False):
            try:
                self._make(_HELPED)
            finally:
                self._text_lock.release()

    def _make(self, most: int) -> bool:
        """Make text of so many notes, at most. Returns whether there were any."""
        notes, released = list(_taken(self.notes, most)), list(_taken(self.released, most))
        if not (notes or released):
            return False
        if sum(map(len, self._texts)) > _MOST_TEXT:
            self._lost += sum(make in (Events.task, Events.inline) for make, _ in notes)
            return True
        texts = [make(self._events, *told) for make, told in notes]
        if released:
            texts.append(self._events.released(*zip(*released, strict=True)))
        self._texts.append("".join(texts).encode())
        return True


def _taken(items: deque[Any], most: int) -> Iterator[Any]:
    while items and most:
        most -= 1
        yield items.popleft()
