"""What opening a scheduler says where the driver is too old for this CuPy, or finds no GPU: in processes apart."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

OPEN = """
import asyncsched as asc

async def main():
    async with asc.Scheduler("cuda"):
        pass

asc.run(main)
"""


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (
            {"HOSTCUDA_DRIVER": "11040"},
            "the NVIDIA driver knows CUDA up to 11.4, too old for this CuPy, which is for CUDA 12: update it",
        ),
        (
            {"HOSTCUDA_DEVICES": "0"},
            "CuPy finds no device: see what `nvidia-smi -L` lists; in MIG mode a device needs slices",
        ),
        (
            {"HOSTCUDA_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""},
            "CuPy finds no device, and CUDA_VISIBLE_DEVICES is '': unset it, or name devices or MIG slices that"
            " `nvidia-smi -L` lists",
        ),
        (
            {"HOSTCUDA_REFUSES": "2"},
            "the device has no room: end other programs that use it: `nvidia-smi` lists them",
        ),
        (
            {"HOSTCUDA_REFUSES": "46"},
            "another process has the device alone: end it, or share the device: `nvidia-smi -c DEFAULT`",
        ),
    ],
)
def test_it_says_what_is_missing(machine, said):
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | machine
    run = subprocess.run([sys.executable, "-c", OPEN], env=environment, capture_output=True, text=True, check=False)
    assert f"cuda:0 cannot be used: {said}. Or use" in run.stderr
    command = [sys.executable, "-m", "asyncsched"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    (line,) = [line for line in run.stdout.splitlines() if line.startswith(("  cuda ", "  cuda:0 "))]
    assert said.split(": ")[0] in line
    assert run.stderr == ""


def test_a_mig_slice_is_named_as_one():
    environment = os.environ | {"HOSTCUDA_NAME": "NVIDIA A100 MIG 1g.5gb"}
    command = [sys.executable, "-m", "asyncsched"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "NVIDIA A100 MIG 1g.5gb, compute" in run.stdout
    assert "the only MIG slice that a process sees" in run.stdout
