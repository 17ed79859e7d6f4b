"""The GPU benchmark runs to its end; where there is no card, on the fake, which it says and keeps to itself."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from asyncsched.devices.cuda.device import usable
from bench import gpu
from bench.gpu_card import FAKE
from bench.measure import Asked, Row
from tests.fake_cupy import fake_cupy

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
# By part of the benchmark.
ROWS = {
    "a": (
        "small add: CuPy, one stream; small add: asyncsched; small add: asyncsched, inline_launch"
        "; small add: asyncsched, spin 20 us; small matmul: asyncsched, captured 100 at a time"
    ),
    "b": "large add: asyncsched; large matmul: asyncsched",
    "c": "CuPy, one stream; the longest of these three; asyncsched, all of it",
    "d": "event.synchronize() in a thread; await, asleep; await, spin 20 us",
    "e": (
        "training, CuPy, one stream; training, unbounded; training, bounded; peak reserved, bounded"
        "; running ahead of all memory, bounded"
    ),
    "f": "lag, asleep, p99",
    "h": "tanh-GELU on 8 MiB: asyncsched, captured; ten operations on 8 MiB: asyncsched, captured",
}


def bench(*options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.gpu", *map(str, options)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_part_runs(tmp_path):
    before = sorted((ROOT / "bench" / "results").iterdir())
    run = bench("--quick", "--json", tmp_path / "gpu.json")
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    rows = {row["name"]: row for row in found["rows"]}
    promised = {f"{part} {name}" for part, names in ROWS.items() for name in names.split("; ")}
    assert promised <= rows.keys()
    assert all(row["median"] > 0 and row["ratio"] > 0 for row in rows.values())
    assert sum(row["asked"] is not None for row in rows.values()) >= 10
    assert all(name in run.stdout for name in promised)
    assert found["fake"] == (not usable())
    assert ("A FAKE GPU: the numbers mean nothing" in run.stdout) == found["fake"]
    assert {"gpu", "driver", "runtime", "cupy", "memory", "date"} <= found.keys()
    assert any(note.startswith("compute-sanitizer") for note in found["notes"])
    assert sorted((ROOT / "bench" / "results").iterdir()) == before


def test_a_smoke_run_is_not_kept_among_the_results():
    run = bench("--quick", "--json", ROOT / "bench" / "results" / "gpu.json")
    assert run.returncode == 2
    assert "give another path" in run.stderr


def test_a_missed_target_is_an_exit_status_and_the_last_line_says_what_was_not_checked(monkeypatch, capsys):
    slow = Row("slow", 2.0, "s", [2.0], "something fast", Asked(1.5))
    monkeypatch.setattr(gpu, "SECTIONS", {"a": lambda quick, report: report.rows.append(slow)})
    monkeypatch.setattr(gpu, "card", lambda quick: nullcontext(FAKE))
    with fake_cupy(), pytest.raises(SystemExit) as caught:
        gpu.main([])
    assert caught.value.code == 1
    *_, missed, unchecked = capsys.readouterr().out.splitlines()
    assert missed == "NOT met: slow"
    assert unchecked.startswith("not checked: copies between two devices, ")


@pytest.mark.skipif(usable(), reason="there is a CUDA device")
def test_without_a_card_there_are_no_numbers():
    run = bench("--only", "a")
    assert run.returncode == 1
    assert "no CUDA device" in run.stderr
