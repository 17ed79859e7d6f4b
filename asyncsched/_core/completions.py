"""How other threads report to the event loop's thread: a queue of completions and drops, with one wake-up per burst.

Theory of operation. A stream's thread or a finaliser has something to report: a task ended, a copy is made, bytes are
free. It must not touch the scheduler's state, which belongs to the loop's thread. So it appends to a deque, which is
one step in CPython, and wakes the loop if a coroutine waits. No lock is needed, because the two sides write and read in
opposite orders (as in Dekker's algorithm):

- the reporting thread *appends* first and *reads the flags* second;
- the loop's thread *sets a flag* first and *reads the deque* second.

Whichever comes later sees the other's write, so no wake-up is lost. A report may run in the middle of anything
(`__del__`, a weak reference's callback), so it appends and at most schedules a callback. It never waits.

When is the loop woken? An iteration of the loop costs some tens of microseconds of a core that the streams need. So one
completion alone wakes it only if

- somebody waits for that very task, or got its failure while it still ran;
- its stream has run dry while tasks are pending; or
- a pending task lacks bytes.

Otherwise completions gather until there are `threshold`, about half of the tasks in flight. The other half keeps the
streams busy meanwhile.

While a pending task lacks bytes, every drop and every end wakes the loop. A task's own drops at its end are reported
together with its end, a moment later (`ending`): a wake-up in between would delay its stream, which needs the GIL for
the rest.

There is a shortcut. While no scan for a fitting task is under way, the bytes of what the loop's own thread drops are
given back there and then. `immediate_thread` is the number of that thread. It is set while nothing is unfinished, until
the next task is submitted; and while the engine runs quick tasks in a row, since it scans again afterwards.

Some drops cannot be reported: there is no memory, or they come at the end of a recursion. They set `fatal`. So does a
stream's thread that dies of an exception that is no task's. Then everything is abandoned. `fatal` is an attribute,
since there may be no room for a call or an object. (At the very end of a recursion CPython cannot even enter a
finaliser written in Python. Then nobody learns of the drop, and its bytes stay charged.)

Memory may be *on its way back*: nobody holds it, and its bytes come once a device has done its work. Until then it is
neither in flight nor held. Decisions that need everything else at rest (the progress rule, the search for a deadlock)
wait for it. So the thread that waits for the device enters it in `returning` before it reports anything that follows
from the drop. When the memory is back, the thread removes the entry first and reads the flag second.

Tried and dropped: to count down the bytes that are lacking, so that only the last of them wakes the loop (it was no
faster, and with tasks that wait for bytes alone up to a tenth slower); `call_soon_threadsafe` per completion (a wake-up
each: the loop did nothing else under tiny tasks); a `queue.SimpleQueue` (its `get_nowait` raises at the end of each
burst); a lock around shared state (the garbage collector may run `__del__` in the thread that holds it).
"""

from __future__ import annotations

from _thread import get_ident
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

NO_ROOM: Final = (MemoryError, RecursionError)  # raised where there is no room to report; a signal raises others


@dataclass(slots=True, eq=False, repr=False)
class Completions:
    """A deque with one wake-up per burst.

    Its items are tasks and other jobs that ended; triples (account, bytes, number of the task) for dropped results; and
    weak references to pending tasks whose input has a holder less.
    """

    wake: Callable[[], None]
    items: deque[Any] = field(default_factory=deque)
    returning: dict[int, Any] = field(default_factory=dict)  # memory on its way back, by identity
    awake: bool = False  # an iteration of the loop that takes everything in is scheduled
    immediate_thread: int = 0  # the thread whose drops are given back at once; 0 for none
    wants_slots: bool = False  # tasks are pending: wake at `threshold` completions, or when a stream runs dry
    threshold: int = 1
    wants_bytes: bool = False  # a pending task lacks bytes: wake at every drop and every end
    fatal: BaseException | None = None  # the exception that prevented a report or ended a stream's thread
    # Called on the loop's thread once no task is unfinished, to undo settings of the process; each once
    at_rest: list[Callable[[], None]] = field(default_factory=list)
    ending: bool = False  # a stream is dropping a task's references, and will check `wants_bytes` afterwards

    def completed(self, job: Any, dry: bool) -> bool:
        """Report a task or another job that ended. `dry`: its stream has nothing left to run.

        Returns whether the caller must call `notify`, once it has dropped its references to the job. (A wake-up
        releases the GIL: the awaiting coroutine would find that the stream still refers to the job.)
        """
        self.items.append(job)
        self.ending = False
        if job.waiters or self.fatal is not None:
            return True
        if not self.wants_slots:
            return job.failure is not None  # a waiter may have got it earlier, and be gone
        return dry or self.wants_bytes or len(self.items) >= self.threshold

    def dropped(self, held: Any) -> None:
        """Report the charge of a value, or of an array that left, which nobody holds any more.

        Its charge is set to 0 just before, with no call in between: see `report_again`.
        """
        account: Any = held.account
        mine = self.immediate_thread  # most often 0, which is quickly told
        if mine and mine == get_ident() and not account.closed:
            account.used, held.charge = account.used - held.charge, 0
            return
        charge, held.charge = held.charge, 0
        self.items.append((account, charge, held.seq))
        if self.wants_bytes and not self.ending:
            self.notify()

    def died(self, error: BaseException) -> None:
        """Report that the calling thread, a stream's, ends by an exception that is no task's."""
        self.fatal = error
        self.notify()

    def returned(self, identity: int) -> None:
        """Report that memory is back; or that nobody knows when it will be, so decisions must no longer wait for it."""
        if self.returning.pop(identity, None) is not None and self.wants_bytes:
            self.notify()

    def notify(self) -> None:
        """Let the loop take everything in, soon."""
        if not self.awake:
            self.awake = True
            try:
                self.wake()
            except BaseException:  # at the end of a recursion: the next report wakes it
                self.awake = False
                raise


def report_again(drop: Callable[[Any], None], held: Any) -> None:
    """Finish a finaliser that a signal's exception interrupted. Perhaps it had reported, and not woken the loop.

    A step of `drop` that must not be done twice is marked as done just before, with no call in between.
    """
    drop(held)
    held.account.completions.notify()
