"""Each program runs in a process of its own, while there is time. In this order:

  machine  the device, driver and versions, the settings of CUDA and CuPy; and how long first calls take (`cold`):
           context, kernel, reduction, product; once more with the kernels that were kept (`warm`)
  probe    whether order, memory, faults, cancellation and numbers are right
  again    a probe that failed: each launch waited for, under compute-sanitizer, and in gdb if it died of a signal
  rate     launches, the latency of `await`, copies, a convolution: beside plain CuPy
  test     first `table_kernels`, which compiles those of the table of operations in several processes; then that
           table in parts, and `pytest -m gpu` file by file
  bench    `bench gpu`, section by section, in turn with the tests
  after    the state of the device at the end

Install what it needs before, with cuda13 where the driver is for CUDA 13. The first program says the line, too:

  pip install -e ".[cuda12,test]"     in a checkout
  pip install "asyncsched[cuda12]"    from a wheel: the groups test and bench are left out

The states of a program:

  passed       it ended, and all is right
  missed       it ended, and something is wrong
  crashed      it raised, or was killed
  not through  its time passed, or its tests', or that of all: it may be slow, or hang
  skipped      it was not run, and why

The exit status is 1 unless all that ran passed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata
from importlib.util import find_spec
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from time import monotonic
from typing import Any, Final

from .. import __version__
from .._arguments import check_number, format_bytes, format_number, format_seconds
from .entries import CHECKOUT, FOLDER, NOT_REACHED, NOT_THROUGH, ROOT, Entry
from .programs import AFTER, GROUPS

HELP: Final = "all that one run can learn of a CUDA device, in one file to send"
PRINTS: Final = __doc__
SECTIONS: Final = ("small", "latency", "copies", "large", "train", "fused", "lag", "run_ahead", "sanitize")
_PARTS: Final = 14  # of the table of operations, each some rows of it
_TABLE: Final = "test_table"
_LEAST: Final = 3.0  # seconds: with less time left no program is begun
_WIDTH: Final = 100
_LONGEST: Final = 300  # characters
_RUNS: Final = "gpu-check itself ended while this ran"
_INTERRUPTED: Final = "interrupted"
_PYTHON: Final = (sys.executable, "-m")
_FAILED: Final = {"missed", "crashed", NOT_THROUGH}
_STATES: Final = ("passed", "missed", "crashed", NOT_THROUGH, "skipped")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--out", metavar="FILE", type=Path, help="where the file goes (gpu-check-DATE.json, here)")
    parser.add_argument(
        "--minutes", type=float, default=15.0, help="for all programs together (15); the most telling ones come first"
    )
    parser.add_argument("--only", metavar="NAMES", help="only these, by commas: groups, or names of programs")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to try the command: the numbers mean nothing"
    )


def report(options: Namespace) -> str:
    """The output of `python -m asyncsched gpu-check`.

    Raises:
        OSError: if the file cannot be written.
        ValueError: for arguments that mean nothing.
        SystemExit: with 1, when it has printed it, unless all is well.
    """
    check_number("--minutes", options.minutes, "minutes")
    out = options.out or Path(f"gpu-check-{datetime.now(UTC):%Y%m%d-%H%M%S}.json")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so the page is printed, too
    try:
        with TemporaryDirectory() as work:
            check = Check(_chosen(entries(quick=options.quick), options.only), out, options.minutes)
            check.run(Path(work))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
    states, interrupted = {entry.state for entry in check.entries}, any(e.why == _INTERRUPTED for e in check.entries)
    if states & _FAILED or "passed" not in states or interrupted:
        print(check.page())
        raise SystemExit(1)
    return check.page()


def _chosen(programs: Iterator[Entry], only: str | None) -> list[Entry]:
    """The wanted programs, after the first one, which looks whether there is a device."""
    first, *others = programs
    names = set(only.split(",") if only else ())
    if unknown := names - {name for entry in (first, *others) for name in (entry.group, entry.name)}:
        raise ValueError(f"no {', '.join(sorted(unknown))}; there are: {', '.join(entry.name for entry in others)}")
    return [first, *(entry for entry in others if not names or names & {entry.group, entry.name})]


def entries(*, quick: bool) -> Iterator[Entry]:
    """All programs, in their order. Those that cannot run say why."""
    options = ["--quick"] if quick else []
    for group, programs in GROUPS.items():
        for name in programs:
            command = [*_PYTHON, "asyncsched.gpu_check", name, FOLDER, *options]
            yield Entry(group, name, command, 240 if name == "replays" else 90, whole=group == "machine")
        if group == "machine":
            yield Entry(group, "described", [*_PYTHON, "asyncsched"], 60)
    if CHECKOUT:
        yield from filter(None, chain.from_iterable(zip_longest(_tests(), _benches(options))))
    else:
        yield from (Entry(group, f"{group} gpu", [], 0, why="needs a checkout") for group in ("test", "bench"))
    (after,) = AFTER
    yield Entry(after, after, [*_PYTHON, "asyncsched.gpu_check", after, FOLDER], 20, whole=True)


def _tests() -> Iterator[Entry]:
    why = NOT_REACHED if find_spec("pytest") else 'needs pytest: pip install -e ".[test]"'
    files = {path.stem: path for path in sorted((ROOT / "tests" / "gpu").glob("test_*.py"))}
    table, processes = files.pop(_TABLE), str(min(os.cpu_count() or 1, 8))
    yield Entry("test", "table_kernels", _pytest(table, "-n", processes, "--timeout", "0"), 600, why=why)
    for part in range(_PARTS):
        variables = {"ASYNCSCHED_PART": f"{part}/{_PARTS}"}
        yield Entry("test", f"{_TABLE}_{part + 1}", _pytest(table), 120, variables=variables, why=why)
    for name, path in files.items():
        yield Entry("test", name, _pytest(path), 300, why=why)
    blocks = _pytest(files["test_programs"], "-p", "tests.cuda_host.strict")
    yield Entry("test", "programs_strict", blocks, 300, why=why)


def _pytest(path: Path, *options: str) -> list[str]:
    fixed = ["-m", "gpu", "-n", "0", "-p", "no:cacheprovider", "-v", "-rfEsx", "--durations=9"]
    return [*_PYTHON, "pytest", *fixed, *options, str(path)]


def _benches(options: Sequence[str]) -> Iterator[Entry]:
    for name in SECTIONS:
        command = [*_PYTHON, "bench", f"gpu.{name}", "--rounds", "3", "--results", FOLDER, *options]
        yield Entry("bench", f"gpu.{name}", command, 240)


class Check:
    """Runs programs one after the other, and keeps a file of them.

    Args:
        out: the file.
        minutes: for all programs together.
    """

    def __init__(self, programs: Sequence[Entry], out: Path, minutes: float) -> None:
        self.entries: list[Entry] = list(programs)
        self._out, self._minutes, self._began = out, minutes, monotonic()
        self._started = datetime.now(UTC).isoformat(timespec="seconds")

    def run(self, work: Path) -> None:
        """Run all of them, in folders of their own. Ctrl-C ends it, and the rest is skipped."""
        self._keep()
        try:
            for entry in self.entries:
                self._run(entry, work)
                if entry.group == "probe" and entry.state in _FAILED:
                    last = max(i for i, e in enumerate(self.entries) if e.group in ("probe", "again"))
                    self.entries[last + 1 : last + 1] = entry.again()
                if entry is self.entries[0] and entry.state == "skipped":
                    self._skip_rest(entry.why)
        except KeyboardInterrupt:
            self._skip_rest(_INTERRUPTED)
        self._keep(finished=True)

    def _run(self, entry: Entry, work: Path) -> None:
        left = entry.limit if entry.group in AFTER else self._minutes * 60 - self._seconds()
        if entry.why != NOT_REACHED:
            return
        if left < _LEAST:
            entry.why = "no time left"
            return
        entry.state, entry.why = "crashed", _RUNS
        self._keep()
        entry.run(left, work / entry.name)
        print(f"{self._seconds():4.0f} s  {entry.state:11}  {entry.name}", file=sys.stderr, flush=True)

    def _skip_rest(self, why: str) -> None:
        for entry in self.entries:
            if entry.why in (NOT_REACHED, _RUNS):
                entry.state, entry.why = "skipped", why

    def _seconds(self) -> float:
        return monotonic() - self._began

    def _keep(self, *, finished: bool = False) -> None:
        """Write the file anew. Until it is whole, the one before stays."""
        told = {
            "gpu-check": __version__, "started": self._started, "minutes": self._minutes,
            "seconds": round(self._seconds(), 1), "finished": finished, "arguments": sys.argv[1:],
            "entries": [asdict(entry) for entry in self.entries],
        }  # fmt: skip
        part = self._out.with_name(f".{self._out.name}.part")
        with part.open("w", encoding="utf-8") as file:
            json.dump(told, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._out)

    def page(self) -> str:
        """The printed page: for each group how many passed, why the others did not, and the numbers."""
        states = Counter(entry.state for entry in self.entries)
        text = [f"{_counts(states)}, in {self._seconds():.0f} s of {self._minutes:g} minutes"]
        for group in dict.fromkeys(entry.group for entry in self.entries):
            text += ["", *_section(group, [entry for entry in self.entries if entry.group == group])]
        return "\n".join([*text, "", f"all of it: {self._out.resolve()}", f"send it to {_address()}"])


def _address() -> str:
    """Where to send the file: the address of the issues in the package's metadata, where a distributor has set one."""
    with suppress(PackageNotFoundError):
        for line in metadata("asyncsched").get_all("Project-URL") or ():
            label, _, url = line.partition(",")
            if label.strip().lower() == "issues":
                return str(url.strip())
    return "whoever gave you this copy"


