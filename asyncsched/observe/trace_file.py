"""The file of a trace, and the thread that writes it.

Theory of operation. The scheduler's threads append to deques and nothing more. A few times a second the thread takes
what is there, some thousand rows at a time, makes text of it and writes that: whole events, so that the file is valid
wherever it ends. Making the text takes the interpreter for as long as issuing does; if the thread falls behind, since a
loop that never rests leaves it half of the time at most, the loop's thread makes some of the text itself (`help`), and
what waits stays bounded. If the disk falls behind for long, what is not written is dropped, and the file says so.
"""

from __future__ import annotations

import atexit
import gzip
import os
import platform
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from typing import IO, Any, Final

import numpy as np

from .._log import Log
from .chunks import COUNTED, FORMAT, deltas, line, pack_tasks, ticks
from .trace_picture import Picture, event

log = Log("asyncsched")

_PAUSE: Final = 0.1  # seconds between two looks
_ROWS: Final = 1024  # of one chunk, at most: some milliseconds, in steps of less than one
_HELPED: Final = 256  # of one that the loop's thread makes: about a millisecond
_MOST_TEXT: Final = 64 << 20  # bytes made and not written


class TraceFile:
    """Takes what a trace notes, and writes it.

    Args:
        path: of the file.
        details: of so many tasks the picture shows all.
    """

    def __init__(self, path: str | os.PathLike[str], details: int) -> None:
        self._raw: IO[bytes] = open(path, "wb")  # noqa: SIM115
        self._zipped = os.fspath(path).endswith(".gz")
        self.rows: deque[list[Any]] = deque()
        self.released: deque[tuple[float, int, int]] = deque()
        self.scopes_opened: deque[tuple[int, int, str, float, bool, int]] = deque()
        self.scopes_closed: deque[tuple[int, float, int]] = deque()
        self.left: dict[int, float] = {}
        self.batches: deque[tuple[int, float, int]] = deque()
        self.waits: deque[tuple[float, int, int, float]] = deque()
        self.counters: deque[tuple[Any, ...]] = deque()
        self.ending = False
        self._details = details
        self._text_lock = threading.Lock()  # held by whoever makes text
        self._texts: deque[bytes] = deque()
        self._lost = 0
        self._begun = False  # whether the head is made
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    # -- its life -------------------------------------------------------------------------------------------------

    def begin(self, runtime: Any) -> None:
        """Start writing. On the loop's thread, before anything is noted."""
        self._runtime = runtime
        self._origin, self._wall = time.perf_counter(), time.time()
        self._before = runtime.ledger.account.used
        self._picture = Picture(self._origin, self._details)
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
            zipped: Any = gzip.GzipFile(fileobj=self._raw, mode="wb", compresslevel=6) if self._zipped else self._raw
            with self._raw, zipped as file:
                while not self._ended.wait(_PAUSE):
                    self._write(file)
                self._write(file)
                if not self._begun:
                    file.write(self._head())
                last = event(ph="M", name="asyncsched.end", args={"lost": self._lost})
                file.write(last[:-2].encode() + b"\n]\n")
        except OSError:
            log.exception(f"the trace {self._raw.name} ends here, since it cannot be written")
            while not self._ended.wait(_PAUSE):
                self._drop()
            self._drop()
        atexit.unregister(self._at_exit)
        self._runtime = None

    def _drop(self) -> None:
        for noted in (self.rows, self.released, self.scopes_opened, self.scopes_closed, self.batches, self.waits):
            noted.clear()
        for left in (self.counters, self.left, self._texts):
            left.clear()

    def _head(self) -> bytes:
        self._begun = True
        first = event(ph="M", name="asyncsched.metadata", args=self._metadata())
        names = event(ph="M", name="process_name", args={"name": "asyncsched"})
        return ("[\n" + first + names + self._picture.begin()).encode()

    def _write(self, file: IO[bytes]) -> None:
        while True:
            with self._text_lock:
                more = self._make(_ROWS)
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

    # -- the text ---------------------------------------------------------------------------------------------------

    def _make(self, most: int) -> bool:
        """Make text of what is there, of so many tasks at most. Returns whether there was any."""
        rows = list(_taken(self.rows, most))
        record: dict[str, Any] = {}
        scopes = [list(scope) for scope in _taken(self.scopes_opened, most)]
        closed = list(_taken(self.scopes_closed, most))
        batches, waits = list(_taken(self.batches, most)), list(_taken(self.waits, most))
        counters, released = list(_taken(self.counters, most)), list(_taken(self.released, most))
        if not (rows or scopes or closed or batches or waits or counters or released):
            return False
        if sum(map(len, self._texts)) > _MOST_TEXT:
            self._lost += len(rows)
            return True
        if not self._begun:  # the scheduler is open by now, and its limits are known
            self._texts.append(self._head())
        picture, at = self._picture, self._ticks
        texts = [picture.scope_opened(*scope) for scope in scopes]
        slices = [picture.row(row) for row in rows]
        texts += [picture.new_tracks(), *slices]
        texts += [picture.scope_closed(number, when) for number, when, _ in closed]
        texts += [picture.batch(*batch) for batch in batches]
        texts += [picture.wait(*wait) for wait in waits]
        texts += [picture.counters(*sample) for sample in counters]
        if rows:
            record["tasks"] = pack_tasks(rows, self._origin, picture.number)
        record["scopes"] = [
            [n, parent, name, at(when), int(own), level] for n, parent, name, when, own, level in scopes
        ]
        record["closed"] = [[n, at(self.left.pop(n, when)), at(when), reserve] for n, when, reserve in closed]
        record["batches"] = [[n, at(when), items] for n, when, items in batches]
        record["waits"] = [[at(began), at(ended), seq, count] for began, seq, count, ended in waits]
        if released:
            times, seqs, nbytes = zip(*released, strict=True)
            record["released"] = [deltas(ticks(times, self._origin)), deltas(seqs), nbytes]
        if counters:
            columns = [list(column) for column in zip(*counters, strict=True)]
            columns[0] = ticks(columns[0], self._origin).tolist()
            columns[5] = ticks(columns[5], 0).tolist()
            record["counters"] = dict(zip(COUNTED, columns, strict=True))
        record |= picture.new_names()
        kept = line("record", {name: what for name, what in record.items() if what})
        self._texts.append("".join((kept, *texts)).encode())
        return True

    def _ticks(self, when: float) -> int:
        return int(ticks((when,), self._origin)[0])

    def _metadata(self) -> dict[str, Any]:
        runtime = self._runtime
        return {
            "format": FORMAT,
            "wall_clock": self._wall,
            "perf_counter": self._origin,
            **asdict(runtime.ledger.limits),
            "bytes_before": self._before,
            "devices": [
                {"name": device.name, "kind": device.kind, "streams": len(lanes.compute)}
                for device, lanes in runtime.lanes.items()
            ],
            "machine": {
                "system": platform.system(),
                "processor": platform.machine(),
                "processors": os.cpu_count(),
                "python": platform.python_version(),
                "numpy": np.__version__,
            },
            "program": " ".join(sys.argv),
            "pid": os.getpid(),
        }


def _taken(items: deque[Any], most: int) -> Iterator[Any]:
    while items and most:
        most -= 1
        yield items.popleft()
