"""The event loop's thread while it is blocked: `LoopGuard` logs the line, a signal has it explained from outside.

Theory of operation of `LoopGuard`. A watchdog thread asks the loop for a sign, several times in each threshold. If none
comes within the threshold, it reads the stack of the loop's thread, while that is still blocked. Then it waits for the
sign, to learn how long the block was. If the stack shows no callback, the loop goes on just now, or the whole process
was stopped: that is no block.

Theory of operation of `explain_on_signal`. A handler in Python would run on the main thread, between two bytecodes:
only after a long call of NumPy has ended there, and in the middle of the scheduler's work. So a thread waits for the
signal in `sigwait`, and `python -m asyncsched explain` sends it to that very thread. `kill -USR1` sends it to the
process, and the main thread gets it: the handler there does no more than pass it on. `faulthandler`, which has a
handler in C, is of no use here: it reads frames while they change, and one signal in some hundred ends a process whose
threads come and go.

That thread asks each scheduler's loop for its explanation, in a callback. A loop that does not answer within a second
is blocked: then the thread says so, shows where, and reads the engine's counts itself. These change only for moments
while the loop is blocked; if a read fails it is repeated.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
import traceback
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from functools import partial
from os.path import dirname, join
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter
from types import FrameType
from typing import Any, Final

from .._arguments import check_number
from .._core.instrument import Instrument
from .._system import log, start_thread
from ..runtime.context import opened
from ..runtime.explain import explain_all
from ..runtime.loop_work import LOOKING
from ..runtime.loops import comes
from ..runtime.runtime import Runtime

_SIGNS = 4  # signs for which the loop is asked in a threshold
_EVERY = 1.0  # seconds after a block in which no other is reported, for a short log
_PACKAGE = join(dirname(dirname(__file__)), "")
_CALLBACK, _TURN, _RUNNER = [  # of asyncio: the function that calls a callback, its caller, and the caller of uvloop
    (join(dirname(asyncio.__file__), file), name)
    for file, name in (("events.py", "_run"), ("base_events.py", "_run_once"), ("runners.py", "run"))
]


class LoopGuard(Instrument):
    """An instrument that logs (as "asyncsched") when the event loop's thread was blocked, and by which line.

    The stack is taken while the loop is blocked. When it goes on, the log says how long the block was. Blocks within
    the next second are not reported.

    >>> async def main():
    ...     async with asc.Scheduler("cpu", instruments=[asc.observe.LoopGuard()]) as s:
    ...         await s.call(sum, range(10))  # `sum(range(10**8))` here would be logged
    >>> asc.run(main)

    Args:
        threshold: after so many seconds without a turn the loop counts as blocked. Some blocks that are less than a
            quarter longer are missed.

    Raises:
        ValueError, TypeError: for a threshold that is not above 0, or no number.
        RuntimeError: when given to a second scheduler while the first has it.
    """

    def __init__(self, threshold: float = 0.05) -> None:
        self._threshold = min(check_number("threshold", threshold, "seconds"), threading.TIMEOUT_MAX)
        self._stopped: SimpleQueue[None] | None = None  # gets an item when the scheduler closes

    def attached(self, scheduler: Any) -> None:
        if self._stopped is not None:
            raise RuntimeError("this LoopGuard has a scheduler already: make another")
        self._stopped = SimpleQueue()

    def opened(self) -> None:
        assert self._stopped is not None
        loop, thread = asyncio.get_running_loop(), threading.get_ident()
        run = partial(watch, loop, thread, self._threshold, self._stopped)
        start_thread(run, "loop guard")

    def detached(self) -> None:
        assert self._stopped is not None
        self._stopped.put(None)
        self._stopped = None


def watch(loop: asyncio.AbstractEventLoop, thread: int, threshold: float, stopped: SimpleQueue[None]) -> None:
    """Report each block of a loop, which runs on the thread of this number, until there is an item in `stopped`."""
    pause = threshold / _SIGNS
    while not (comes(stopped, pause) or loop.is_closed()):
        pause = threshold / _SIGNS
        if not loop.is_running():
            continue
        asked = perf_counter()
        sign: SimpleQueue[None] = SimpleQueue()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(sign.put, None)
        if comes(sign, threshold) or not loop.is_running() or (stack := stack_of(thread)) is None:
            continue
        last = next((frame for frame in reversed(stack) if not frame.filename.startswith(_PACKAGE)), None)
        where = (
            f"{last.filename}:{last.lineno} in {last.name}" if last else "the scheduler's own" if stack else "C code"
        )
        log.warning(
            "the event loop is blocked, since %.3f s, at %s\n%sPut long work into a task: `await s.call(fn, ...)`,"
            " or `await asyncio.to_thread(fn, ...)`",
            perf_counter() - asked,
            where,
            "".join(traceback.format_list(stack)),
        )
        while not comes(sign, threshold):
            if not stopped.empty() or loop.is_closed():
                return
        log.warning("the event loop was blocked for %.3f s, at %s", perf_counter() - asked, where)
        pause = _EVERY


def stack_of(thread: int) -> list[traceback.FrameSummary] | None:
    """The stack of the callback that a loop's thread runs, the outermost frame first; None if it runs none.

    As text, since a kept frame would keep its tensors.
    """
    frame = sys._current_frames().get(thread)
    found = list(traceback.extract_stack(frame)) if frame is not None else []
    del frame
    places = [(summary.filename, summary.name) for summary in found]
    for below in (_CALLBACK, _TURN, _RUNNER):
        if below in places:
            return None if below is _TURN else found[len(places) - places[::-1].index(below) :]
    return found


# -- explanations on a signal ----------------------------------------------------------------------------------------

_PATIENCE: Final = 1.0  # seconds within which a loop that is not blocked begins to answer
_ANSWER: Final = 30.0  # seconds for the whole answer
_ATTEMPTS: Final = 10  # at reading state that another thread changes

_SIGNAL: Final = getattr(signal, "SIGUSR1", None)
# The waiting thread's name, as other processes see it. By it they find the thread, and know that the process listens:
# the signal would end a process that does not. That a process catches the signal is not enough: a shell catches it,
# and ends.
_THREAD: Final = "asc explains"
_threads: list[threading.Thread] = []  # the one that waits, once asked for


HELP: Final = "an error's cause and cure; or what a process of yours waits for, also while its event loop is blocked"
PRINTS: Final = """\
Of an error: its part of asyncsched/ERRORS.md.

