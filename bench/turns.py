"""Contestants in child processes that take turns: the driver of `bench.peers` and `bench.beside`.

Each contestant lives in a process of its own environment, with the BLAS kernels of this processor whatever the
environment variables force, and blocks on a pipe between its turns. A round lasts 0.2 s or more; before it 120 ms pass,
since OpenBLAS's threads spin on for 25 to 110. The first time is not counted. Ratios are taken round by round.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from .child import Child
from .environments import Unavailable

PAUSE = 0.12
FEWER = ((8.0, 1), (1.5, 3), (0.0, 1_000))  # what takes longer than that many seconds has at most so many rounds
FRESH = 3  # rounds of what needs a new process for each


@dataclass(frozen=True)
class Target:
    """What a cell is held against, and why: a ratio to its row's first column, or so many of the row's unit.

    It is not judged where the first column has no number.
    """

    limit: float
    why: str
    absolute: bool = False

    def measured(self, cell: Mapping[str, Any]) -> float:
        return float(cell["value" if self.absolute else "ratio"])


@dataclass(frozen=True)
class Row:
    """A work by those who can do it: by column, the contestant and what of `works.WORKS` it does."""

    title: str
    unit: str
    cells: Mapping[str, tuple[str, str]]
    targets: Mapping[str, Target] = field(default_factory=dict)
    fresh: bool = False  # a new process for each time


UNITS = {"us": 1e6, "ms": 1e3, "s": 1.0, "MiB": 2.0**-20}


class Turns:
    """The children of a bench, each started when it is first needed, and what is measured of them."""

    def __init__(self, *, rounds: int, quick: bool, install: bool, without: Set[str] = frozenset()) -> None:
        self._rounds, self._quick, self._install = rounds, quick, install
        self._without = without
        self._children: dict[str, Child] = {}
        self.facts: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def measure(self, row: Row) -> dict[str, Any]:
        """A row of results: by column, the median in the row's unit and the ratio to the first that has one."""
        measured: dict[str, list[float]] = {}
        rounds = dict.fromkeys(row.cells, FRESH if row.fresh else self._rounds)
        failed: dict[str, str] = {}
        for number in range(self._rounds + 1):  # in the first all get ready
            for column, (contestant, work) in row.cells.items():
                sits_out = number > rounds[column] or (row.fresh and not number)
                if column in failed or contestant in self._without or sits_out:
                    continue
                time.sleep(0 if self._quick else PAUSE)
                started = time.perf_counter()
                try:
                    value = self._turn(contestant, work, "work" if number else "ready", row.fresh)
                except Unavailable as error:
                    failed[column] = str(error)
                    continue
                if number:
                    rounds[column] = min(rounds[column], _most(time.perf_counter() - started))
                    measured.setdefault(column, []).append(value * UNITS[row.unit])
        return _result(row, measured, failed)

    def _turn(self, contestant: str, work: str, what: str, fresh: bool) -> float:
        if contestant in self.missing:
            raise Unavailable(self.missing[contestant])
        if fresh:
            with self._opened(contestant) as child:
                return child.ask(what, work)
        child = self._child(contestant)
        try:
            return child.ask(what, work)
        finally:
            if not child.alive():  # the next work starts another
                self._children.pop(contestant).close()

    def _child(self, contestant: str) -> Child:
        if contestant not in self._children:
            self._children[contestant] = self._open(contestant)
        return self._children[contestant]

    def _open(self, contestant: str) -> Child:
        name, _, processors = contestant.partition(" on ")
        try:
            limit = int(processors.split()[0]) if processors else None
            child = Child(name, self._quick, install=self._install, processors=limit)
        except Unavailable as error:
            self.missing[contestant] = str(error)
            raise
        self.facts[contestant] = child.facts
        return child

    @contextmanager
    def _opened(self, contestant: str) -> Iterator[Child]:
        child = self._open(contestant)
        try:
            yield child
        finally:
            child.close()

    def close(self) -> None:
        for child in self._children.values():
            child.close()


def _most(took: float) -> int:
    """How many rounds what takes that long may have."""
    return next(rounds for seconds, rounds in FEWER if took >= seconds)


def _result(row: Row, measured: Mapping[str, Sequence[float]], failed: Mapping[str, str]) -> dict[str, Any]:
    reference = next((column for column in row.cells if column in measured), None)
    cells: dict[str, Any] = {column: {"error": error} for column, error in failed.items()}
    for column, values in measured.items():
        ratios = [mine / theirs for mine, theirs in zip(values, measured[reference or column], strict=False)]
        cells[column] = {"value": median(values), "ratio": median(ratios), "ratios": ratios}
    targets = {}
    for column, target in row.targets.items():
        comparable = target.absolute or reference == next(iter(row.cells))  # what the limit is a ratio to
        found = target.measured(cells[column]) if column in measured and comparable else None
        met = None if found is None else found <= target.limit
        targets[column] = {**vars(target), "measured": found, "met": met}
    return {"work": row.title, "unit": row.unit, "reference": reference, "cells": cells, "targets": targets}


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
