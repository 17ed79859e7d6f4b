"""Renders bench/results: `python -m bench.render`. No number is typed.

- bench/README.md: a summary, the subjects, the missed targets, and the pictures
- bench/results/README.md: the tables of all subjects
- README.md: a short table
- the pictures, beside the results
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from .harness.pictures import draw_bars, draw_growth, draw_soak
from .harness.results import RESULTS, amount, contestants, markdown, missed, notes, number, setting, tables
from .harness.rows import ROOT, Result
from .harness.subjects import SUBJECTS, module_of

README: Final = ROOT / "README.md"
ALL: Final = ROOT / "bench" / "README.md"
TABLES: Final = RESULTS / "README.md"
FRONT: Final = ROOT / "bench" / "front.md"
"""The README's table: `{subject.row column}` gives a cell's ratio, with `; value` the measured value."""
FOUND: Final = ROOT / "bench" / "found.md"
"""The beginning of bench/README.md, written in the same way."""
_REFERENCE: Final = re.compile(r"\{(\w+)\.([\w-]+) ([^};]+)(; value)?\}")
_LATE = "In brackets is the reason for which the target was set."
_TABLES = """# The tables of all subjects

[The page above](../README.md) says how they were measured. Each *x* is a ratio to the first column of its row that has
a number. A dash says that there is no number; the reason is below the table. Brackets have targets. `!` marks those
that are missed.
"""


def main() -> None:
    README.write_text(rendered(README.read_text("utf-8")), "utf-8")
    ALL.write_text(page(), "utf-8")
    TABLES.write_text(all_tables(), "utf-8")
    ours = ("asyncsched", "one stream", "with numba")
    draw_bars(RESULTS / "peers.png", _load("peers"), "Peers beside NumPy inline", ours)
    draw_bars(RESULTS / "beside.png", _load("beside"), "Beside what one would pick instead", ours)
    draw_growth(RESULTS / "growth.png", _load("growth"))
    draw_soak(RESULTS / "soak.png", _load("soak"))


def _load(subject: str) -> Result:
    result: Result = json.loads((RESULTS / f"{subject}.json").read_text("utf-8"))
    return result


def rendered(readme: str) -> str:
    """The README with its table between the two marks."""
    begin, end = "<!-- bench.render: front -->", "<!-- bench.render: end of front -->"
    before, rest = readme.split(begin)
    return f"{before}{begin}\n{filled(FRONT)}\n{end}{rest.split(end)[1]}"


def filled(template: Path) -> str:
    """The template with its numbers, a dash where there is none, and when and where they were measured."""
    used: dict[str, Result] = {}

    def value(found: re.Match[str]) -> str:
        subject, key, column, value = found.groups()
        result = used.setdefault(subject, _load(subject))
        row = next(row for row in result["rows"] if row["key"] == key)
        cell: dict[str, Any] = row["cells"][column]
        if "value" not in cell:
            return "-"
        return amount(cell["value"], row["unit"]) if value else f"{number(cell['ratio'])}x"

    text = _REFERENCE.sub(value, template.read_text("utf-8")).strip()
    dates = sorted(result["date"][:10] for result in used.values())
    cpus = sorted({result["machine"]["cpus"] for result in used.values()})
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return f"{text}\n\nMeasured {when} on {' or '.join(map(str, cpus))} processors; medians of a run."


def page() -> str:
    """The summary, the subjects, the missed targets, and the pictures."""
    found = _results()
    about = [f"- [{name}](results/README.md#{name}): {_first(result)}" for name, result in found]
    late = [f"- {name}: {line}" for name, result in found for line in missed(result)]
    drawn = [f"![{name}](results/{name}.png)" for name in ("peers", "beside", "growth", "soak")]
    parts = ["## Subjects", "\n".join(about), "## Targets that are missed", _LATE, "\n".join(late), "## Pictures"]
    return "\n\n".join([filled(FOUND), *parts, *drawn]) + "\n"


def all_tables() -> str:
    """For each subject with results: what it measures, when and where, its tables, and notes."""
    parts = [_TABLES]
    for name, result in _results():
        parts.append(f"## {name}\n\n{_says(result)}\n\n{setting(result)}.\n")
        parts += [markdown(table) + "\n" for table in tables(result)]
        if said := [*filter(None, [contestants(result)]), *notes(result)]:
            parts.append("\n".join(f"- {line}" for line in said) + "\n")
    return "\n".join(parts)


def _says(result: Result) -> str:
    """The docstring of its module."""
    return str(module_of(result["bench"]).__doc__).strip()


def _first(result: Result) -> str:
    """The first paragraph of that, in one line."""
    return _says(result).split("\n\n")[0].replace("\n", " ")


def _results() -> list[tuple[str, Result]]:
    """By name, in the order of the subjects."""
    names = sorted((path.stem for path in RESULTS.glob("*.json")), key=lambda name: SUBJECTS.index(name.split("-")[0]))
    return [(name, _load(name)) for name in names]


if __name__ == "__main__":
    main()