Of a process: it prints to its own stderr, for each open scheduler, the awaited tasks that are not done, the
things for which they wait (a slot, bytes, another task), and so on down to the tasks that run or the holders
of the bytes, each with the line that submitted it. Nothing in the process changes. It has to listen: call
asyncsched.observe.explain_on_signal() at its start.
"""
_ERRORS: Final = Path(__file__).parents[1] / "ERRORS.md"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "what",
        metavar="ERROR|PID",
        help="an error's name, as a traceback shows it; or a process's number, as `ps` does",
    )


def report(arguments: Namespace) -> str:
    """The output of `python -m asyncsched explain`.

    Raises:
        ValueError: if it is neither a number nor an error in `ERRORS.md`.
    """
    what: str = arguments.what
    return ask(int(what)) if what.isdecimal() else cause_and_cure(what)


def cause_and_cure(error: str) -> str:
    """The part of `ERRORS.md` about an error. The module's name before the error's may stay, as a traceback has it."""
    parts = {part.partition("\n")[0]: part.strip() for part in _ERRORS.read_text("utf-8").split("\n## ")[1:]}
    name = error.rpartition(".")[2]
    if name not in parts:
        raise ValueError(f"there is no error {error!r}; there are {', '.join(parts)}; or give a process's number")
    return parts[name]


def explain_on_signal() -> None:
    """From now on, at SIGUSR1 this process prints `s.explain()` of every open scheduler to stderr.

    `python -m asyncsched explain PID` sends the signal. The answer comes also while the event loop is blocked, with the
    line that blocks it. A signal from elsewhere (`kill -USR1 PID`) is answered once the main thread runs Python again:
    a long call of NumPy there has to end first. A second call does nothing. An earlier handler of SIGUSR1 is replaced.
    A child of a fork has to call this itself.

    >>> asc.observe.explain_on_signal()

    Raises:
        RuntimeError: on Windows, which has no such signal; or if it is called on another thread than the main one.
    """
    if _SIGNAL is None:
        raise RuntimeError("explain_on_signal() needs SIGUSR1, which Windows does not have: call `s.explain()` there")
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("explain_on_signal() sets a handler of a signal, as only the main thread may: call it there")
    if _threads:
        return
    listening = threading.Event()
    _threads.append(start_thread(partial(_listen, listening), "explains"))
    signal.signal(_SIGNAL, _pass_on)
    listening.wait()


def ask(pid: int) -> str:
    """Send the signal to a process. Returns a message for the user.

    Raises:
        SystemExit: if there is no such process, or it does not listen: then the signal would end it.
    """
    threads = Path(f"/proc/{pid}/task")
    if _SIGNAL is None or not Path("/proc/self").exists():
        raise SystemExit(f"asyncsched: cannot tell here whether process {pid} listens; if it does: kill -USR1 {pid}")
    if not threads.exists():
        raise SystemExit(f"asyncsched: there is no process {pid}")
    for thread in threads.iterdir():
        if _name_of(thread) == _THREAD:
            _send(pid, int(thread.name), _SIGNAL)
            return f"process {pid} prints it to its stderr"
    raise SystemExit(f"asyncsched: process {pid} does not listen: call `asyncsched.observe.explain_on_signal()` in it")


def _send(pid: int, thread: int, signum: int) -> None:
    """Send it to that thread alone: it waits there while the thread is busy."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "tgkill"):  # as in musl
        os.kill(thread, signum)  # while that thread is busy, Linux gives it to another
    elif libc.tgkill(pid, thread, signum):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _name_of(thread: Path) -> str:
    try:
        return (thread / "comm").read_text("ascii", "replace").strip()
    except OSError:  # it has ended
        return ""


