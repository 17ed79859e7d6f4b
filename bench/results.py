"""What `bench.peers` and `bench.beside` do with their results: measure, print, keep."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .measure import ROOT, cpus
from .turns import Row, Turns, note

_BUSY = 0.5  # a load average at the start that ratios suffer from
RESULTS = ROOT / "bench" / "results"


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--quick", action="store_true", help="a smoke run of one round: the numbers mean nothing")
    parser.add_argument("--rounds", type=int, default=7, help="how often each takes its turn (7)")
    parser.add_argument("--contestants", metavar="NAMES", help="these alone, by commas")
    parser.add_argument("--works", metavar="TEXTS", help="only rows with one of these in their title, by commas")
    parser.add_argument("--no-install", action="store_true", help="do without what is not installed")
    parser.add_argument("--json", metavar="PATH", help=f"where results go (bench/results/{name}.json; quick: nowhere)")


def measured(name: str, rows: Sequence[Row], options: argparse.Namespace) -> dict[str, Any]:
    """All rows, in turns; written as JSON, which the options may name, unless the run is a quick one."""
    known = {contestant for row in rows for contestant, _ in row.cells.values()}
    wanted = set(options.contestants.split(",")) if options.contestants else known
    rounds = 1 if options.quick else options.rounds
    turns = Turns(rounds=rounds, quick=options.quick, install=not options.no_install, without=known - wanted)
    on, started = machine(), time.monotonic()
    try:
        done = []
        for row in rows:
            if not options.works or any(text in row.title for text in options.works.split(",")):
                note(f"{time.monotonic() - started:4.0f} s  {row.title} ...")
                done.append(turns.measure(row))
    finally:
        turns.close()
    result = {
        "bench": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - started),
        "rounds": rounds,
        "quick": options.quick,
        "machine": on,
        "contestants": turns.facts,
        "missing": turns.missing,
        "rows": done,
    }
    if options.json is None and not options.quick:
        options.json = str(RESULTS / f"{name}.json")
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return result


def machine() -> dict[str, Any]:
    return {
        "cpus": cpus(),
        "processor": _processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(named), platform.machine())


def load(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return result


def setting(result: Mapping[str, Any]) -> str:
    """When and where, in words."""
    on = result["machine"]
    where = f"{on['cpus']} processors ({on['processor']}), {on['system']}, Python {on['python']}"
    busy = f", busy with other work (load {on['load']:.1f})" if on["load"] >= _BUSY else ""
    rounds = f"medians of {result['rounds']} rounds, fewer of what takes seconds"
    return f"{result['date'][:10]}, {where}{busy}; {rounds}"


def contestants(result: Mapping[str, Any]) -> str:
    return ", ".join(dict.fromkeys(fact for facts in result["contestants"].values() for fact in facts.split(", ")))


def found(result: Mapping[str, Any]) -> set[str]:
    """The columns that have a number somewhere."""
    return {column for row in result["rows"] for column, cell in row["cells"].items() if "value" in cell}


def number(value: float) -> str:
    """To two digits or three, without an exponent."""
    if value >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


# -- printed ------------------------------------------------------------------------------------------------------


def print_table(result: Mapping[str, Any], columns: Sequence[str]) -> None:
    """A line for each work, the ratios by column, and what is missing."""
    shown = [column for column in columns if column in found(result)]
    lines = [["work", *shown]]
    lines += [[row["work"], *[_cell(row, column) for column in shown]] for row in result["rows"]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    print(f"{result['bench']}: {setting(result)}" + (" (QUICK: the numbers mean nothing)" if result["quick"] else ""))
    for first, *rest in lines:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    print(f"each x is to the first column that has a number in its row; {result['seconds']} s\n")
    for name, facts in result["contestants"].items():
        print(f"{name}: {facts}")
    for text in without_number(result):
        print(text)


def _cell(row: Mapping[str, Any], column: str) -> str:
    cell, target = row["cells"].get(column, {}), row["targets"].get(column)
    if "value" not in cell:
        return "failed" if "error" in cell else ""
    first = column == row["reference"]
    text = f"{number(cell['value'])} {row['unit']}" if first else f"{number(cell['ratio'])}x"
    if target is None or target["met"] is None:
        return text
    limit = f"{number(target['limit'])}{' ' + row['unit'] if target['absolute'] else 'x'}"
    return f"{text} ({'<=' if target['met'] else '! >'} {limit})"


def without_number(result: Mapping[str, Any]) -> list[str]:
    """Who has no number, and why; said once of each."""
    texts = [f"{peer}: not measured: {reason}" for peer, reason in result["missing"].items()]
    for row in result["rows"]:
        for column, cell in row["cells"].items():
            if "error" in cell and cell["error"] not in result["missing"].values():
                texts.append(f"{column}, {row['work']}: {cell['error']}")
    return texts
