"""The stage that runs a plain function in processes.

Theory of operation. Each process has a thread that waits for it and a pipe to it. So a process that dies fails its own
item, and no other. An object that cannot be pickled, or cannot be unpickled on the other side, fails its own item, too.
An exception is made again without a call of its class, which may take other arguments than those it passed on.

A new process imports the main module before it serves: that may fail, or never end. So the process says when it serves.
Until then it is terminated when the epoch ends. If a process cannot be started, the item fails, and nothing is left
behind.

Alternative. A pool of `concurrent.futures` breaks when an item or a result cannot be unpickled, and fails everything
that its other processes compute. Each item goes through two more threads.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from contextvars import copy_context
from io import BytesIO
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from threading import Thread
from typing import Any

from ..._core.failure import built_in_of
from ...errors import add_note
from .functions import ThreadStage, checked

Told = tuple[str, str]  # an exception: in a line of text, and as it would be printed


class ProcessStage(ThreadStage):
    """A plain function in processes. For each there is a thread that waits for it."""

    marks = False  # each result is unpickled here, so nobody else can write to it

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._processes: list[_Process] = []

    def stop(self) -> None:
        super().stop()
        for process in list(self._processes):
            process.give_up()

    def _work(self) -> None:
        process = _Process(self.function)
        self._processes.append(process)
        if self.abandoned:  # `stop` may not have seen it
            process.give_up()
        try:
            self.serve(process.call)
        finally:
            self._processes.remove(process)
            process.end()


class _Process:
    """A process that calls a function, started when it is first needed."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._process: Any = None  # once it is started
        self._pipe: Any = None
        self._close: Any = None  # also at exit, before the interpreter waits for the process
        self._ready = False  # it has started, and serves
        self._given_up = False

    def call(self, item: Any) -> Any:
        """The function's result."""
        pickled = _pickled((self._function, item))
        if self._process is None:
            self._start()
        try:
            if not self._ready:
                self._pipe.recv_bytes()
                self._ready = True
            self._pipe.send_bytes(pickled)
            told: Told | None = self._pipe.recv()
            found: bytes = self._pipe.recv_bytes()
        except (EOFError, OSError):
            self.end()
            cause, self._process, self._ready = self._cause(), None, False  # another starts for the next item
            raise BrokenProcessPool(cause) from None
        if told is not None:
            _raise(told, found)
        return pickle.loads(found)

    def give_up(self) -> None:
        """End it at once if it has not started: no function runs there. From any thread."""
        self._given_up = True
        if self._process is not None and not self._ready:
            self._process.terminate()

    def end(self) -> None:
        """Wait until the process has ended."""
        if self._process is not None:
            self._close()
            self._process.join()

    def _start(self) -> None:
        """Start it. If that fails nothing is left behind."""
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,))
        try:
            process.start()
        except BaseException as error:
            mine.close()
            add_note(error, "raised where a process was to be started")
            raise
        finally:
            theirs.close()
        self._pipe, self._process = mine, process
        self._close = Finalize(None, self._closed, exitpriority=0)
        if self._given_up:
            process.terminate()

    def _closed(self) -> None:
        self._pipe.close()
        if not self._ready:  # it does not look at the pipe
            self._process.terminate()

    def _cause(self) -> str:
        code = self._process.exitcode
        if self._ready:
            return (
                f"the process that was given this item died, with exit code {code}: the function ended it, or the"
                " system did, as when memory is short"
            )
        return (
            f"a process ended before it had started, with exit code {code}; standard error has its own messages. A new"
            " process imports the main module: let that begin its work below `if __name__ == '__main__':`"
        )


class _Traceback(Exception):
    """The traceback of another process, as text: the cause of the exception here."""


def _raise(told: Told, pickled: bytes) -> None:
    error: Any = None
    with suppress(Exception):  # whatever a user's class raises: then its text has to do
        error = pickle.loads(pickled)
    if not isinstance(error, BaseException):
        error = RuntimeError(f"{told[0]} (it cannot be passed on from its process as it is)")
    try:
        raise error from _Traceback(f"\n{told[1]}")
    finally:
        del error  # its traceback holds this frame


def _serve(pipe: Connection) -> None:
    """The process runs this."""
    Thread(target=_end_with_parent, daemon=True).start()
    # The pipe is closed, or broken if the other process was killed; or Ctrl-C, which reaches both processes.
    with suppress(EOFError, OSError, KeyboardInterrupt):
        pipe.send_bytes(b"")  # it has started
        while True:
            told, found = _called(pipe.recv_bytes())
            pipe.send(told)
            pipe.send_bytes(found)


def _end_with_parent() -> None:
    """End this process once the other one has ended, also in the middle of a function: its result has nowhere to go."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _called(pickled: bytes) -> tuple[Told | None, bytes]:
    """Call a function in this process. Gives its result or its exception, pickled."""
    try:
        function, item = pickle.loads(pickled)
        return None, _pickled(checked(copy_context().run(function, item)))
    except BaseException as error:
        text = traceback.TracebackException.from_exception(error)
        told, found = ("".join(text.format_exception_only()).strip(), "".join(text.format())), b""
        with suppress(Exception):  # as above
            found = _pickled(error)
        return told, found


def _pickled(thing: Any) -> bytes:
    buffer = BytesIO()
    _Pickler(buffer).dump(thing)
    return buffer.getvalue()


class _Pickler(ForkingPickler):
    """Pickles as the pool does, except for exceptions whose class does not say how they are pickled."""

    def reducer_override(self, thing: Any) -> Any:
        kind: Any = type(thing)
        if not issubclass(kind, BaseException):
            return NotImplemented
        built_in = built_in_of(kind)
        if kind.__reduce__ is not built_in.__reduce__ or kind.__reduce_ex__ is not built_in.__reduce_ex__:
            return NotImplemented
        _, args, *state = thing.__reduce__()
        return _made, (kind, built_in, args), *state


def _made(kind: Any, built_in: Any, args: tuple[Any, ...]) -> BaseException:
    error: BaseException = built_in.__new__(kind, *args)
    built_in.__init__(error, *args)
    return error
