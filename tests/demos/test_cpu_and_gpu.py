"""The demo of two devices runs: where there is no GPU on a simulated one, which it says, and on the fake CuPy."""

from __future__ import annotations

import importlib.util
import sys

import pytest

import asyncsched as asc
from asyncsched.devices.cuda.device import usable
from tests.fake_cupy import fake_cupy

from .test_demos import DEMOS, PNG, needs, run

pytestmark = needs("matplotlib", "tqdm")


def rows(lines: list[str]) -> dict[str, list[str]]:
    """The table, by device."""
    start = next(i for i, line in enumerate(lines) if line.startswith("device"))
    return {line.split()[0]: line.split()[1:] for line in lines[start + 1 : lines.index("", start)]}


def test_as_a_program(tmp_path):
    plot = tmp_path / "timeline.png"
    lines = run("cpu_and_gpu", "--batches", 4, "--max-bytes", "50 MiB", "--plot", plot)
    assert any("a simulated device takes its place" in line for line in lines) == (not usable())
    found = rows(lines)
    assert {"cpu:1", "cuda:0" if usable() else "simulated"} == found.keys()
    assert all(row[0] == "4" and float(row[1]) > 0 for row in found.values())
    assert any("MiB on both, of 50 MiB" in line for line in lines)
    assert plot.read_bytes().startswith(PNG)


@pytest.mark.skipif(usable(), reason="there is a CUDA device")
def test_on_the_fake(capsys, monkeypatch, blockbuster):
    blockbuster.deactivate()  # drawing a progress bar and computing NumPy's answer on the loop are the demo's business
    spec = importlib.util.spec_from_file_location("cpu_and_gpu", DEMOS / "cpu_and_gpu.py")
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
    assert rows(printed.splitlines()).keys() == {"cpu:1", "cuda:0"}
    assert "simulated" not in printed
    assert rows(printed.splitlines())["cuda:0"][0] == "5"
