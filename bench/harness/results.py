"""The results of a subject, as JSON, words and tables."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.libraries import cpus

from .rows import ROOT, Result

RESULTS = ROOT / "bench" / "results"
_BUSY = 0.5  # a load average at the start from which ratios suffer


def begun(subject: str, rounds: int, quick: bool) -> Result:
    """A subject's results when nothing is measured yet."""
    return {
        "bench": subject,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": rounds,
        "quick": quick,
        "machine": machine(),
        "contestants": {},
        "missing": {},
        "rows": [],
        "notes": [],
    }


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
        named = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        named = None
    return named[1] if named else platform.processor() or platform.machine()


# -- in words -----------------------------------------------------------------------------------------------------


def setting(result: Result) -> str:
    """When and where."""
    on = result["machine"]
    where = f"{on['cpus']} processors ({on['processor']}), {on['system']}, Python {on['python']}"
    busy = f", busy with other work (load {on['load']:.1f})" if on.get("load", 0) >= _BUSY else ""
    rounds = f"medians of {result['rounds']} rounds, fewer of what takes seconds"
    return f"{result['date'][:10]}, {where}{busy}; {rounds}"


def contestants(result: Result) -> str:
    return ", ".join(dict.fromkeys(fact for facts in result["contestants"].values() for fact in facts.split(", ")))


def number(value: float) -> str:
    """To two digits or three, without an exponent."""
    if value >= 99.5 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def amount(value: float, unit: str) -> str:
    return f"{value:,.0f}" if unit == "count" else f"{number(value)} {unit}"


def missed(result: Result) -> list[str]:
    """The cells that miss their target, each with its value, its target, and the reason of the target."""
    return [
        f"{row['work']}, {column}: {_limit(row, t, t['measured'])} against {_limit(row, t, t['limit'])} ({t['why']})"
        for row, column, t in _judged(result)
        if not t["met"] and not result["quick"]
    ]


def notes(result: Result) -> list[str]:
    """Contestants without a number, and why, once each; then notes."""
    texts = [f"{peer}: not measured: {reason}" for peer, reason in result["missing"].items()]
    for row in result["rows"]:
        for column, cell in row["cells"].items():
            if "error" in cell and cell["error"] not in result["missing"].values():
                texts.append(f"{row['work']}, {column}: no number: {cell['error']}")
            if "note" in cell:
                texts.append(f"{row['work']}, {column}: {cell['note']}")
    return [*texts, *result["notes"]]


def _judged(result: Result) -> list[tuple[Result, str, Mapping[str, Any]]]:
    cells = [(row, column, target) for row in result["rows"] for column, target in row["targets"].items()]
    return [cell for cell in cells if cell[2]["met"] is not None]


def _limit(row: Result, target: Mapping[str, Any], value: float) -> str:
    return amount(value, row["unit"]) if target["absolute"] else f"{number(value)}x"


# -- as tables ----------------------------------------------------------------------------------------------------

Table = list[list[str]]


def tables(result: Result) -> list[Table]:
    """Its rows as cells of text, heads first. Rows in sequence that begin with the same column share a table."""
    found = [_table(list(rows)) for _, rows in groupby(result["rows"], lambda row: next(iter(row["cells"])))]
    return [table for table in found if len(table[0]) > 1]


def _table(rows: Sequence[Result]) -> Table:
    them = [dict(row["cells"]) for row in rows]
    columns = [
        c for c in dict.fromkeys(c for cells in them for c in cells) if any("value" in x.get(c, {}) for x in them)
    ]
    return [["what", *columns], *[[row["work"], *[_cell(row, column) for column in columns]] for row in rows]]


def _cell(row: Result, column: str) -> str:
    cell, target = row["cells"].get(column, {}), row["targets"].get(column)
    if "value" not in cell:
        return "-"
    value = amount(cell["value"], row["unit"])
    text = value if column == row["reference"] else f"{number(cell['ratio'])}x"
    if target is None or target["met"] is None:
        return text
    if target["absolute"] and text != value:
        text = f"{text}, {value}"
    return f"{text} ({'<=' if target['met'] else '! >'} {_limit(row, target, target['limit'])})"


def markdown(table: Table) -> str:
    heads, *rows = table
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, ["---"] * len(heads), *rows])


def show(result: Result) -> None:
    """Print it."""
    print(f"{result['bench']}: {setting(result)}")
    if result["quick"]:
        print("QUICK: the numbers mean nothing")
    for table in tables(result):
        print()
        print_table(table)
    lines, judged = missed(result), len(_judged(result))
    said = [f"{name}: {facts}" for name, facts in result["contestants"].items()] + [f"missed: {it}" for it in lines]
    said += [f"targets met: {judged - len(lines)} of {judged}", *notes(result)]
    print("\neach x is to the first column that has a number in its row", *said, sep="\n")


def print_table(table: Table) -> None:
    """With aligned columns."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for first, *rest in [table[0], ["-" * width for width in widths], *table[1:]]:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]).rstrip())
