"""Every program of `gpu-check` comes to a good end: on the fake, and on a card or CuPy in host memory (`-m gpu`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from asyncsched.devices.cuda.device import usable
from asyncsched.gpu_check.entries import Report
from asyncsched.gpu_check.programs import AFTER, GROUPS
from tests.gpu.conftest import NONE

ROOT = Path(__file__).parents[2]
PROGRAMS = [name for programs in GROUPS.values() for name in programs]
# The fake takes no kernels, and PyTorch does not know it.
NOT_ON_THE_FAKE = {"before", "fault", "fault_at_once", "full_card", "pytorch"}
ALL = """
import sys
from pathlib import Path
from asyncsched.gpu_check.__main__ import main
for name in sys.argv[2:]:
    folder = Path(sys.argv[1], name)
    folder.mkdir()
    print(name, main(name, str(folder), "--quick"), flush=True)
"""


@pytest.mark.skipif(usable(), reason="these run on the card here: pytest -m gpu")
def test_all_on_the_fake(fake, tmp_path):
    names = sorted(PROGRAMS, key=lambda name: name == "work_left")  # last: in one process it is in the others' way
    command = [sys.executable, "-W", "ignore", "-c", ALL, str(tmp_path), *names]
    run = subprocess.run(command, cwd=ROOT, env=fake, capture_output=True, text=True, timeout=100, check=False)
    lines = [line.split() for line in run.stdout.splitlines()]
    found = {words[0]: words[1] for words in lines if words[0] in PROGRAMS}
    assert found == {name: "77" if name in NOT_ON_THE_FAKE else "0" for name in PROGRAMS}, run.stdout + run.stderr
    for name in ("cold", *GROUPS["rate"]):
        facts = [json.loads(line) for line in (tmp_path / name / "facts").read_text().splitlines()]
        assert len(facts) >= 3
        assert all(fact["value"] > 0 and fact["unit"] for fact in facts), name


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_card(name, tmp_path):
    if not usable():
        pytest.skip(NONE)
    command = [sys.executable, "-m", "asyncsched.gpu_check", name, str(tmp_path), "--quick"]
    small = os.environ | {"HOSTCUDA_MEMORY_MB": "1024"}  # where a program fills what is host memory
    run = subprocess.run(command, cwd=ROOT, env=small, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0 or (run.returncode == 77 and run.stdout), run.stderr


def test_the_state_of_the_devices_has_nothing_that_identifies_them(tmp_path, monkeypatch, capsys):
    for name, said in {
        "nvidia-smi": "GPU UUID : GPU-1\nSM : 1980 MHz\nSerial Number : 2",
        "dmesg": "a\nXid 79",
    }.items():
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\nprintf '{said}\n'\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    AFTER["after"](Report(tmp_path))
    assert capsys.readouterr().out.split() == ["Xid", "79", "SM", ":", "1980", "MHz"]


class Nvml:
    """The driver's library, as far as it is asked."""

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, room: int) -> int:  # noqa: N802
        text.value = b"575.57.08"
        return 0


def test_the_drivers_release_is_known_without_its_tool_and_a_wheel_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: Nvml())
    monkeypatch.setattr("asyncsched.gpu_check.programs.CHECKOUT", False)
    monkeypatch.setattr("asyncsched.devices.cuda.requirements.driver", lambda: 12090)
    monkeypatch.setattr("asyncsched.devices.cuda.requirements.missing", list[Any])
    with suppress(ImportError, AttributeError):  # without CuPy: what comes after it
        GROUPS["machine"]["machine"](Report(tmp_path))
    facts = [json.loads(line) for line in (tmp_path / "facts").read_text().splitlines()]
    assert {"name": "driver's release", "value": "575.57.08", "unit": ""} in facts
    wanted = 'pip install "asyncsched[cuda12]"; the groups test and bench need a checkout'
    assert {"name": "all that it needs", "value": wanted, "unit": ""} in facts
