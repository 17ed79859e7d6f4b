"""A program that is run in a process of its own, its outcome, and how it reports what it finds there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from time import monotonic
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]  # from here the package is found, and the rest of a checkout, if it is one
CHECKOUT: Final = all((ROOT / name / "gpu").is_dir() for name in ("tests", "bench"))
NOT_REACHED: Final = "not reached"  # why a program that was not begun is skipped
# By the exit status; all others are crashes. 5 is pytest's, for no tests; 77 is automake's.
_STATES: Final = {0: "passed", 1: "missed", 5: "skipped", 77: "skipped"}
FOLDER: Final = "{folder}"
NOT_THROUGH: Final = "not through"  # the state of a program whose time passed: it may be well, and slow
_TAIL: Final = 20_000  # characters
_GRACE: Final = 5.0  # seconds to write tracebacks, or to end
_TRACEBACK: Final = re.compile(r"(?:Traceback \(most recent call last\)|Fatal Python error).*", re.DOTALL)
_RAISED: Final = re.compile(r"(?!AssertionError)[\w.]*(Error|Exception)\b")
_FAILURES: Final = re.compile(r"(\d+) failed\b(?!.* errors?\b)")  # pytest's last line
_LATE: Final = re.compile(r"^E +Failed: Timeout \(>", re.MULTILINE)  # pytest-timeout's, once for each test
# How a program that failed is run once more: by name, a command before it, variables, and options of its own. For a
# tool that watches memory, each allocation has a block of its own.
_AGAIN: Final[Mapping[str, tuple[Sequence[str], dict[str, str], Sequence[str]]]] = {
    "blocking": ((), {"CUDA_LAUNCH_BLOCKING": "1", "CUDA_LOG_FILE": "stderr"}, ()),
    "memcheck": (("compute-sanitizer", "--track-stream-ordered-races", "all"), {}, ("--blocks",)),
    "gdb": (("gdb", "-batch", "-ex", "run", "-ex", "thread apply all backtrace", "--args"), {}, ()),
}
_SETTINGS: Final = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}


@dataclass
class Entry:
    """One program.

    Attributes:
        group, name: the name is unique within the group.
        command: how it is started, if it can be, with `FOLDER` in place of its folder. It may write to the file "facts"
            there, a JSON object with "name" in each line, and to other JSON files there: these are kept.
        limit: most seconds that it may take.
        variables: of its environment, beside those that there are.
        whole: whether to keep its whole output.
        state: "passed"; "missed": it ended, and something is wrong; "crashed"; "not through"; "skipped".
        why: the reason of the state, in one line.
        seconds: that it took.
        facts: the facts that it wrote, by name.
        output, traceback: the end of its output, and the last traceback in it. Where a process dies of a signal, that
            has the stacks of Python; from Python 3.14 on those of C, too.
    """

    group: str
    name: str
    command: Sequence[str]
    limit: float
    variables: dict[str, str] = field(default_factory=dict)
    whole: bool = False
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
                    [part.replace(FOLDER, str(folder)) for part in self.command], cwd=ROOT,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    env=os.environ | _SETTINGS | self.variables, process_group=0,
                )  # fmt: skip
            except OSError as error:
                self.why = str(error)
                return
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
                process.send_signal(signal.SIGABRT)  # it alone: two that write at once mix their tracebacks
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE)
            finally:
                _kill(process)
        self.seconds = round(monotonic() - began, 3)
        self._read(folder)
        if status is not None:
            self._judge(status)
        else:
            self.state, self.why = NOT_THROUGH, f"its time passed, {limit:.0f} s"

    def again(self) -> Iterator[Entry]:
        """Further runs, which say more of a failure."""
        for name, (before, variables, options) in _AGAIN.items():
            command = [*self.command, *options]
            if before:
                tool = which(before[0]) or which(f"cuda-{before[0]}")  # NVIDIA's gdb, where there is no other
                if tool is None or (name == "gdb" and not self.why.startswith("killed by")):
                    continue
                command = [tool, *before[1:], *command]
            yield Entry("again", f"{self.name}_{name}", command, 3 * self.limit, variables=variables, whole=True)

    def _read(self, folder: Path) -> None:
        with (folder / "output").open("rb") as file:
            if not self.whole:
                file.seek(max(0, (folder / "output").stat().st_size - 4 * _TAIL))
            text = file.read().decode("utf-8", "backslashreplace").strip()
        self.output = text if self.whole else text[-_TAIL:]
        found = _TRACEBACK.search(text, max(text.rfind("Traceback (most"), 0))
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
        failures = _FAILURES.match(self.why)
        if status == 1 and failures and len(_LATE.findall(self.output)) == int(failures[1]):
            self.state = NOT_THROUGH  # each test that failed exceeded its own time
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


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it started, and wait a little for its end."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)


# -- in its process ---------------------------------------------------------------------------------------------------


class NotHere(Exception):
    """A program has nothing to do on this machine. The message says why."""


@dataclass(frozen=True)
class Report:
    """The argument of a program.

    Attributes:
        folder: its own. Facts are written there at once, so they survive a crash.
        quick: whether to use small sizes.
    """

    folder: Path
    quick: bool = False

    def tell(self, name: str, value: Any, unit: str = "") -> None:
        """Keep a fact: a number with its unit, or text. A dict or a list is kept, and not printed."""
        with (self.folder / "facts").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "value": value, "unit": unit}, default=str) + "\n")

    def size(self, full: int, quick: int) -> int:
        """A size: one for a full run, one for a quick one."""
        return quick if self.quick else full


Program = Callable[[Report], Awaitable[None] | None]
