"""The demo of two devices runs: where there is no GPU on a simulated one, which it says, and on the fake CuPy."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import asyncsched as asc
from asyncsched.devices.cuda.device import usable
from tests.fake_cupy import fake_cupy

DEMO = Path(__file__).parents[2] / "demos" / "cpu_and_gpu.py"

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(module) is None for module in ("matplotlib", "tqdm")),
    reason="the demo needs matplotlib, tqdm: asyncsched[demos]",
)


def rows(printed: str) -> dict[str, list[str]]:
    """The table, by device."""
    lines = printed.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("device"))
    return {line.split()[0]: line.split()[1:] for line in lines[start + 1 : lines.index("", start)]}


def test_as_a_program(tmp_path):
    plot = tmp_path / "timeline.png"
    command = [sys.executable, str(DEMO), "--batches", "4", "--max-bytes", "50 MiB", "--plot", str(plot)]
    environment = os.environ | {"MPLBACKEND": "Agg"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    assert ("a simulated device takes its part" in run.stdout) == (not usable())
    found = rows(run.stdout)
    assert {"cpu:1", "cuda:0" if usable() else "simulated"} == found.keys()
    assert all(row[0] == "4" and float(row[1]) > 0 for row in found.values())
    assert "MiB on both, of 50 MiB" in run.stdout
    assert plot.read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.skipif(usable(), reason="there is a CUDA device")
def test_on_the_fake(capsys, monkeypatch, blockbuster):
    blockbuster.deactivate()  # drawing a progress bar and computing NumPy's answer on the loop are the demo's business
    spec = importlib.util.spec_from_file_location("cpu_and_gpu", DEMO)
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    monkeypatch.setattr(demo, "PIXELS", 300)
    with fake_cupy() as fake:
        # The fake's events have no time.
        monkeypatch.setattr(sys.modules["cupy"].cuda, "get_elapsed_time", lambda begin, end: 1.0, raising=False)
        asc.run(lambda: demo.main(5, "8 MiB", None))
        assert fake.problems() == []
    printed = capsys.readouterr().out
    assert rows(printed).keys() == {"cpu:1", "cuda:0"}
    assert "simulated" not in printed
    assert rows(printed)["cuda:0"][0] == "5"
