"""The language of benches: rows of works, a contestant in each column, and targets for cells."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]  # child processes start here, to find this package
UNITS = {"us": 1e6, "ms": 1e3, "s": 1.0, "MiB": 2.0**-20, "bytes": 1.0, "count": 1.0}


@dataclass(frozen=True)
class Who:
    """A contestant by its name: a library, then words.

    "asyncsched streams=1 uvloop", "run_in_executor", "jax jit", "numpy processors=1". Lower-case words with a value are
    the library's options, except `processors=` (how many it may use) and `package=` (the folder of its asyncsched).
    Upper-case words go into its environment. Words without a value are flags.
    """

    library: str
    flags: frozenset[str]
    options: Mapping[str, Any]
    environment: Mapping[str, str]
    processors: int | None
    package: str | None

    @classmethod
    def of(cls, name: str) -> Who:
        library, *words = name.split()
        pairs = dict(word.split("=", 1) for word in words if "=" in word)
        environment = {key: value for key, value in pairs.items() if key.isupper()}
        processors, package = pairs.pop("processors", None), pairs.pop("package", None)
        return cls(
            library,
            frozenset(word for word in words if "=" not in word),
            {key: json.loads(value) for key, value in pairs.items() if key not in environment},
            environment,
            None if processors is None else int(processors),
            package,
        )


@dataclass(frozen=True)
class Target:
    """The target of a cell, and its reason: a ratio to the row's first column, or an amount in the row's unit.

    It is not judged if the first column has no number.
    """

    limit: float
    why: str
    absolute: bool = False


@dataclass(frozen=True)
class Here:
    """A contestant in this process, for works that children cannot do. A round returns seconds, or bytes, and perhaps a
    note."""

    round: Callable[[], float | tuple[float, str]]
    ops: int = 1


OURS = "asyncsched"
CONTESTANTS = {
    "NumPy": "numpy",
    "PyTorch": "torch",
    "JAX": "jax",
    "JAX, jit": "jax jit",
    "MXNet": "mxnet",
    "Dask": "dask",
    "Ray": "ray",
    "one stream": "asyncsched streams=1",
    "two streams": "asyncsched streams=2",
    "with numba": "asyncsched numba",
    "unbounded": "asyncsched max_ops=null max_bytes=null max_pending=null",
}
"""Contestants by column, if the column has another name."""
Cell = tuple[str, str] | Here
"""A contestant's name (see `Who`) and its work (see `contestant.Work`); or one in this process."""
Result = dict[str, Any]


def alike(work: str, *columns: str, words: str = "") -> dict[str, Cell]:
    """Cells of contestants that do the same work, each with these words after its name."""
    return {column: (CONTESTANTS.get(column, column) + words, work) for column in columns}


def ours(limit: float, why: str, *, absolute: bool = False) -> dict[str, Target]:
    return {OURS: Target(limit, why, absolute)}


@dataclass(frozen=True)
class Row:
    """A work, with the contestants that can do it, by column."""

    key: str
    title: str
    unit: str
    cells: Mapping[str, Cell] = field(default_factory=dict)
    targets: Mapping[str, Target] = field(default_factory=dict)
    fresh: bool = False  # whether each time needs a new process

    def result(
        self,
        measured: Mapping[str, Sequence[float]],
        failed: Mapping[str, str] = {},
        notes: Mapping[str, str] = {},
        *,
        off: bool = False,
    ) -> Result:
        """The kept result: by column, the median and the ratio to the first column that has values.

        Args:
            measured: by column, values in the row's unit, round by round.
            off: the ratio says how far off a value is, in either direction: if it is less than one, it is inverted.
        """
        columns = [*dict.fromkeys([*self.cells, *measured, *failed])]
        reference = next((column for column in columns if column in measured), None)
        cells: dict[str, Any] = {}
        for column in columns:
            if column in failed:
                cells[column] = {"error": failed[column]}
            elif column in measured:
                values, others = measured[column], measured[reference or column]
                ratios = [a / b if b else float(a == b) for a, b in zip(values, others, strict=False)]
                if off:
                    ratios = [max(ratio, 1 / ratio) for ratio in ratios]
                cells[column] = {"value": median(values), "ratio": median(ratios), "ratios": ratios}
                cells[column] |= {"note": notes[column]} if notes.get(column) else {}
        targets = {}
        for column, target in self.targets.items():
            comparable = target.absolute or reference == columns[0]  # the value to which the limit is a ratio
            found = (
                cells[column]["value" if target.absolute else "ratio"] if column in measured and comparable else None
            )
            met = None if found is None else found <= target.limit
            targets[column] = {**vars(target), "measured": found, "met": met}
        head = {"key": self.key, "work": self.title, "unit": self.unit, "reference": reference}
        return {**head, "cells": cells, "targets": targets}


class Unavailable(Exception):
    """A contestant or subject cannot run here. The message says why."""
