"""Contestants take turns, round by round, so that other load, or a change of the clock rate, is the same for all.

Each is a process in its own environment, with the BLAS kernels of this processor whatever the environment variables
force, and blocks on a pipe between its turns. A round lasts 0.2 s or more. Before it there is a pause of 120 ms, since
the threads of OpenBLAS and OpenMP spin on for 25 to 110 ms. The first time does not count. Every other round goes
backwards (A B, B A). Ratios are taken within a round.
"""

from __future__ import annotations

import gc
import time
from contextlib import closing

from .child import Child
from .rows import UNITS, Cell, Here, Result, Row, Unavailable

PAUSE = 0.12
FEWER = ((8.0, 2), (1.5, 3), (0.0, 1_000))  # for rounds of more seconds than that, at most so many rounds
FRESH = 3  # rounds of works that need a new process for each


class Turns:
    """The children of a run, each started when it is first needed, and facts about them."""

    minutes = 10.0  # for subjects that run as long as they are told

    def __init__(self, *, rounds: int, quick: bool, install: bool, only: frozenset[str] = frozenset()) -> None:
        self.rounds, self.quick = rounds, quick
        self.install = install
        self._only = only  # contestants, if not all
        self._children: dict[str, Child] = {}
        self.facts: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def measure(self, row: Row) -> Result:
        measured: dict[str, list[float]] = {}
        failed, notes = dict[str, str](), dict[str, str]()
        cells = [(column, cell) for column, cell in row.cells.items() if self.wanted(cell)]
        rounds = {column: FRESH if row.fresh else self.rounds for column, _ in cells}
        for number in range(self.rounds + 1):  # in the first round all get ready
            for column, cell in reversed(cells) if number and number % 2 == 0 else cells:
                if column in failed or number > rounds[column] or (row.fresh and not number):
                    continue
                time.sleep(0 if self.quick else PAUSE)
                started = time.perf_counter()
                try:
                    value = self._turn(cell, row.fresh, counts=number > 0)
                except Unavailable as error:
                    failed[column] = str(error)
                    continue
                if value is not None:
                    rounds[column] = min(rounds[column], _most(time.perf_counter() - started))
                    measured.setdefault(column, []).append(value[0] * UNITS[row.unit])
                    notes[column] = value[1]
        self._forget()
        return row.result({c: values for c, values in measured.items() if c not in failed}, failed, notes)

    def wanted(self, cell: Cell) -> bool:
        """Whether its contestant takes part, with any package."""
        return not self._only or isinstance(cell, Here) or cell[0].partition(" package=")[0] in self._only

    def _turn(self, cell: Cell, fresh: bool, *, counts: bool) -> tuple[float, str] | None:
        """A round, if it counts; else preparations."""
        if isinstance(cell, Here):
            return self._turn_here(cell, counts)
        contestant, work = cell
        if fresh:
            with closing(self._opened(contestant)) as child:
                return child.work(work)
        if contestant not in self._children:
            self._children[contestant] = self._opened(contestant)
        child = self._children[contestant]
        try:
            if counts:
                return child.work(work)
            child.get_ready(work)
            return None
        finally:
            if not child.alive():  # the next work starts another
                self._children.pop(contestant).close()

    def _turn_here(self, cell: Here, counts: bool) -> tuple[float, str] | None:
        if self.quick and not counts:
            return None
        gc.collect()  # so that no contestant pays for another's leftovers
        try:
            found = cell.round()
        except Exception as error:  # any exception is why it has no number
            raise Unavailable(f"{type(error).__name__}: {error}".split("\n")[0]) from None
        value, note = found if isinstance(found, tuple) else (found, "")
        return (value / cell.ops, note) if counts else None

    def _opened(self, contestant: str) -> Child:
        if contestant in self.missing:
            raise Unavailable(self.missing[contestant])
        try:
            child = Child(contestant, self.quick, install=self.install)
        except Unavailable as error:
            self.missing[contestant] = str(error)
            raise
        self.facts[contestant] = child.facts
        return child

    def _forget(self) -> None:
        for contestant, child in list(self._children.items()):
            try:
                child.forget()
            except Unavailable:
                self._children.pop(contestant).close()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._children.values():
            child.close()


def _most(took: float) -> int:
    """How many rounds a work may have if one takes so long."""
    return next(rounds for seconds, rounds in FEWER if took >= seconds)
