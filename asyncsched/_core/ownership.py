"""Who holds a value's buffer: the holders say so themselves, when they begin and when they end.

Theory of operation. A task may write over the buffer of a value that it reads if it is the only *holder*. A value has a
list of its holders, `Value.holders`, with one entry for each:

- An unfinished task has an entry for each of its reads, from when it is made until it lets go.
- Everything else has a *lease*: handles, the tape, captured constants, awaitables, copies out, and views, which lease
  their base. Outside the engine nothing keeps a `Value`: it keeps a `Lease`, which leads there.

If all entries are a task's own reads, and the array has not *escaped* (it never left the scheduler), that stays so:
only a holder can bring in another one. So any thread may ask. Appending to a list and popping from it are single steps,
with Python's global lock and without it, and no count of Python's references is read.

An entry must not end too early. In a dead cycle the collector calls all finalisers before it clears any object, and any
of them may read a handle or keep it. So a lease has an `Entry` in an object that the collector does not track: it ends
when the lease is cleared, and not before. (`devices.untracked` makes that object, and hands its maker to this file,
which knows no NumPy.) The entry refers to the list alone, so it hides no cycle of the user's from the collector.

A pending task that lacks bytes needs none once it is the only holder of an input that it can write over: see
`Ledger.relieve`. Until then the first entry has a weak reference to it (`watch`). Whoever takes another entry out sees
that, and reports it, so that the task is looked at again.

Small values have no list. They are never written over, and the count would cost more than the buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import ref

from .free_threading import FREE_THREADED, merge, merged_at_birth

if TYPE_CHECKING:
    from .model import Task, Value

COUNTED: Final = 1024  # bytes: smaller values on the host have no list of holders; a guess

_FEW: Final = 4  # entries: a task reads its input once or twice
_new_entry = merged_at_birth(object.__new__)
untracked: Callable[[object], object] = lambda thing: thing  # noqa: E731  # until `devices.untracked` hands over its own


class Entry:
    """An entry in a list of holders. It takes itself out at its end, on any thread and in the middle of anything."""

    __slots__ = ("holders",)
    holders: list[Any]

    def __del__(self) -> None:
        take_out(self.holders)


def take_out(holders: list[Any]) -> None:
    """Take one entry out of a list of holders. Which one does not matter, but the first goes last."""
    holders.pop()
    if len(holders) <= _FEW:
        for first in holders:
            if first is not None:
                _report(first)
            return


def watch(value: Value, task: Task) -> None:
    """Have a pending task, one of a value's holders, reported when only a few holders are left, and fewer."""
    assert value.holders is not None
    if value.holders[0] is None:
        value.holders[0] = {}
    value.holders[0][ref(task)] = None


def _report(watching: dict[ref[Task], None]) -> None:
    for waiting in list(watching):
        task = waiting()
        if task is not None:
            completions = task.scope.account.completions
            completions.items.append(waiting)
            completions.notify()


def enter(value: Value) -> object:
    """A new entry among a value's holders, until the returned object is dropped; None where nobody counts."""
    holders = value.holders
    if holders is None:
        return None
    holders.append(None)
    entry = _new_entry(Entry)
    entry.holders = holders
    return untracked(entry)


class Lease:
    """Holds a value for somebody outside the engine, until it is dropped. Handles are leases, too.

    A frame that reads a handle and goes on with the value keeps `_entry` as long: a finaliser may move the handle to
    another value at any step.
    """

    __slots__ = ("_entry", "_value")

    def __init__(self, value: Value) -> None:
        self._value = value
        self._entry = enter(value)

    if FREE_THREADED:

        def __new__(cls, *args: object, **options: object) -> Self:
            lease = object.__new__(cls)
            merge(lease)
            return lease


def sole(value: Value, entries: int) -> bool:
    """Whether a value has no more holders than these entries, which are the asker's own."""
    holders = value.holders
    return holders is not None and len(holders) <= entries


def sole_group(value: Value, tasks: Sequence[Task]) -> bool:
    """Whether nothing but these tasks holds a value, also by views of it. What is let go meanwhile counts as held."""
    holders = value.holders
    if holders is None:
        return False
    count = -1
    while count != len(holders):  # again if a task let go in between
        count = len(holders)
        views = _views_of(value, tasks)
        reads = Counter([id(read) for task in tasks for read in task.inputs])
        bases = Counter([id(view.base._value) for view in views if view.base is not None])
        if count <= reads[id(value)] + bases[id(value)] and all(
            sole(view, reads[id(view)] + bases[id(view)]) for view in views
        ):
            return True
    return False


def _views_of(value: Value, readers: Sequence[Task]) -> list[Value]:
    """The views between a value and the tasks that read it, each once."""
    todo = [read for task in readers for read in task.inputs]
    todo += [made for task in readers if (made := task.value) is not None and made.base is not None]
    found: dict[int, Value] = {}
    while todo:
        view = todo.pop()
        if view is not value and view.base is not None and view.owner is value and id(view) not in found:
            found[id(view)] = view
            todo.append(view.base._value)
    return list(found.values())
