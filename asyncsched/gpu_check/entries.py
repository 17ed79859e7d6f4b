"""A program that is run in a process of its own, and its outcome."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]  # from here the package is found, and the rest of a checkout, if it is one
NOT_REACHED: Final = "not reached"  # why a program that was not begun is skipped
# By the exit status; all others are crashes. 5 is pytest's, for no tests; 77 is automake's.
_STATES: Final = {0: "passed", 1: "missed", 5: "skipped", 77: "skipped"}
_TAIL: Final = 20_000  # characters
_GRACE: Final = 5.0  # seconds to write tracebacks, or to end
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGABRT)
_TRACEBACK: Final = re.compile(r"(?:Traceback \(most recent call last\)|Fatal Python error).*", re.DOTALL)
_RAISED: Final = re.compile(r"(?!AssertionError)[\w.]*(Error|Exception)\b")
_SETTINGS: Final = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}


@dataclass
class Entry:
    """One program.

    Attributes:
        group, name: the name is unique within the group.
        command: how it is started, if it can be. It may write to the file "facts" in its folder, a JSON object with
            "name" in each line, and to other JSON files there: these are kept.
        limit: most seconds that it may take.
        state: "passed"; "missed": it ended, and something is wrong; "crashed"; "skipped".
        why: the reason of the state, in one line.
        seconds: that it took.
        facts: the facts that it wrote, by name.
        output, traceback: the end of its output, and the last traceback in it.
    """

    group: str
    name: str
    command: Sequence[str]
    limit: float
    state: str = "skipped"
    why: str = NOT_REACHED
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    output: str = ""
    traceback: str = ""

    def run(self, left: float, folder: Path) -> None:
        """Run it, for at most `left` seconds."""
        folder.mkdir()
        limit, began = min(self.limit, left), monotonic()
        with (folder / "output").open("wb") as output:
            try:
                process = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT,
                    env=os.environ | _SETTINGS, process_group=0,
                )  # fmt: skip
            except OSError as error:
                self.why = str(error)
                return
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
                _end(process, signal.SIGABRT)
            finally:
                _end(process, _KILL)  # and processes that it may have left behind
        self.seconds = round(monotonic() - began, 3)
        self._read(folder)
        if status is not None:
            self._judge(status)
        elif limit < self.limit:
            self.state, self.why = "skipped", f"no time left: not through after {limit:.0f} s"
        else:
            self.state, self.why = "crashed", f"not through after {limit:.0f} s"

    def _read(self, folder: Path) -> None:
        with (folder / "output").open("rb") as file:
            file.seek(max(0, (folder / "output").stat().st_size - 4 * _TAIL))
            text = file.read().decode("utf-8", "backslashreplace").strip()
        self.output, found = text[-_TAIL:], _TRACEBACK.search(text, max(text.rfind("Traceback (most"), 0))
        self.traceback = found[0][:_TAIL] if found else ""
        with suppress(OSError, ValueError):  # there are no facts, or the last line is cut off
            for line in (folder / "facts").read_text("utf-8").splitlines():
                fact = json.loads(line)
                self.facts[fact.pop("name")] = fact
        for path in folder.glob("*.json"):  # of a benchmark
            with suppress(ValueError):
                self.facts["measured"] = json.loads(path.read_text("utf-8"))

    def _judge(self, status: int) -> None:
        self.state = _STATES.get(status, "crashed")
        raised = self.facts.get("raised", {})
        self.why = raised.get("value", "").partition("\n")[0] or self.output.rpartition("\n")[2].strip("= ")
        if status == 1 and _RAISED.match(self.why):  # Python's own status, too
            self.state = "crashed"
        if status < 0:
            self.why = f"killed by {signal.Signals(-status).name}"
        elif measured := self.facts.get("measured"):
            self.state, self.why = _judged(measured["rows"], quick=measured["quick"])


def _judged(rows: Sequence[dict[str, Any]], *, quick: bool) -> tuple[str, str]:
    """The state of a benchmark, and why, by its rows: these have cells, and targets for some cells."""
    without = [
        (cell["error"], f"{row['work']}, {name}: {cell['error']}")
        for row, name, cell in _parts(rows, "cells")
        if "error" in cell
    ]
    raised = [text for error, text in without if _RAISED.match(error)]
    missed = [
        f"{row['work']}, {name}: {target['measured']:.3g}, and the target is {target['limit']:.3g}"
        for row, name, target in _parts(rows, "targets")
        if target["met"] is False and not quick
    ]
    numbers = any("value" in cell for _, _, cell in _parts(rows, "cells"))
    state = "crashed" if raised else "missed" if missed else "passed" if numbers else "skipped"
    return state, "; ".join(raised or missed or [text for _, text in without])


def _parts(rows: Sequence[dict[str, Any]], kind: str) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    return ((row, name, part) for row in rows for name, part in row[kind].items())


def _end(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process and to those that it started, and wait a little for its end."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