def _section(group: str, programs: Sequence[Entry]) -> Iterator[str]:
    yield f"{group}: {_counts(Counter(entry.state for entry in programs))}"
    whys: dict[tuple[str, str], list[str]] = {}
    for entry in programs:
        if entry.state != "passed":
            whys.setdefault((entry.state, entry.why), []).append(entry.name)
    for (state, why), names in whys.items():
        who = "all" if len(names) == len(programs) > 1 else ", ".join(names)
        yield f"  {state:11}  {who}: {why}"[:_LONGEST]
    for entry in programs if group != "probe" else ():  # a probe's state is enough
        short = {name: fact for name, fact in entry.facts.items() if isinstance(fact.get("value"), str | float | int)}
        facts = [f"{name} {_fact(**fact)}" for name, fact in short.items()]
        yield from wrap("; ".join(facts), _WIDTH, initial_indent=f"  {entry.name}: ", subsequent_indent="    ")


def _counts(states: Counter[str]) -> str:
    return ", ".join(f"{states[state]} {state}" for state in _STATES if states[state])


def _fact(value: Any, unit: str) -> str:
    if isinstance(value, str):
        return value
    known = {"s": format_seconds, "bytes": format_bytes}.get(unit)
    return known(value) if known else f"{format_number(value)} {unit}".rstrip()
