"""Costs as work grows, for `python -m bench.beside --growth`: processors, operations, the width of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .measure import cpus
from .picture import blank
from .results import print_table, setting
from .turns import Row

COUNTS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
WIDTHS = (1, 10, 100, 1_000, 10_000)
PANELS = {"issued": "tiny operations issued", "pending": "operations pending", "width": "independent tasks"}
_ON = {"NumPy": "numpy", "PyTorch": "torch", "asyncsched": "asyncsched"}
_COLOURS = {"asyncsched": "C0", "NumPy": "C7", "PyTorch": "C1", "run_in_executor": "C2", "to_thread": "C3"}
_SCALED = {
    "large": "`x + 1` on (1000, 1000)",
    "training": "a training step",
    "softmax": "softmax",
    "fan-out": "fan-out",
}


def rows() -> tuple[Row, ...]:
    return (*_processors(), *_issued(), *_pending(), *_widths())


def _processors() -> list[Row]:
    """Each library on 1, 2, 4, 8 processors: columns are the processors, so that ratios are to one of them."""
    counts = [n for n in (1, 2, 4, 8) if n <= cpus()]
    found = []
    for work, title in _SCALED.items():
        for name, contestant in _ON.items():
            if not (name == "NumPy" and work == "softmax"):
                cells = {f"{n} processor{'s' * (n > 1)}": (f"{contestant} on {n} processors", work) for n in counts}
                found.append(Row(f"{title}, {name}", "ms", cells))
    return found


def _issued() -> list[Row]:
    them = {"NumPy": "numpy", "asyncsched": "asyncsched", "PyTorch": "torch"}
    return [Row(f"issued {n:,}", "us", {name: (who, f"issued {n}") for name, who in them.items()}) for n in COUNTS]


def _pending() -> list[Row]:
    return [Row(f"pending {n:,}", "us", {"asyncsched": ("asyncsched", f"pending {n}")}) for n in COUNTS]


def _widths() -> list[Row]:
    them = {name: name.lower() for name in ("NumPy", "run_in_executor", "to_thread", "asyncsched")}
    works = {n: f"width {n}" for n in WIDTHS} | {WIDTHS[-1]: "fan-out"}
    return [Row(f"width {n:,}", "us", {name: (who, works[n]) for name, who in them.items()}) for n in WIDTHS]


def print_result(result: Mapping[str, Any]) -> None:
    columns = dict.fromkeys(column for row in result["rows"] for column in row["cells"])
    scaled = [row for row in result["rows"] if _panel(row) is None]
    grown = [row for row in result["rows"] if _panel(row) is not None]
    print_table({**result, "rows": scaled, "contestants": {}}, list(columns))
    print_table({**result, "rows": grown}, list(columns))


def _panel(row: Mapping[str, Any]) -> str | None:
    kind = row["work"].partition(" ")[0]
    return kind if kind in PANELS else None


def draw(path: Path, result: Mapping[str, Any]) -> None:
    """Writes a panel for each kind of growth. Without matplotlib there is none: see `blank`."""
    figure = blank(17, 4.6)
    if figure is None:
        return
    first, *panels = figure.subplots(1, 4)
    _draw_processors(first, [row for row in result["rows"] if _panel(row) is None])
    for axes, (kind, title) in zip(panels, PANELS.items(), strict=True):
        _draw_growth(axes, [row for row in result["rows"] if _panel(row) == kind], title)
    figure.suptitle(f"Costs as work grows\n{setting(result)}", fontsize=9)
    figure.savefig(path, dpi=110)


def _draw_processors(axes: Any, rows: Any) -> None:
    styles = dict(zip(_SCALED.values(), ("-", "--", ":", "-."), strict=True))
    for row in rows:
        cells = {int(column.split()[0]): cell["ratio"] for column, cell in row["cells"].items() if "ratio" in cell}
        title, _, name = row["work"].rpartition(", ")
        label = row["work"].replace("`", "")
        axes.plot(cells.keys(), cells.values(), f"o{styles[title]}", color=_COLOURS[name], label=label)
    counts = sorted({int(column.split()[0]) for row in rows for column in row["cells"]})
    axes.set(xlabel="processors", ylabel="time, to one processor's", xticks=counts, yscale="log")
    _plain_numbers(axes.yaxis)
    axes.legend(fontsize=6)
    axes.grid(alpha=0.3)


def _draw_growth(axes: Any, rows: Any, title: str) -> None:
    for column in dict.fromkeys(column for row in rows for column in row["cells"]):
        points = [
            (_size(row), row["cells"][column]["value"]) for row in rows if "value" in row["cells"].get(column, {})
        ]
        axes.plot(
            *zip(*points, strict=True), "o-" if column == "asyncsched" else "o:", color=_COLOURS[column], label=column
        )
    axes.set(xscale="log", yscale="log", xlabel=title, ylabel="us for one")
    _plain_numbers(axes.yaxis)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _plain_numbers(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda value, _: f"{value:g}")
    axis.set_tick_params(which="both", labelsize=7)


def _size(row: Mapping[str, Any]) -> int:
    return int(row["work"].partition(" ")[2].replace(",", ""))