def _pass_on(signum: int, frame: FrameType | None) -> None:
    for thread in _threads:
        if thread.is_alive() and thread.ident:  # not before its start, nor in the child of a fork
            signal.pthread_kill(thread.ident, signum)


LOOKING.add(_pass_on)


def _listen(listening: threading.Event) -> None:
    assert _SIGNAL is not None
    signal.pthread_sigmask(signal.SIG_BLOCK, [_SIGNAL])
    with suppress(OSError):  # by this name `ask` finds the thread; only on Linux
        Path("/proc/thread-self/comm").write_text(_THREAD, "ascii")
    listening.set()
    while True:
        signal.sigwait([_SIGNAL])
        found = [_explained(runtime) for runtime in opened()]
        told = "\n".join(found or ["no scheduler is open"])
        _print(f"asyncsched, process {os.getpid()}:\n{told}\n")


def _print(text: str) -> None:
    """Write to stderr, if there is one.

    Not through its buffer: at a full pipe this thread would wait with the buffer's lock, and the end of the interpreter
    waits for that.
    """
    stderr = sys.stderr
    raw = getattr(getattr(stderr, "buffer", None), "raw", None)
    with suppress(OSError, ValueError):  # it is closed, or nobody reads it any more
        if isinstance(raw, io.FileIO):
            rest = text.encode(stderr.encoding, "backslashreplace")
            while rest:
                rest = rest[os.write(raw.fileno(), rest) :]
        elif stderr is not None:  # which `print` would take for stdout
            print(text, end="", file=stderr, flush=True)


def _explained(runtime: Runtime) -> str:
    """The answer of a scheduler's loop, or what this thread can see."""
    loop = runtime.loop
    assert loop is not None
    answers: SimpleQueue[str] = SimpleQueue()

    def answer() -> None:
        answers.put("it has begun")
        runtime.engine.drain()
        answers.put(explain_all(runtime))

    with suppress(Empty, RuntimeError):  # the loop is blocked, or closed
        if loop.is_running():
            loop.call_soon_threadsafe(answer)
            answers.get(timeout=_PATIENCE)
            return answers.get(timeout=_ANSWER)
    return _seen_from_outside(runtime, loop.is_running())


def _seen_from_outside(runtime: Runtime, running: bool) -> str:
    frame = sys._current_frames().get(runtime.thread)
    if not running:
        where = "its event loop does not run\n"
    elif frame is None:
        where = "its event loop's thread is gone\n"
    else:
        stack = "".join(traceback.format_stack(frame)[-_ATTEMPTS:])
        where = (
            f"its event loop is blocked; the thread has been busy for over {_PATIENCE:g} s, and is here now:\n{stack}"
        )
    del frame
    for _ in range(_ATTEMPTS):
        with suppress(Exception):  # a container changed meanwhile: nothing else can fail here
            return f"{where}{explain_all(runtime)}"
    return f"{where}{runtime!r}"


def _forget() -> None:
    """After a fork, in the child: it does not have the thread."""
    if _threads:
        _threads.clear()
        if signal.getsignal(signal.SIGUSR1) is _pass_on:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
