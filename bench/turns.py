"""Contestants in child processes that take turns: the driver of `bench.peers` and `bench.beside`.

Each contestant lives in a process of its own environment, with the BLAS kernels of this processor whatever the
environment variables force, and blocks on a pipe between its turns. A round lasts 0.2 s or more; before it 120 ms pass,
since OpenBLAS's threads spin on for 25. The first time is not counted. Ratios are taken round by round.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from .environments import Unavailable, python_for
from .libraries import LIBRARIES
from .measure import ROOT

PAUSE = 0.12
PATIENCE = 120.0  # seconds that an answer may take
SLOW, FEW = 1.5, 3  # what takes longer than that many seconds has so many rounds
_FORCED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@dataclass(frozen=True)
class Target:
    """What a cell is held against, and why: a ratio to its row's first column, or so many of the row's unit."""

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


class Child:
    """A contestant's process."""

    def __init__(self, contestant: str, quick: bool, *, install: bool, processors: int | None = None) -> None:
        python = python_for(LIBRARIES[contestant].needs, install=install)
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # closed by `close`
        environment = {name: value for name, value in os.environ.items() if name not in _FORCED}
        spec = json.dumps({"contestant": contestant, "quick": quick, "processors": processors})
        self._process = subprocess.Popen(
            [python, "-m", "bench.contestant", spec],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
        )  # fmt: skip
        try:
            self.facts = str(self._ask({"facts": True}))
        except Unavailable:
            self.close()
            raise

    def ask(self, what: str, work: str) -> float:
        """Get "ready" for a work, or do the "work": a round's time for one operation, in seconds.

        Raises Unavailable where it cannot.
        """
        return float(self._ask({what: work}))

    def _ask(self, question: Mapping[str, object]) -> Any:
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        try:
            print(json.dumps(question), file=questions, flush=True)
        except BrokenPipeError:
            raise Unavailable(self._last_words()) from None
        with selectors.DefaultSelector() as ready:
            ready.register(answers, selectors.EVENT_READ)
            if not ready.select(PATIENCE):
                self._process.kill()
                self._process.wait()
                raise Unavailable(f"no answer in {PATIENCE:.0f} s")
        line = answers.readline()
        if not line:
            raise Unavailable(self._last_words())
        answer = json.loads(line)
        if "error" in answer:
            raise Unavailable(answer["error"])
        return answer["value"]

    def _last_words(self) -> str:
        status = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), f"its process ended ({status})")

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Tell it to end, and see that it does."""
        try:
            self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._said.close()


class Turns:
    """The children of a bench, each started when it is first needed, and what is measured of them."""

    def __init__(self, *, rounds: int, quick: bool, install: bool, without: Sequence[str] = ()) -> None:
        self._rounds, self._quick, self._install = rounds, quick, install
        self._without = without
        self._children: dict[str, Child] = {}
        self.facts: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def measure(self, row: Row) -> dict[str, Any]:
        """A row of results: by column, the median in the row's unit and the ratio to the first that has one."""
        measured: dict[str, list[float]] = {}
        slow: set[str] = set()
        failed: dict[str, str] = {}
        for number in range(self._rounds + 1):  # in the first all get ready
            for column, (contestant, work) in row.cells.items():
                enough = number > FEW and (row.fresh or column in slow)
                if column in failed or contestant in self._without or enough or (row.fresh and not number):
                    continue
                time.sleep(0 if self._quick else PAUSE)
                started = time.perf_counter()
                try:
                    value = self._turn(contestant, work, "work" if number else "ready", row.fresh)
                except Unavailable as error:
                    failed[column] = str(error)
                    continue
                if time.perf_counter() - started > SLOW:
                    slow.add(column)
                if number:
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


def _result(row: Row, measured: Mapping[str, Sequence[float]], failed: Mapping[str, str]) -> dict[str, Any]:
    reference = next((column for column in row.cells if column in measured), None)
    cells: dict[str, Any] = {column: {"error": error} for column, error in failed.items()}
    for column, values in measured.items():
        ratios = [mine / theirs for mine, theirs in zip(values, measured[reference or column], strict=False)]
        cells[column] = {"value": median(values), "ratio": median(ratios), "ratios": ratios}
    targets = {}
    for column, target in row.targets.items():
        found = target.measured(cells[column]) if column in measured else None
        met = None if found is None else found <= target.limit
        targets[column] = {**vars(target), "measured": found, "met": met}
    return {"work": row.title, "unit": row.unit, "reference": reference, "cells": cells, "targets": targets}


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
