"""The subjects, and the rows of each by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .rows import Result, Row
from .turns import Turns

SUBJECTS = (
    *("peers", "beside", "growth", "heart", "throughput", "loop_lag", "networks", "pipeline", "loaders", "guests"),
    *("serving", "tokens", "soak", "replan", "dask_threads", "cluster", "gpu"),
)
"""Modules. Each has `ROWS`, and a docstring that says what it measures."""


@dataclass(frozen=True)
class Together:
    """Rows that one function measures in its own way, or makes when it is called."""

    key: str
    measure: Callable[[Turns], Iterable[Result]]


def module_of(subject: str) -> Any:
    return importlib.import_module(f"bench.{subject}")


def chosen(names: Sequence[str]) -> dict[str, list[Row | Together]]:
    """The named rows, by subject: "beside" for all of a subject, "beside.softmax" for one.

    Raises:
        SystemExit: for an unknown name.
    """
    found: dict[str, list[Row | Together]] = {}
    for name in names:
        subject, _, key = name.partition(".")
        if subject not in SUBJECTS:
            raise SystemExit(f"no subject {subject!r}; there are: {', '.join(SUBJECTS)}")
        known: Sequence[Row | Together] = module_of(subject).ROWS
        rows = [row for row in known if key in ("", row.key)]
        if not rows:
            raise SystemExit(f"{subject} has no row {key!r}; it has: {', '.join(row.key for row in known)}")
        found.setdefault(subject, []).extend(rows)
    return found
