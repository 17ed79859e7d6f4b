"""The GPU benchmark runs to its end; where there is no card, on the fake, which it says and keeps to itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncsched.devices.cuda.device import usable
from bench.__main__ import measured
from bench.harness.rows import Here, Result, Row
from bench.harness.subjects import Together
from bench.harness.turns import Turns
from tests.thorough import thoroughly

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
ROWS = {
    "small-add": "CuPy, one stream; asyncsched; spin 20 us; captured, 100 at a time",
    "small-product": "CuPy, one stream; asyncsched; spin 20 us; captured, 100 at a time",
    "small-exp": "CuPy, one stream; asyncsched; spin 20 us; captured, 100 at a time",
    "small-matmul": "CuPy, one stream; asyncsched; spin 20 us; captured, 100 at a time",
    "large-add": "CuPy, one stream; asyncsched",
    "large-matmul": "CuPy, one stream; asyncsched",
    "copies": "the longest of three; CuPy, one stream; asyncsched",
    "latency": "event.synchronize() in a thread; await, asleep; await, spin 20 us",
    "training": "CuPy, one stream; unbounded; bounded",
    "training-peak": "the limit; unbounded; bounded",
    "run_ahead": "the limit; bounded",
    "lag": "asleep; spin 20 us",
    "fused-tanh-GELU": "CuPy, one stream; asyncsched; captured",
    "fused-ten": "CuPy, one stream; asyncsched; captured",
}


def bench(*options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *map(str, options)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@thoroughly
def test_every_part_runs(tmp_path):
    before = sorted((ROOT / "bench" / "results").iterdir())
    run = bench("gpu", "--quick", "--results", tmp_path)
    assert run.returncode == 0, run.stderr
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    rows = {row["key"]: row for row in found["rows"]}
    assert rows.keys() == {*ROWS, "sanitizer"}
    for key, columns in ROWS.items():
        assert all(rows[key]["cells"][column].get("value", 0) > 0 for column in columns.split("; ")), rows[key]
    assert sum(target["met"] is not None for row in rows.values() for target in row["targets"].values()) >= 10
    assert all(row["work"] in run.stdout for row in rows.values())
    assert path.stem == "gpu-fake" or usable()
    assert ("A FAKE GPU: the numbers mean nothing" in run.stdout) == found["fake"] == (not usable())
    assert {"gpu", "driver", "runtime", "cupy", "memory", "date"} <= found.keys()
    assert run.stdout.splitlines()[-1].startswith("not checked: ")
    assert sorted((ROOT / "bench" / "results").iterdir()) == before


def fails(turns: Turns) -> Iterator[Result]:
    yield turns.measure(Row("first", "what was measured before it", "s", {"asyncsched": Here(lambda: 1.0)}))
    raise ValueError("no such kernel")


def fine(turns: Turns) -> Iterator[Result]:
    cells = {"asyncsched": Here(lambda: 2.0), "CuPy": Here(lambda: int("no number"))}
    yield turns.measure(Row("fine", "what comes after it", "s", cells))


def test_a_section_that_raises_leaves_what_was_measured_and_what_comes_after_it(tmp_path):
    sections = [Together("fails", fails), Together("fine", fine)]
    measured("gpu", sections, Turns(rounds=1, quick=True, install=False), tmp_path)
    (path,) = tmp_path.iterdir()
    cells = {row["key"]: row["cells"] for row in json.loads(path.read_text())["rows"]}
    assert cells["first"]["asyncsched"]["value"] == 1.0
    assert cells["fails"] == {"all of it": {"error": "ValueError: no such kernel"}}
    assert cells["fine"]["asyncsched"]["value"] == 2.0
    assert cells["fine"]["CuPy"]["error"].startswith("ValueError: invalid literal for int()")


@pytest.mark.skipif(usable(), reason="there is a CUDA device")
def test_without_a_card_there_are_no_numbers():
    run = bench("gpu.small")
    assert run.returncode == 1
    assert "no CUDA device" in run.stderr
