"""Where it cannot be set up it says so. Runs everywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .environment import why_not

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def runtime() -> None:
    """Not needed here."""


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("platform.machine", lambda: "aarch64", "needs Linux on x86-64, and this is linux on aarch64"),
        ("sys.platform", "darwin", "needs Linux on x86-64, and this is darwin on x86_64"),
        ("shutil.which", lambda tool: None, "needs g++ and nm"),
        ("shutil.which", lambda tool: tool, None),
    ],
)
def test_it_says_what_it_needs(monkeypatch, setting, value, said):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(setting, value)
    assert why_not() == said


def test_the_command_is_skipped_with_a_status_of_its_own(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "tests.cuda_host", str(tmp_path / "never"), "run"],
        cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 77, run.stderr
    assert run.stdout.startswith("CuPy in host memory is skipped: it needs ")
    assert not (tmp_path / "never").exists()
