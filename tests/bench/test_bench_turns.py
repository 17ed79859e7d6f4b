"""The benches whose contestants are child processes: every work runs, and who has no number is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from bench import beside, growth, peers, readme, works
from bench.contestant import LIBRARIES
from bench.environments import NEEDS, Needs, Unavailable, python_for
from bench.measure import ROOT
from bench.picture import draw
from bench.results import load, machine
from bench.turns import Row, Target, Turns

pytestmark = pytest.mark.one_loop
ALONE = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that spin would take the processors from the other tests


def run(path: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    command = [sys.executable, "-m", *arguments, "--quick", "--no-install", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=ALONE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(path.read_text())


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("bench", "rows", "wanted"),
    [("peers", peers.ROWS, "numpy,asyncsched"), ("beside", beside.ROWS, "numpy,asyncsched,run_in_executor")],
)
def test_every_work_is_measured(bench: str, rows: tuple[Row, ...], wanted: str, tmp_path: Path) -> None:
    printed, saved = run(tmp_path / "found.json", f"bench.{bench}", "--contestants", wanted)
    assert saved.keys() >= {"date", "machine", "contestants", "missing", "rows", "seconds"}
    assert "QUICK: the numbers mean nothing" in printed
    for row, found in zip(rows, saved["rows"], strict=True):
        here = {column for column, (who, _) in row.cells.items() if who in wanted.split(",")}
        assert found["cells"].keys() == here, found
        assert all(cell["value"] > 0 and cell["ratio"] > 0 for cell in found["cells"].values()), found
        assert row.title in printed


def test_what_misses_its_target_is_listed_with_its_ratio_and_the_reason():
    target = vars(Target(2.0, "a reason")) | {"measured": 3.0, "met": False}
    met = vars(Target(2.0, "another")) | {"measured": 1.0, "met": True}
    rows = [{"work": "a work", "unit": "us", "targets": {"asyncsched": target, "with numba": met}}]
    missed, count = beside.missed({"rows": rows})
    assert missed == "missed: a work, asyncsched: 3.00 against 2.00x (a reason)"
    assert count == "targets met: 1 of 2"


def test_the_chart_has_a_line_for_each_work_that_has_a_number(tmp_path):
    target = vars(Target(2.0, "a reason")) | {"measured": 3.0, "met": False}
    cells = {"NumPy": {"value": 2.0, "ratio": 1.0}, "asyncsched": {"value": 6.0, "ratio": 3.0}, "JAX": {"error": "no"}}
    drawn = {"work": "`drawn`", "reference": "NumPy", "cells": cells, "targets": {"asyncsched": target}}
    empty = {"work": "empty", "reference": None, "cells": {"JAX": {"error": "no"}}, "targets": {}}
    result = {"date": "2026-11-22", "rounds": 1, "machine": machine(), "rows": [drawn, empty]}
    svg = tmp_path / "chart.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(svg, result, "a title", ["asyncsched"])
    found = svg.read_text("utf-8")
    assert all(text in found for text in (">drawn<", ">NumPy<", ">asyncsched<", ">target<", "a title"))
    assert ">empty<" not in found
    assert ">JAX<" not in found


def test_each_contestant_and_work_that_a_row_names_exists():
    for row in (*peers.ROWS, *beside.ROWS, *growth.rows()):
        for contestant, work in row.cells.values():
            assert contestant.partition(" on ")[0] in LIBRARIES
            assert work in works.WORKS
        assert all(target.why for target in row.targets.values())
    assert {library.needs for library in LIBRARIES.values()} <= NEEDS.keys()


def test_a_contestant_asks_for_nothing_but_numpy_before_it_is_opened():
    lacking = "import sys; sys.modules.update(dict.fromkeys(('anyio', 'threadpoolctl', 'asyncsched', 'psutil')))"
    subprocess.run([sys.executable, "-c", f"{lacking}; import bench.contestant, bench.works"], cwd=ROOT, check=True)


def test_a_peer_that_is_not_there_or_cannot_do_a_work_is_named_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("ASYNCSCHED_BENCH_CACHE", str(tmp_path))
    monkeypatch.setitem(NEEDS, "mxnet", Needs("no_such_module", ("no-such-module==1",)))
    # What a target is a ratio to has no number: it is not judged.
    cells = {"NumPy": ("numpy", "svd"), "MXNet": ("mxnet", "svd"), "run_in_executor": ("run_in_executor", "svd")}
    turns = Turns(rounds=1, quick=True, install=False)
    try:
        found = turns.measure(Row("svd", "ms", cells, {"run_in_executor": Target(2.0, "a reason")}))
    finally:
        turns.close()
    assert found["reference"] == "run_in_executor"
    assert found["cells"]["NumPy"] == {"error": "NotImplementedError: numpy has no functions to await"}
    assert found["cells"]["MXNet"] == {"error": "not installed (`pip install no-such-module==1`)"}
    assert found["targets"]["run_in_executor"]["met"] is None
    assert turns.missing == {"mxnet": "not installed (`pip install no-such-module==1`)"}
    assert turns.facts.keys() == {"numpy", "run_in_executor"}


def test_a_python_without_wheels_is_a_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("ASYNCSCHED_BENCH_CACHE", str(tmp_path))
    monkeypatch.setitem(NEEDS, "old", Needs("no_such_module", ("no-such-module",), ((3, 8),)))
    with pytest.raises(Unavailable, match="no wheels for Python 3"):
        python_for("old")


def test_the_readme_has_the_table_of_the_last_results():
    readme = (ROOT / "README.md").read_text("utf-8")
    found = ROOT / "bench" / "results" / "peers.json"
    between = readme.split(peers.BEGIN)[1].split(peers.END)[0]
    assert between.strip() == (peers.table(load(found)) if found.exists() else "")


def test_the_table_for_the_readme_has_ratios_where_there_are_some_and_names_who_is_missing():
    cells = {"NumPy": {"value": 0.5, "ratio": 1.0}, "Ray": {"value": 80.0, "ratio": 160.4}, "JAX": {"error": "no"}}
    row = {"work": "`x + 1`", "unit": "us", "reference": "NumPy", "cells": cells, "targets": {}}
    on = {"cpus": 2, "processor": "a processor", "system": "Linux", "python": "3.11.7", "load": 3.0}
    result = {"date": "2026-11-22T10:00", "rounds": 7, "machine": on, "rows": [row], "contestants": {"ray": "ray 2"}}
    table = peers.table(result | {"missing": {"mxnet": "no wheels for Python 3.14"}})
    assert table.splitlines()[:3] == ["| what | NumPy | Ray |", "| --- | --- | --- |", "| `x + 1` | 0.50 us | 160x |"]
    assert "2026-11-22, 2 processors (a processor), Linux, Python 3.11.7, busy with other work (load 3.0)" in table
    assert "medians of 7 rounds, fewer of what takes seconds. ray 2." in table
    assert table.endswith("mxnet: no wheels for Python 3.14.")
    readme = f"before {peers.BEGIN} old {peers.END} after"
    assert peers.with_table(readme, result | {"missing": {}}).startswith(f"before {peers.BEGIN}\n| what |")


def test_no_number_of_the_readmes_other_table_is_typed():
    text = readme.README.read_text("utf-8")
    assert readme.with_table(text) == text
