"""Who holds a value's buffer: each holder counts itself in when it begins, and out when it ends.

Theory of operation. A task may write over the buffer of a value that it reads if it is the only *holder*. A value has a
list of its holders, `Value.holders`, with one entry for each:

- An unfinished task has an entry for each of its reads, from when it is made until it lets go.
- Everything else has a *lease*: handles, the tape, captured constants, awaitables, copies out, and views, which lease
  their base. Outside the engine nothing keeps a `Value`: it keeps a `Lease`, which leads there.

If all entries are a task's own reads, and the array has not *escaped* (it never left the scheduler), that stays so:
only a holder can bring in another one. So any thread may ask. Appending to a list and popping from it are single steps,
with the GIL and without it. No reference count of Python's is read.

An entry must not end too early. In a dead cycle the collector calls all finalisers before it clears any object, and any
of them may read a handle or keep it. So an `Entry` whose finaliser the collector calls (`gc.is_finalized` says so) only
hands its place in the list to a new entry, and keeps that. The new one is none of the objects that the collector has
found dead, so it ends when the first is cleared: after all finalisers, and only if none of them kept the handle.

A pending task that lacks bytes needs none once it is the only holder of an input that it can write over: see
`Ledger.relieve`. Until then the first entry in the list has a weak reference to the task (`watch`). Whoever takes
another entry out sees that, and reports the task, so that it is looked at again.

Small values have no list. They are never written over, and the list would cost more than the buffer.
"""

from __future__ import annotations

from gc import is_finalized
from typing import Any, Final, Protocol
from weakref import ref

from .._interrupts import finaliser
from .free_threading import merged_at_birth

# Bytes. Smaller values on the host have no list of holders; a guess.
COUNTED: Final = 1024
# Bytes. Smaller results on the host get no buffer of a pool, so no operation writes over them. For these malloc has
# memory that is already mapped (glibc maps afresh from 128 KiB).
POOLED_BYTES: Final = 64 * 1024

_FEW: Final = 4  # entries: a task reads its input once or twice


class Held(Protocol):
    """A value, as far as its holders go."""

    holders: list[Any] | None


class Entry:
    """An entry in a list of holders. It takes itself out at its end, on any thread and in the middle of anything."""

    __slots__ = ("holders", "out")
    holders: Any  # the list; or the entry that has its place there
    out: bool  # set once it is out

    @finaliser(lambda end, entry: _take_out_again(entry.holders) if hasattr(entry, "out") else end(entry))
    def __del__(self) -> None:
        try:
            holders = self.holders
        except AttributeError:  # a signal's exception came while this was being made: one entry too many stays
            return
        if is_finalized(self):  # by the collector
            later = _new_entry()
            later.holders, self.holders = holders, later
        else:
            self.out = True
            holders.pop()  # `take_out`, written out: every handle ends here
            for first in holders:
                if first is not None and len(holders) <= _FEW:
                    _report(first)
                return


_new_entry = merged_at_birth(Entry)


def enter(holders: list[Any]) -> Entry:
    """A new entry in a list of holders, until the returned object is dropped."""
    holders.append(None)
    entry = _new_entry()
    entry.holders = holders
    return entry


def take_out(holders: list[Any]) -> None:
    """Take one entry out of a list of holders: the last, since all are alike but the first, which may be watched."""
    holders.pop()
    for first in holders:
        if first is not None and len(holders) <= _FEW:
            _report(first)
        return


def _take_out_again(holders: list[Any]) -> None:
    """After an interruption: the entry is out, and whoever watches may not have been told."""
    holders.append(None)
    take_out(holders)


def watch(value: Held, task: Any) -> None:
    """Have a pending task, one of a value's holders, reported each time a holder goes and only a few are left."""
    assert value.holders is not None
    if value.holders[0] is None:
        value.holders[0] = {}
    value.holders[0][ref(task)] = None


def _report(watching: dict[ref[Any], None]) -> None:
    for waiting in list(watching):
        task = waiting()
        if task is not None:
            completions = task.scope.account.completions
            completions.items.append(waiting)
            completions.notify()


def sole(value: Held, entries: int) -> bool:
    """Whether a value has no more holders than these entries, which are the asker's own."""
    holders = value.holders
    return holders is not None and len(holders) <= entries
