"""What handles must hold, kept beside them with eager NumPy, while finalisers act in the middle of everything.

A finaliser that the collector runs inside `x[0] = 1` may itself write `x[1] = 2`, read `x`, or cancel it. Python runs
it to its end there, on the same thread, so such things nest. In which order they took effect is not told to anybody:
for each handle there may be several versions, of which one must be right. So:

- A *version* is one array that a handle may hold, and the versions that were made of it.
- A *shadow* is a handle with the versions it may hold now. While an assignment to it is under way, it may hold those
  from before, and those with the assignment made; when that has ended, only those in which it was made.
- An operation may have read each version that its operands may have held at any time while it was issued.

So an update that is lost, or made in part, is found out. Almost always there is one version, and all is exact. While
these books are changed the collector does not run: finalisers would find them half done.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from itertools import product
from types import TracebackType
from typing import Any

import numpy as np

from tests.ledger import task_of

Array = np.ndarray[Any, Any]
MANY = 16  # versions of a handle beyond which it is no longer looked at

NOT, MAYBE, SURELY = range(3)


def at_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have no finaliser run in the middle of a function."""

    @wraps(function)
    def calm(*args: Any, **options: Any) -> Any:
        if not gc.isenabled():
            return function(*args, **options)
        gc.disable()
        try:
            return function(*args, **options)
        finally:
            gc.enable()

    return calm


class Version:
    """One array that a handle may hold.

    Attributes:
        failed: it, or what it was made of, raises `Boom`.
        lost: it, or what it was made of, is of a handle that may hold more arrays than are known.
        gone: whether it was cancelled, or what it was made of.
        there: it has its result, so whoever cancels what it was made of comes too late. (That may have been the result
            of a task whose end was not noted yet, and which can be cancelled still.)
    """

    __slots__ = ("array", "failed", "gone", "lost", "readers", "there")

    def __init__(self, array: Array, parents: Sequence[Version] = (), *, failed: bool = False) -> None:
        self.array = array
        self.readers: list[Version] = []
        self.failed = failed or any(parent.failed for parent in parents)
        self.there = False
        self.lost = any(parent.lost for parent in parents)
        self.gone = max([parent.gone for parent in parents], default=NOT)
        for parent in parents:
            parent.readers.append(self)

    @at_once
    def cancel(self, gone: int) -> None:
        """It was cancelled, and with it all that was made of it."""
        todo = [self]
        while todo:
            version = todo.pop()
            if version.gone < gone and not version.there:
                version.gone = gone
                todo += version.readers

    def equals(self, array: Array) -> bool:
        """The same in type, shape and every byte."""
        mine = self.array
        return mine.dtype == array.dtype and mine.shape == array.shape and mine.tobytes() == array.tobytes()


State = tuple[frozenset[object], Version]  # which of the assignments under way have been made


class Shadow:
    """A handle, and the versions it may hold."""

    def __init__(self, handle: Any, versions: Iterable[Version]) -> None:
        self.handle = handle
        self._states: list[State] = [(frozenset(), version) for version in versions]
        self._under_way: dict[object, Callable[[Version], Version]] = {}
        self.watches: list[list[Version]] = []
        self._count()

    @property
    def lost(self) -> bool:
        """Whether it may hold more than is known; and with it all that is made of it from now on."""
        return any(version.lost for version in self.versions)

    @property
    def versions(self) -> list[Version]:
        """Those it may hold now."""
        return [version for _, version in self._states]

    @property
    def example(self) -> Array:
        """One of them: shape and dtype are the same in all."""
        return self._states[0][1].array

    @at_once
    def begin(self, assign: Callable[[Version], Version]) -> object:
        """An assignment begins, which may take effect from now on. Returns its name for `end`."""
        name = object()
        self._under_way[name] = assign
        self._close()
        return name

    @at_once
    def end(self, name: object, made: bool | None) -> None:
        """It has ended: it was made, or not; None if that is unknown."""
        del self._under_way[name]
        kept = [(done, v) for done, v in self._states if made is None or (name in done) is made]
        assert kept or self.lost
        self._states = [(done - {name}, version) for done, version in kept or self._states]

    @at_once
    def look(self) -> None:
        """Note whether its result is there."""
        if not self._under_way and task_of(self.handle) is None:
            for version in self.versions:
                version.gone, version.there = NOT, True

    def _close(self) -> None:
        """Whatever is under way may come next: the states are all that this leads to."""
        for done, version in self._states:  # grows meanwhile
            if self._count() > MANY:
                return
            for name, assign in list(self._under_way.items()):
                if name not in done:
                    self._add((done | {name}, assign(version)))

    def _count(self) -> int:
        """How many versions there are; of too many not all are made."""
        if len(self._states) > MANY:
            for version in self.versions:
                version.lost = True
        return len(self._states)

    def _add(self, state: State) -> None:
        self._states.append(state)
        for watch in self.watches:
            watch.append(state[1])


class Watch:
    """The versions that some shadows may hold at any time while this is open: one list for each."""

    def __init__(self, shadows: Sequence[Shadow]) -> None:
        self._shadows = shadows

    @at_once
    def __enter__(self) -> list[list[Version]]:
        self.seen: list[list[Version]] = []
        for shadow in self._shadows:
            watch = shadow.versions
            self.seen.append(watch)
            shadow.watches.append(watch)
        return self.seen

    @at_once
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for shadow, watch in zip(self._shadows, self.seen, strict=True):
            for i, other in enumerate(shadow.watches):
                if other is watch:
                    del shadow.watches[i]
                    break


@at_once
def derived(eager: Callable[..., Any], seen: Sequence[list[Version]], *, failed: bool = False) -> list[Version]:
    """What an operation may have made of the versions that it may have read."""
    found: list[Version] = []
    for parents in product(*seen):
        array = np.asarray(eager(*[parent.array for parent in parents]))
        found.append(Version(array, parents, failed=failed))
        if len(found) > MANY:
            break
    return found
