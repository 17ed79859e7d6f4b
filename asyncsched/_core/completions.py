"""How other threads report to the event loop's thread: a queue of completions and drops, with one wake-up per burst.

Theory of operation. A stream's thread, a garbage collection or a dropped array has something to report (a task ended, a
copy is made, bytes are free) and must not touch the scheduler's state, which belongs to the loop's thread. So it
appends to a deque, which is atomic in CPython, and wakes the loop if a coroutine waits. No lock is needed, because the
two sides write and read in opposite orders (as in Dekker's algorithm):

- the reporting thread *appends* first and *reads the flags* second;
- the loop's thread *sets a flag* first and *reads the deque* second.

Whichever comes later sees the other's write, so no wake-up is lost. Anything here may run in the middle of anything
(`__del__`, a weak reference's callback), so it appends and at most schedules a callback; it never waits.

When is the loop woken? An iteration of the loop costs some tens of microseconds of a core that the streams need, so one
completion alone wakes it only if somebody waits for that very task, or was told of its failure while it still ran; if
its stream has run dry while tasks are pending; or if so many bytes are free now that a pending task which lacked them
may go. Else completions gather until `threshold` of them are there: about half of what is in flight, so that the
streams never run out of work meanwhile.

The loop sets how many bytes are lacking, and each drop counts that down. Taking from `wants_bytes` what was
freed reads and writes it with no call between, so it is one step to other threads. Bytes that were freed before the
number was set may be counted twice, and those of an account where nobody waits are counted, too: then the loop wakes
for nothing, never too late. What a task drops when it ends is reported together with its end, a moment later
(`ending`): a wake-up in between would delay its stream, which needs the GIL for the rest.

There is a shortcut. While no scan for a task that fits is under way, what the loop's own thread drops is given back in
`Value.__del__` itself. `immediate_thread` is the number of that thread. It is set when an operation runs at once and
nothing is unfinished, until the next task is submitted; and while the engine runs quick tasks one after the other,
since it scans again afterwards.

What is dropped where nothing can be reported, at the end of a recursion or in the middle of a signal, sets `fatal`; so
does a stream's thread that is about to die by an exception that is no task's. Then all is given up. It is an attribute,
since there may be no room for a call or an object.

Memory may be *on its way back*: nobody holds it, and its bytes come by themselves once a device has done what was asked
of it. Until then it is neither in flight nor held, and decisions that are made only when nothing else moves (the
progress rule, the search for a deadlock) wait for it. So the thread that waits for the device notes it in `returning`
before it reports anything that follows from the drop; when the memory is back it removes it first and reads the flag
second.

What was tried and dropped: `call_soon_threadsafe` per completion (a wake-up each: the loop did nothing else under tiny
tasks), a `queue.SimpleQueue` (its `get_nowait` raises at the end of each burst), and a lock around state that all
threads may touch (the garbage collector runs `__del__` in the thread that holds it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False, repr=False)
class Completions:
    """A deque with one wake-up per burst.

    Its items are tasks and other jobs that ended, and triples (account, bytes, number of the task) for results that
    were dropped.
    """

    wake: Callable[[], None]
    items: deque[Any] = field(default_factory=deque)
    returning: dict[int, Any] = field(default_factory=dict)  # memory that is on its way back, by identity
    awake: bool = False  # an iteration of the loop that takes in everything is scheduled
    immediate_thread: int = 0  # the thread whose drops are given back at once; 0 if none are
    wants_slots: bool = False  # tasks are pending: wake at `threshold` completions, or when a stream runs dry
    threshold: int = 1
    wants_bytes: int = 0  # how many a pending task lacks; below 0: wake at every drop and every end
    fatal: BaseException | None = None  # what kept somebody from reporting, or ended a stream's thread
    ending: bool = False  # a stream is dropping what a task held, and will check `wants_bytes` afterwards

    def completed(self, job: Any, dry: bool) -> bool:
        """Report a task or another job that ended; `dry` says that its stream has nothing left to run.

        Returns whether the caller must wake the loop, by `notify`, once it has dropped its references to the job. (A
        wake-up releases the GIL: the awaiting coroutine would find the job still referenced by the stream.)
        """
        self.items.append(job)
        self.ending = False
        if job.waiters or self.fatal is not None:
            return True
        if not self.wants_slots:
            return job.failure is not None  # told perhaps before it ended, to who then has no waiter
        if self.wants_bytes:
            self.wants_bytes = self.wants_bytes - job.refund or -1
        return dry or self.wants_bytes < 0 or len(self.items) >= self.threshold

    def dropped(self, held: Any) -> None:
        """Report what was charged for a value, or an array that left, which nobody holds any more.

        It is marked as reported just before, with no call in between: see `devices.memory.Memory.drop_again`.
        """
        charge, held.charge = held.charge, 0
        self.items.append((held.account, charge, held.seq))
        if self.wants_bytes:
            self.freed(charge)

    def freed(self, nbytes: int) -> None:
        """Count what was dropped while bytes are lacking."""
        self.wants_bytes = self.wants_bytes - nbytes or -1
        if self.wants_bytes < 0 and not self.ending:
            self.notify()

    def died(self, error: BaseException) -> None:
        """The calling thread, a stream's, is about to end by an exception that is no task's."""
        self.fatal = error
        self.notify()

    def returned(self, identity: int) -> None:
        """Report that memory is back, or that it may take as long as if it were held."""
        if self.returning.pop(identity, None) is not None and self.wants_bytes:
            self.notify()

    def notify(self) -> None:
        """Have the loop take everything in, soon."""
        if not self.awake:
            self.awake = True
            try:
                self.wake()
            except BaseException:  # at the end of a recursion: the next one wakes it
                self.awake = False
                raise
