"""Contestants in child processes, two revisions side by side, and what is made of their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from bench.harness import against
from bench.harness.environments import NEEDS, Needs, python_for
from bench.harness.results import begun, missed, tables
from bench.harness.rows import ROOT, Here, Row, Target, Unavailable, Who
from bench.harness.subjects import chosen
from bench.harness.turns import Turns

matplotlib = pytest.importorskip("matplotlib", reason="the extra `demos` is not installed")
from bench import render  # noqa: E402
from bench.harness.pictures import draw_bars, draw_growth, draw_soak  # noqa: E402

pytestmark = pytest.mark.one_loop
needs_git = pytest.mark.skipif(which("git") is None, reason="needs git")
ALONE = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that spin would take the processors from the other tests
TARGET = {"asyncsched": Target(2.0, "a reason")}


def row(**cells: float) -> dict[str, Any]:
    return Row("key", "`a work`", "us", targets=TARGET).result({name: [value] for name, value in cells.items()})


def results(*rows: dict[str, Any]) -> dict[str, Any]:
    return begun("beside", 1, quick=False) | {"rows": [*rows]}


def test_what_misses_its_target_is_listed_with_its_ratio_and_the_reason():
    found = results(row(NumPy=2.0, asyncsched=6.0), row(NumPy=2.0, asyncsched=2.0))
    assert missed(found) == ["`a work`, asyncsched: 3.00x against 2.00x (a reason)"]
    (table,) = tables(found)
    assert table[0] == ["what", "NumPy", "asyncsched"]
    assert [line[1:] for line in table[1:]] == [["2.00 us", "3.00x (! > 2.00x)"], ["2.00 us", "1.00x (<= 2.00x)"]]


def test_rows_that_begin_with_the_same_column_share_a_table():
    found = tables(results(row(NumPy=2.0, asyncsched=6.0), row(PyTorch=1.0, asyncsched=6.0), row(PyTorch=1.0, JAX=3.0)))
    assert [table[0] for table in found] == [["what", "NumPy", "asyncsched"], ["what", "PyTorch", "asyncsched", "JAX"]]


def test_the_chart_has_a_line_for_each_work_that_has_a_number(tmp_path):
    drawn = Row("drawn", "`drawn`", "us", targets=TARGET).result({"NumPy": [2.0], "asyncsched": [6.0]}, {"JAX": "no"})
    empty = Row("empty", "empty", "us").result({}, {"JAX": "no"})
    svg = tmp_path / "chart.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw_bars(svg, results(drawn, empty), "a title", ["asyncsched"])
    found = svg.read_text("utf-8")
    assert all(text in found for text in (">drawn<", ">NumPy<", ">asyncsched<", ">target<", "a title"))
    assert ">empty<" not in found
    assert ">JAX<" not in found


def test_costs_that_grow_and_hours_of_work_are_drawn(tmp_path):
    """A line for each row, from its smallest size to its largest; and a curve for what is sampled."""
    sizes = {"1,000": [2.0], "1": [9.0], "10,000": [3.0]}
    grown = [Row(f"{kind}-a-chain", f"{kind}, a chain", "us").result(sizes) for kind in ("pending", "items")]
    kept = {key: [1.0, 2.0] for key in ("seconds", "resident", "objects", "blocks", "tasks", "threads", "files")}
    soaked = Row("ledgers", "left", "count").result({"asyncsched": [0.0]}) | {
        "samples": kept | {"in flight": [0, 1], "bytes reserved": [0, 1]}
    }
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw_growth(tmp_path / "growth.svg", results(*grown))
        draw_soak(tmp_path / "soak.svg", results(soaked))
    growth, soak = [(tmp_path / f"{name}.svg").read_text("utf-8") for name in ("growth", "soak")]
    assert growth.count(">a chain<") == 2
    assert ">operations pending<" in growth
    assert all(f">{name}<" in soak for name in ("resident set", "objects", "threads", "MiB reserved", "minutes"))


def test_a_contestants_name_says_how_it_runs():
    who = Who.of("asyncsched streams=1 max_ops=null uvloop OMP_NUM_THREADS=1 processors=2 package=/tmp/a")
    assert (who.library, who.flags, who.options) == ("asyncsched", {"uvloop"}, {"streams": 1, "max_ops": None})
    assert (who.environment, who.processors, who.package) == ({"OMP_NUM_THREADS": "1"}, 2, "/tmp/a")


def test_a_contestant_asks_for_nothing_but_numpy_before_it_is_opened():
    lacking = "import sys; sys.modules.update(dict.fromkeys(('anyio', 'threadpoolctl', 'asyncsched', 'psutil')))"
    modules = "bench.harness.contestant, bench.libraries, bench.graphs, bench.layers, bench.perceptron, bench.loaders"
    subprocess.run([sys.executable, "-c", f"{lacking}; import {modules}"], cwd=ROOT, check=True)


def test_a_peer_that_is_not_there_or_cannot_do_a_work_is_named_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("ASYNCSCHED_BENCH_CACHE", str(tmp_path))
    monkeypatch.setitem(NEEDS, "mxnet", Needs("no_such_module", ("no-such-module==1",)))
    # What a target is a ratio to has no number: it is not judged.
    svd = "graphs.svd"
    cells = {"NumPy": ("numpy", svd), "MXNet": ("mxnet", svd), "run_in_executor": ("run_in_executor", svd)}
    with Turns(rounds=1, quick=True, install=False) as turns:
        found = turns.measure(Row("svd", "svd", "ms", cells, {"run_in_executor": Target(2.0, "a reason")}))
    assert found["reference"] == "run_in_executor"
    assert found["cells"]["NumPy"] == {"error": "NotImplementedError: numpy has no functions to await"}
    assert found["cells"]["MXNet"] == {"error": "not installed (`pip install no-such-module==1`)"}
    assert found["targets"]["run_in_executor"]["met"] is None
    assert turns.missing == {"mxnet": "not installed (`pip install no-such-module==1`)"}
    assert turns.facts.keys() == {"numpy", "run_in_executor"}


def test_every_other_round_goes_backwards_and_the_first_is_not_counted(monkeypatch):
    monkeypatch.setattr("bench.harness.turns.PAUSE", 0)
    order: list[str] = []

    def turn(name: str, value: float) -> Here:
        return Here(lambda: order.append(name) or value)

    with Turns(rounds=2, quick=False, install=False) as turns:
        found = turns.measure(Row("key", "a work", "s", {"a": turn("a", 1.0), "b": turn("b", 3.0)}))
    assert order == ["a", "b", "a", "b", "b", "a"]
    assert found["cells"]["b"] == {"value": 3.0, "ratio": 3.0, "ratios": [3.0, 3.0]}


def test_a_python_without_wheels_is_a_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("ASYNCSCHED_BENCH_CACHE", str(tmp_path))
    monkeypatch.setitem(NEEDS, "old", Needs("no_such_module", ("no-such-module",), ((3, 8),)))
    with pytest.raises(Unavailable, match="no wheels for Python 3"):
        python_for("old")


def test_a_row_is_chosen_by_its_name():
    assert [row.key for row in chosen(["heart.issue", "beside.tiny", "heart.call"])["heart"]] == ["issue", "call"]
    with pytest.raises(SystemExit, match="heart has no row 'nothing'; it has: issue, "):
        chosen(["heart.nothing"])
    with pytest.raises(SystemExit, match="no subject 'nothing'; there are: peers, "):
        chosen(["nothing"])


# -- two revisions ------------------------------------------------------------------------------------------------


@needs_git
@pytest.mark.timeout(120)
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_a_revision_is_measured_beside_this_tree(capsys):
    turns = Turns(rounds=1, quick=True, install=False, only=frozenset({"asyncsched"}))
    against.compare("HEAD", chosen(["heart.issue", "heart.chain", "beside.import"]), turns)
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines() if line.startswith(("heart.issue ", "beside.import "))]
    assert [line[0] for line in lines] == ["heart.issue", "beside.import"]
    assert all(line[5].endswith("x") and ".." in line[6] for line in lines)
    assert "skipped" not in printed


@needs_git
def test_what_another_revision_cannot_run_is_named(monkeypatch, tmp_path, capsys):
    _old_repository(tmp_path, "__version__ = '0'\n")
    monkeypatch.setattr(against, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="no row that both can run; AttributeError: module 'asyncsched' has no .*open"):
        against.compare("HEAD", chosen(["heart.issue"]), Turns(rounds=1, quick=True, install=False))


@needs_git
def test_a_revision_that_there_is_not(monkeypatch, tmp_path):
    _old_repository(tmp_path, "")
    monkeypatch.setattr(against, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="git: fatal: Needed a single revision"):
        against.compare("nothing", chosen(["heart.issue"]), Turns(rounds=1, quick=True, install=False))


def _old_repository(folder: Path, package: str) -> None:
    (folder / "asyncsched").mkdir()
    (folder / "asyncsched" / "__init__.py").write_text(package)
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*name, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


# -- the pages ----------------------------------------------------------------------------------------------------


def test_no_number_of_the_pages_is_typed():
    text = render.README.read_text("utf-8")
    assert render.rendered(text) == text
    assert render.ALL.read_text("utf-8") == render.page()
    assert render.TABLES.read_text("utf-8") == render.all_tables()


def test_a_table_has_ratios_values_and_a_dash_where_there_is_no_number(tmp_path, monkeypatch):
    row = Row("tiny", "`x + 1`", "us").result({"NumPy": [0.5], "Ray": [80.2]}, {"JAX": "no"})
    on = {"cpus": 2, "processor": "a processor", "system": "Linux", "python": "3.11.7", "load": 3.0}
    found = {"date": "2026-11-22T10:00", "rounds": 7, "machine": on, "rows": [row], "contestants": {"ray": "ray 2"}}
    (tmp_path / "peers.json").write_text(json.dumps(found))
    (tmp_path / "front.md").write_text("{peers.tiny Ray}, {peers.tiny NumPy; value}, {peers.tiny JAX}\n")
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    table = render.filled(tmp_path / "front.md")
    assert table == "160x, 0.50 us, -\n\nMeasured 2026-11-22 on 2 processors; medians of a run."
