"""Measuring fairly: contestants take turns, round by round, and a ratio is taken within each round.

A lone absolute time says little on a machine that is shared or changes its clock, so none is judged unless that is what
was asked for (import time, bytes, lag). The first round warms up and is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

# How many of a unit make one second (or byte, for what counts bytes).
UNITS = {"us/op": 1e6, "ms": 1e3, "s": 1.0, "tries": 1.0, "B/op": 1.0, "MiB": 1 / 2**20}
ROOT = Path(__file__).resolve().parents[1]
"""Where child processes start, to find this package."""
_SETTLE = 0.12  # seconds: OpenMP and BLAS threads of the last contestant spin on for up to 110 ms before they sleep


@dataclass(frozen=True)
class Asked:
    """What is asked of a contestant: at most this ratio, or at most this median in its unit."""

    ratio: float | None = None
    median: float | None = None
    aim: float | None = None

    def text(self, unit: str) -> str:
        limit = f"<= {self.ratio:.3g}x" if self.ratio is not None else f"< {self.median:g} {unit}"
        return limit if self.aim is None else f"{limit}, aim {self.aim:.2g}x"


@dataclass(frozen=True)
class Contestant:
    """Something that takes a turn in each round."""

    name: str
    round: Callable[[], float]
    """One round. Returns seconds, or bytes."""
    ops: int = 1
    """Operations in a round."""
    unit: str = "us/op"
    to: str | None = None
    """The name of the contestant its ratio is taken to; None for the first."""
    asked: Asked | None = None
    note: Callable[[], str] | None = None
    """What else to print, asked for when all rounds are over."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    median: float
    unit: str
    ratios: Sequence[float]
    to: str
    asked: Asked | None = None
    note: str = ""

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def met(self) -> bool | None:
        """Whether it is as asked; None if nothing is asked."""
        if self.asked is None:
            return None
        if self.asked.ratio is not None:
            return self.ratio <= self.asked.ratio
        return self.asked.median is not None and self.median < self.asked.median

    def cells(self) -> tuple[str, ...]:
        span = f"{min(self.ratios):.2f}..{max(self.ratios):.2f}"
        verdict = "" if self.asked is None else f"{self.asked.text(self.unit)}: {'met' if self.met else 'NOT met'}"
        return self.name, f"{_short(self.median)} {self.unit}", f"{self.ratio:.2f}x", span, self.to, verdict, self.note

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "median": self.median,
            "unit": self.unit,
            "ratio": self.ratio,
            "ratios": list(self.ratios),
            "to": self.to,
            "asked": self.asked.text(self.unit) if self.asked else None,
            "met": self.met,
            "note": self.note,
        }


def compare(
    contestants: Sequence[Contestant], rounds: int, *, warm_up: bool = True, settle: float = _SETTLE
) -> list[Row]:
    """Let the contestants take turns for some rounds, with a pause before each. Returns a row for each.

    A single round is a smoke run, and needs neither care.
    """
    measured: dict[str, list[float]] = {c.name: [] for c in contestants}
    warm_up = warm_up and rounds > 1
    for number in range(rounds + warm_up):
        for contestant in contestants:
            value = _take_turn(contestant, settle) if rounds > 1 else contestant.round() / contestant.ops
            if number >= warm_up:
                measured[contestant.name].append(value)
    return [_row(c, c.to or contestants[0].name, measured) for c in contestants]


def _take_turn(contestant: Contestant, settle: float) -> float:
    gc.collect()  # so that nobody pays for what another left behind
    time.sleep(settle)
    return contestant.round() / contestant.ops


def _row(contestant: Contestant, to: str, measured: dict[str, list[float]]) -> Row:
    mine = measured[contestant.name]
    ratios = [a / b if b else float(a == b) for a, b in zip(mine, measured[to], strict=True)]
    note = contestant.note() if contestant.note else ""
    scaled = median(mine) * UNITS[contestant.unit]
    return Row(contestant.name, scaled, contestant.unit, ratios, to, contestant.asked, note)


def timed(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def on_loop(
    main: Callable[[], Coroutine[Any, Any, float]], loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> Callable[[], float]:
    """A coroutine function as a round: each in an event loop of its own, asyncio's unless `loop` makes another."""

    def run() -> float:
        with asyncio.Runner(loop_factory=loop) as runner:
            return runner.run(main())

    return run


def uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes uvloop's loops, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


NO_UVLOOP = "uvloop: not installed, skipped (`pip install uvloop`)"


@dataclass
class Report:
    """What one benchmark found."""

    bench: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def print(self) -> None:
        print(self._title())
        print(_table([row.cells() for row in self.rows]))
        for note in self.notes:
            print(note)

    def save(self, path: str) -> None:
        found = {**self._setting(), "rows": [row.record() for row in self.rows], "notes": self.notes}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)

    def _setting(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "cpus": cpus(),
            "platform": platform.platform(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _title(self) -> str:
        setting = self._setting()
        return "{bench}: Python {python}, NumPy {numpy}, {cpus} CPUs, {date}".format(**setting)


Section = Callable[[bool, Report], None]


def run_bench(name: str, sections: dict[str, Section], arguments: Sequence[str] | None = None) -> None:
    """The command line of a benchmark: run its sections, print the table.

    A section is called with whether to be quick, and the report to add to.
    """
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}")
    parser.add_argument("--quick", action="store_true", help="a smoke run: the numbers mean nothing")
    parser.add_argument("--json", metavar="PATH", help="write the results there too")
    parser.add_argument("--only", metavar="NAMES", help=f"some sections of: {', '.join(sections)}")
    options = parser.parse_args(arguments)
    wanted: Iterable[str] = options.only.split(",") if options.only else sections
    report = Report(name)
    for section in wanted:
        print(f"{name} {section} ...", file=sys.stderr, flush=True)
        sections[section](options.quick, report)
    report.print()
    if options.json:
        report.save(options.json)


def cpus() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_HEADS = ("name", "median", "ratio", "min..max", "ratio to", "asked: measured", "")


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    lines = [_HEADS, tuple("-" * width for width in widths), *rows]
    return "\n".join(" | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip(" |") for line in lines)
