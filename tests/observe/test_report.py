"""What is said of a recorded run: phases without gaps, why streams were idle, the critical path, the bytes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from asyncsched.__main__ import main
from asyncsched.observe.analysis import analyse, critical_path, memory_curve
from asyncsched.observe.recording import Recording, ScopeRecord, TaskRecord, phases
from asyncsched.observe.report import describe, findings, page, report, verdict


def task(seq: int, began: float, ended: float, **more: Any) -> TaskRecord:
    """One that ran on the only stream, launched at 0 unless said otherwise."""
    stream = f"cpu stream {more.pop('stream', 0)}"
    known: dict[str, Any] = {
        "seq": seq, "name": "matmul", "site": "model.py:3 in step", "device": "cpu", "stream": stream, "copies": False,
        "state": "done", "claim": False, "scope": 1, "expedited": False, "inputs": (), "cost": 100, "kept": 100,
        "submitted": 0.0, "head": 0.0, "launched": 0.0, "began": began, "ended": ended, "done": ended,
        "waited_for": "slots",
    }  # fmt: skip
    known |= more
    if "submitted" in more and "head" not in more:
        known["head"] = known["launched"] = more["submitted"]
    return TaskRecord(**known)


def recorded(*tasks: TaskRecord, streams: int = 1, **more: Any) -> Recording:
    limits = {"max_ops": 8, "max_bytes": 1000, "devices": [{"name": "cpu", "kind": "cpu", "streams": streams}]}
    found = Recording(metadata=limits, tasks=list(tasks), complete=True)
    for name, value in more.items():
        setattr(found, name, value)
    return found


def test_phases_follow_each_other_without_gaps() -> None:
    first, second = task(0, 1.0, 3.0), task(1, 4.0, 5.0, inputs=(0,), head=0.5, launched=1.5, done=6.0)
    found = phases(second, {0: first, 1: second})
    assert [name for name, *_ in found] == ["queue", "slots", "inputs", "stream", "running", "told"]
    assert [t for _, *t in found] == [[0, 0.5], [0.5, 1.5], [1.5, 3.0], [3.0, 4.0], [4.0, 5.0], [5.0, 6.0]]


ITERATIONS = {n: ScopeRecord(n, 1, f"iteration {n - 1}", (n - 2) / 4, False, 0) for n in (2, 3, 4)}
IN_A_WINDOW = [task(i, i * 1.0, i + 0.3, submitted=float(i), scope=2 + i % 3) for i in range(9)]
CASES = {
    "busy": (recorded(task(0, 0.0, 5.0), task(1, 5.0, 10.0)), "are busy 100%", "less or in lower precision"),
    "bytes": (
        recorded(task(0, 0.0, 1.0), task(1, 9.0, 10.0, launched=9.0, waited_for="bytes")),
        "idle 80% of the time, mostly (80%) because tasks wait for bytes", "raise max_bytes above 1000 B",
    ),
    "slots": (
        recorded(task(0, 0.0, 1.0), task(1, 9.0, 10.0, launched=9.0)),
        "wait for a slot", "raise max_ops",
    ),
    "inputs": (
        recorded(task(0, 0.0, 5.0), task(1, 5.0, 10.0, stream=1, inputs=(0,)), streams=2),
        "idle 50% of the time, mostly (25%) because each task waits", "the critical path below",
    ),
    "loop": (
        recorded(*[task(i, i + 0.5, i + 0.500002, submitted=float(i)) for i in range(10)]),
        "The loop is the bottleneck", "s.capture(fn, x)",
    ),
    "awaited": (
        recorded(*[task(i, i * 1.0, i + 0.3, submitted=float(i)) for i in range(10)], waits=[(0.0, 10.0, 9, 1)]),
        "awaits each result", "s.window(2)",
    ),
    "window": (
        recorded(*IN_A_WINDOW, waits=[(1.0, 9.3, 0, 1)], scopes=ITERATIONS),
        "waits for an earlier iteration", "a deeper window",
    ),
    "awaited in the window": (
        recorded(*IN_A_WINDOW, waits=[(0.2, 9.3, 0, 1)], scopes=ITERATIONS),
        "awaits each result", "s.window(2)",
    ),
    "elsewhere": (
        recorded(*[task(i, i * 1.0, i + 0.3, submitted=float(i)) for i in range(10)]),
        "nothing was submitted", "LoopGuard",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_bottleneck_is_named_with_its_cure(name: str) -> None:
    recording, said, cure = CASES[name]
    found = analyse(recording)
    assert said in verdict(found)
    assert cure in verdict(found)
    assert found.busy + sum(found.idle.values()) == pytest.approx(1.0)
    assert verdict(found) in describe(*findings(recording, "run.json"))


def test_the_critical_path_fills_the_time_from_the_first_submission_to_the_end() -> None:
    tasks = [
        task(0, 0.5, 2.0, name="long"),
        task(1, 0.5, 1.0, name="short", stream=1),
        task(2, 2.25, 4.0, name="reads", stream=1, inputs=(0, 1)),
        task(3, 5.0, 6.0, name="late", submitted=4.5),
    ]
    found = critical_path(tasks, {one.seq: one for one in tasks})
    assert [name for kind, name, _ in found if kind == "run"] == ["long", "reads", "late"]
    assert sum(seconds for *_, seconds in found) == pytest.approx(6.0)


def test_bytes_are_those_of_the_ledger_also_where_a_scope_has_a_reserve() -> None:
    claim = task(1, 0.0, 0.0, claim=True, scope=2, cost=500, kept=500, done=1.0)
    claim.began = claim.ended = None
    inside = task(2, 2.0, 3.0, scope=2, cost=300, kept=200, submitted=2.0)
    outside = task(3, 2.0, 4.0, scope=1, cost=50, kept=0, submitted=2.0)
    scopes = {1: ScopeRecord(1, 0, "root", 0.0, True, 0), 2: ScopeRecord(2, 1, "request", 0.0, True, 0)}
    scopes[2].reserve, scopes[2].closed = 500, 5.0
    released = [(6.0, 2, 200)]
    curve = memory_curve(recorded(claim, inside, outside, scopes=scopes, released=released))
    assert curve == [(1.0, 500), (2.0, 550), (4.0, 500), (5.0, 200), (6.0, 0)]


HOSTILE = ["\x1b[2Jb", "a\nb", "\u202eb", "\x9b31m"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_a_trace_from_elsewhere_are_printable(name: str, tmp_path: Path) -> None:
    device = {"name": name, "streams": 1}
    head = {"format": 2, "max_ops": 1, "max_bytes": None, "devices": [device], "wall_clock": 0, "perf_counter": 0}
    ran = {
        "seq": 1,
        "site": name,
        "scope": 1,
        "cost": 1,
        "kept": 1,
        "submitted": 0,
        "head": 0,
        "done": 9,
        "launched": 0,
    }
    scope = {"parent": 0, "priority": 0, "tenant": name}
    failed = ran | {"seq": 2, "state": "failed", "device": name, "stream": name}
    events: list[dict[str, Any]] = [
        {"name": "asyncsched.metadata", "ph": "M", "args": head},
        {"name": name, "ph": "b", "cat": "scope", "id": 1, "ts": 0, "args": scope},
        {"name": name, "ph": "X", "cat": "task", "ts": 1, "dur": 5, "args": ran | {"device": name, "stream": name}},
        {"name": name, "ph": "X", "cat": "task", "ts": 1, "dur": 5, "args": failed},
    ]
    path = tmp_path / "run.json"
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + ",\n")
    text = report(Namespace(trace=str(path), html=str(tmp_path / "page.html")))
    assert text.replace("\n", "").isprintable()
    assert ascii(name[0])[1:-1] in text or ascii(name[1])[1:-1] in text
    whole = path.read_text()
    for unknown in ({name: 1}, {"waited_for": name}):
        path.write_text(whole + json.dumps(events[2] | {"args": ran | unknown}) + ",\n")
        with pytest.raises(ValueError, match="is damaged") as raised:
            report(Namespace(trace=str(path), html=None))
        assert str(raised.value).isprintable()


@pytest.mark.parametrize("name", ["<!--<script>", "</script>", "<SCRIPT", "]]>"])
def test_no_name_ends_the_pages_data(name: str) -> None:
    recording = recorded(task(0, 0.0, 5.0, site=name, name=name))
    text = page(recording, *findings(recording, name))
    (data,) = re.findall(r"const data = (.*);", text)
    assert "<" not in data
    assert json.loads(data)["names"] == [name]


def test_a_page_needs_nothing_else() -> None:
    recording = recorded(task(0, 0.0, 5.0, site="</script> & co", name='<b>"@DATA@"'))
    text = page(recording, *findings(recording, "a < b"))
    assert "<p>a &lt; b: 1 task in" in text
    assert "<td>&lt;b&gt;&quot;@DATA@&quot;</td>" in text
    assert text.count("const data = {") == 1
    assert not re.findall("@SAID@|@TABLES@", text)
    assert not re.findall(r"(?:src|href)=|https?://|@import|url\(", text)
    (data,) = re.findall(r"const data = (.*);", text)
    assert "</script>" not in data
    assert text == page(recording, *findings(recording, "a < b"))
    found = json.loads(data)
    assert found["slices"] == [[0, 0, 0.0, 5e6, 0.0, 0.0, 0, 100, 0]]
    assert found["limit"] == 1000


def test_tables_begin_with_the_bottleneck_and_are_sorted_by_share() -> None:
    scopes = {
        number: ScopeRecord(number, 0, name, 0.0, True, 0, tenant)
        for number, (name, tenant) in enumerate([("request 17", "ann"), ("request 18", "bob"), ("other", "")], 1)
    }
    recording = recorded(
        task(0, 0.0, 1.0, name="add", scope=1),
        task(1, 4.0, 7.0, scope=2, submitted=3.0, stream=1),
        task(2, 7.0, 9.0, scope=3, launched=5.0, head=1.0),
        task(3, 9.0, 10.0, scope=2, launched=9.0, state="failed", name="bad"),
        streams=2, scopes=scopes,
    )  # fmt: skip
    said, tables = findings(recording, "run.json")
    assert said == describe(*findings(recording, "run.json")).split("\n\n")[:2]
    rows = {table.title: [row[:2] for row in table.rows] for table in tables}
    assert list(rows) == [
        "What limits the run", "Not done", "Operations", "Scopes", "Tenants",
        "Waits, of all tasks from submission to end", "The critical path, 10 s", "Streams",
    ]  # fmt: skip
    assert rows["What limits the run"][0] == ("idle: tasks waited for a slot (max_ops)", "45.0%")
    assert rows["Not done"] == [("bad", "failed")]
    assert rows["Scopes"] == [("request N", "71.4%"), ("other", "28.6%")]
    assert rows["Tenants"] == [("bob", "57.1%"), ("(none)", "28.6%"), ("ann", "14.3%")]
    assert rows["Streams"] == [("cpu stream 0", "40.0%"), ("cpu stream 1", "30.0%")]
    for table in tables:
        shares = [float(cell[:-1]) for row in table.rows for cell in row if cell.endswith("%")]
        assert shares == sorted(shares, reverse=True)
    table = next(table for table in tables if table.title == "Operations")
    assert table.rows[0] == ("matmul", "cpu", "71.4%", "5 s", "2", "2.5 s", "500 ms", "2 s", "", "", "1.5 s", "")
    lines = table.text().splitlines()
    assert "bytes" in table.heads
    assert "bytes" not in lines[1]  # nothing waited for them
    assert len({len(line) for line in lines[1:3]}) == 1
    root = ET.fromstring(table.html())
    assert {cell.get("class") for row in root.iter("tr") for cell in list(row)[2:]} == {"number"}
    assert next(cell.get("style") for cell in root.iter("td") if cell.get("style")) == "--share:71.4%"


def test_what_is_one_group_alone_has_no_table_but_for_operations() -> None:
    _, tables = findings(recorded(task(0, 0.0, 1.0)), "run.json")
    assert not {"Scopes", "Tenants", "Not done"} & {table.title for table in tables}
    assert findings(recorded(), "run.json") == (["run.json: no task ended while this trace was written."], [])
    assert "no task ended" in page(recorded(), *findings(recorded(), "run.json"))
    many = recorded(*[task(i, i, i + 1.0, name=f"f{i}") for i in range(20)])
    assert "f11" in describe(*findings(many, "run.json"))
    assert "\n... and 8 more." in describe(*findings(many, "run.json"))


def test_the_command_reports_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np, asyncsched as asc\n"
        "def größe(x): return x.size\n"
        "async def main():\n"
        "    async with asc.Scheduler('cpu', instruments=[asc.Trace('run.json')]) as s:\n"
        "        x = await s.put(np.ones((200, 200)))\n"
        "        print(await s.call(größe, x @ x))\n"
        "asc.run(main)\n",
        encoding="utf-8",
    )
    subprocess.run([sys.executable, program], cwd=tmp_path, check=True, capture_output=True)  # ended at exit
    run = [sys.executable, "-m", "asyncsched", "trace", "run.json", "--html", "run.html"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    said = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True, env=ascii_only).stdout
    assert "gr\\xf6\\xdfe" in said
    assert "run.json: 3 tasks in " in said
    assert "cpu stream 0" in said
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    with pytest.raises(SystemExit):
        main(["trace", str(program)])
    assert "is no trace" in capsys.readouterr().err
